"""Answers of the server: JSON, and errors as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.responses import Response

_MAX_ERROR_LENGTH = 1000  # characters of an error message, which may quote the request


class RequestError(Exception):
    """A request that the server refuses.

    Parameters
    ----------
    status : int
        HTTP status of the answer.
    message : str
        Reason, which is sent to the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JsonResponse(Response):
    """An answer in JSON.

    It sets its headers itself: Starlette's constructor takes three times as long.

    Parameters
    ----------
    content : object
        JSON values and numpy arrays.
    status : int, default=200
        HTTP status.
    headers : iterable of tuple of bytes, optional
        More headers, with names in lower case.
    """

    def __init__(self, content: Any, status: int = 200, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        self.status_code, self.background = status, None
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
            *headers,
        ]


def error_response(status: int, message: str) -> Response:
    """Return an answer that tells the client what went wrong.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What went wrong. Long messages are shortened.

    Returns
    -------
    response : Response
        JSON with the key ``error``.
    """
    if len(message) > _MAX_ERROR_LENGTH:
        message = message[:_MAX_ERROR_LENGTH] + " ..."
    response = JsonResponse({"error": message}, status)
    if status == 408:  # The rest of the body may still arrive, and nothing would read it.
        response.headers["connection"] = "close"
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
