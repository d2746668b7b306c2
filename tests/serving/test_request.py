"""A request's body, its limits and its host name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from starlette.requests import ClientDisconnect, Request

from fastshapley.serving.request import Limits, ServerRequest
from fastshapley.serving.responses import RequestError


def request(
    *parts: bytes, headers: dict[bytes, bytes] | None = None, limit: int = 8, method: str = "POST"
) -> ServerRequest:
    """Return a request whose body comes in parts, and whose client then closes the connection."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": place < len(parts)}
        for place, part in enumerate(parts, start=1)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    scope = {"type": "http", "method": method, "path": "/", "headers": list((headers or {}).items())}
    return ServerRequest(Request(scope, receive), "people", Limits(body=limit))


@pytest.mark.parametrize(("parts", "announced"), [((b"ab", b"cd"), b"4"), ((b"abcd", b"efgh"), b"8")])
def test_a_body_within_the_limit_is_read(parts: tuple[bytes, ...], announced: bytes) -> None:
    received = request(*parts, headers={b"content-length": announced})
    assert asyncio.run(received.read_body()) == b"".join(parts)
    assert received.body_complete


def test_a_body_can_be_read_in_two_steps() -> None:
    received = request(b"ab", b"cd", b"ef")
    assert asyncio.run(received.read_body(3)) == b"abcd"
    assert not received.body_complete
    assert asyncio.run(received.read_body()) == b"abcdef"
    assert received.body_complete


@pytest.mark.parametrize(
    ("parts", "announced", "complete"),
    [
        ((b"abcd", b"efghi"), b"", True),  # The header does not announce the length.
        ((b"a", b"b"), b"9", False),  # The header announces too much, so the rest is not waited for.
    ],
)
def test_a_body_above_the_limit_is_refused(parts: tuple[bytes, ...], announced: bytes, complete: bool) -> None:
    received = request(*parts, headers={b"content-length": announced})
    with pytest.raises(RequestError, match="exceeds the limit of 8 bytes") as caught:
        asyncio.run(received.read_body())
    assert caught.value.status == 413
    assert received.body_complete == complete


def test_a_client_that_leaves_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        asyncio.run(request().read_body())


@pytest.mark.parametrize(
    ("parts", "announced", "complete"),
    [
        ((b"ab", b"cd"), b"4", True),
        ((b"abcdefgh", b"i", b"j"), b"", False),  # The limit ends the reading.
        ((b"a",), b"17", False),  # More than twice the limit is announced, so nothing is read.
    ],
)
def test_the_rest_of_a_body_is_discarded_within_limits(
    parts: tuple[bytes, ...], announced: bytes, complete: bool
) -> None:
    received = request(*parts, headers={b"content-length": announced})
    assert asyncio.run(received.discard_body()) == complete


def test_a_request_without_a_body_has_nothing_to_discard() -> None:
    assert asyncio.run(request(method="GET").discard_body())


@pytest.mark.parametrize(
    ("header", "host"),
    [(b"localhost", b"localhost"), (b"127.0.0.1:80", b"127.0.0.1"), (b"[::1]:80", b"[::1]"), (None, b"")],
)
def test_the_host_name_has_no_port(header: bytes | None, host: bytes) -> None:
    assert request(headers={} if header is None else {b"host": header}).host() == host
