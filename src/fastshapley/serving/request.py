"""One HTTP request on its way through the server, and the limits it must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request

from fastshapley.serving.responses import RequestError


@dataclass(frozen=True)
class Limits:
    """Limits on one request.

    Parameters
    ----------
    body : int, default=8_000_000
        Size of the body, in bytes.
    rows : int, default=10_000
        Number of rows.
    seconds : float, default=30.0
        Time until the answer, in seconds.
    """

    body: int = 8_000_000
    rows: int = 10_000
    seconds: float = 30.0


@dataclass(slots=True)
class ServerRequest:
    """One request. The middleware creates it and passes it to the handler.

    Parameters
    ----------
    http : Request
        The request as Starlette has it.
    model_name : str
        Name of the model in the path, or an empty string.
    limits : Limits
        The limits it must keep.
    body : bytearray
        What has been received of the body.
    body_complete : bool, default=False
        Whether all of the body has been received.
    """

    http: Request
    model_name: str
    limits: Limits
    body: bytearray = field(default_factory=bytearray)
    body_complete: bool = False

    async def read_body(self, enough: float = math.inf) -> bytearray:
        """Receive the body, or the beginning of a long one.

        Parameters
        ----------
        enough : float, default=inf
            Stop after this many bytes, even if the body is not complete. The next call goes on.

        Returns
        -------
        body : bytearray
            What has been received of the body.

        Raises
        ------
        RequestError
            If the body is longer than the limit, or its header announces that.
        ClientDisconnect
            If the client closes the connection first.
        """
        while not self.body_complete and len(self.body) < enough:
            message = await self.http.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self.body += message.get("body", b"")
            self.body_complete = not message.get("more_body", False)
            too_long_ahead = not self.body_complete and self.announced_length() > self.limits.body
            if len(self.body) > self.limits.body or too_long_ahead:
                raise RequestError(413, f"the body exceeds the limit of {self.limits.body} bytes")
        return self.body

    async def discard_body(self) -> bool:
        """Receive the rest of the body and drop it, within limits.

        Many clients read an answer only after they have sent everything.

        Returns
        -------
        complete : bool
            Whether all of the body has been received.
        """
        self.body_complete = self.body_complete or self.http.method != "POST"
        if not self.body_complete and self.announced_length() > 2 * self.limits.body:
            return False
        size = 0
        while not self.body_complete and size <= self.limits.body:
            message = await self.http.receive()
            size += len(message.get("body", b""))
            self.body_complete = not message.get("more_body", False)
        return self.body_complete

    def announced_length(self) -> int:
        """Return the length of the body that the header announces, in bytes, or 0 if it does not."""
        length = self.http.headers.get("content-length", "")
        return int(length) if length.isdecimal() and len(length) < 20 else 0

    def check_content_type(self) -> None:
        """Raise an error if a page sends a body of a type that needs no permission of the server.

        Browsers let the pages of all origins post forms and plain text. For JSON, they ask the server first.

        Raises
        ------
        RequestError
            If the request has an origin, which browsers add, and its body is not JSON.
        """
        if self._header(b"origin") is None:
            return
        content_type = self._header(b"content-type") or b""
        if content_type.partition(b";")[0].strip().lower() != b"application/json":
            raise RequestError(415, "a page must send its rows with the content-type application/json")

    def host(self) -> bytes:
        """Return the host name that the client asked for, without the port."""
        name = self._header(b"host") or b""
        return name[: name.find(b"]") + 1] if name.startswith(b"[") else name.partition(b":")[0]

    def _header(self, wanted: bytes) -> bytes | None:
        """Return the first header of a name. This is ten times as fast as Starlette's headers."""
        for name, value in self.http.scope["headers"]:
            if name == wanted:
                found: bytes = value
                return found
        return None
