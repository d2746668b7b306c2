"""A small HTTP/1.1 client on the event loop, for one address. It follows no redirect and uses no proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_PART_BYTES = 65536  # bytes that are read at once
_MAX_IDLE = 8  # connections that are kept for later requests


class HttpError(Exception):
    """An answer that is not HTTP, or that exceeds the limit."""


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to a request.

    Parameters
    ----------
    status : int
        HTTP status.
    headers : mapping of str to str
        The headers, with names in lower case.
    body : bytes
        The body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Sends requests to one host, on connections that are kept open between requests.

    Parameters
    ----------
    address : SplitResult
        Scheme, host and port, as `urllib.parse.urlsplit` returns them.
    headers : mapping of str to str
        Headers of each request.
    max_bytes : int
        Largest size of an answer, with its header, in bytes.
    """

    def __init__(self, address: SplitResult, headers: Mapping[str, str], max_bytes: int) -> None:
        self._host = address.hostname or ""
        self._secure = address.scheme == "https"
        self._port = address.port or (443 if self._secure else 80)
        fixed = {"host": address.netloc, "accept": "application/json", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._max_bytes = max_bytes
        self._idle: list[_Connection] = []

    async def send(self, path: str, body: bytes | None = None) -> HttpAnswer:
        """Send a request, and return the answer. The caller limits the time.

        Parameters
        ----------
        path : str
            Path of the address.
        body : bytes, optional
            JSON to post. Without it, the request is a GET.

        Returns
        -------
        answer : HttpAnswer
            The answer.

        Raises
        ------
        OSError
            If there is no connection, or the server closes it.
        HttpError
            If the answer is not HTTP, or exceeds the limit.
        """
        head = f"GET {path} HTTP/1.1\r\n{self._headers}\r\n"
        if body is not None:
            kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            head = f"POST {path} HTTP/1.1\r\n{self._headers}{kind}\r\n"
        request = head.encode("latin-1") + (body or b"")
        while self._idle:
            # The server may have closed a connection that was not in use. Then nothing of an answer arrives.
            connection = self._idle.pop()
            with suppress(_UnusedConnectionError):
                return await self._send(connection, request)
        return await self._send(await self._connect(), request)

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _connect(self) -> _Connection:
        context = ssl.create_default_context() if self._secure else None
        return _Connection(*await asyncio.open_connection(self._host, self._port, ssl=context))

    async def _send(self, connection: _Connection, request: bytes) -> HttpAnswer:
        reusable = False
        try:
            answer, reusable = await connection.send(request, self._max_bytes)
        finally:
            if reusable and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:  # This is also the end of a request that was cancelled.
                connection.writer.close()
        return answer


class _UnusedConnectionError(ConnectionError):
    """The server closed a connection before it answered, and this is not the connection's first request."""


class _Connection:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._used = False

    async def send(self, request: bytes, max_bytes: int) -> tuple[HttpAnswer, bool]:
        """Return the answer to a request, and whether the connection can be used again."""
        answer = _Answer()
        used, self._used = self._used, True
        size = 0
        try:
            self.writer.write(request)
            # The server may answer before it has read the request, so nothing waits for that.
            while not answer.complete:
                part = await self._reader.read(_PART_BYTES)
                if not part:
                    break
                size += len(part)
                if size > max_bytes:
                    raise HttpError(f"its answer exceeds the limit of {max_bytes} bytes")
                answer.parser.feed_data(part)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise HttpError(f"its answer is not HTTP/1.1 ({error})") from None
        except ConnectionError:
            if used and not size:
                raise _UnusedConnectionError from None
            raise
        if used and not size:
            raise _UnusedConnectionError
        if not answer.complete and (answer.status == 0 or answer.sized):
            raise ConnectionResetError("it closed the connection before its answer was complete")
        return HttpAnswer(answer.status, answer.headers, bytes(answer.body)), answer.reusable


class _Answer:
    """What the parser reports of an answer."""

    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.status = 0  # 0 until the header is complete
        self.complete = self.keep_alive = self.has_surplus = False

    @property
    def sized(self) -> bool:
        """Whether the header tells where the body ends. Otherwise the end of the connection does."""
        return "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def reusable(self) -> bool:
        """Whether the connection can be used again."""
        return self.complete and self.keep_alive and not self.has_surplus

    def on_message_begin(self) -> None:
        self.has_surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status == 0:  # A later header is a trailer, or that of surplus bytes.
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if self.status == 0 and status < 200:  # This is an interim answer: the answer itself follows.
            self.headers = {}
        elif self.status == 0:
            self.status, self.keep_alive = status, self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.body += body

    def on_message_complete(self) -> None:
        self.complete = self.status > 0
