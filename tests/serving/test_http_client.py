"""The HTTP client of predictors, with answers of all forms from a real socket."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("httptools", reason="needs the serve extra")
from fastshapley.serving.http_client import HttpAnswer, HttpClient, HttpError


def asked(*answers: bytes, requests: int = 1, body: bytes | None = b"{}", close: bool = True) -> list[Any]:
    """Return the answers to some requests, or their errors. Each request gets the next of the given answers."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            if not await reader.readuntil(b"\r\n\r\n") or (body and not await reader.readexactly(len(body))):
                break
            writer.write(left.pop(0))
            await writer.drain()
            if close:
                break
        writer.close()

    async def main() -> list[Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(urlsplit(f"http://127.0.0.1:{port}"), {"x-test": "1"}, 1000)
        found: list[Any] = []
        for _ in range(requests):
            try:
                async with asyncio.timeout(5):
                    found.append(await client.send("/path", body))
            except (OSError, HttpError) as error:
                found.append(error)
            await asyncio.sleep(0.05)  # The server may close the connection meanwhile.
        client.close()
        server.close()
        await server.wait_closed()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\nx: trailer\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 no\r\ncontent-length: 1\r\n\r\nx",
    ],
)
def test_answers_of_all_forms_are_read(data: bytes) -> None:
    (answer,) = asked(data)
    assert (answer.status, answer.body) == (200, b"ok")
    assert "x" not in answer.headers


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"hello\r\n\r\n", HttpError, "its answer is not HTTP"),
        (
            b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
            HttpError,
            "its answer is not HTTP",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", ConnectionError, "before its answer was complete"),
        (b"HTTP/1.1 200 OK\r\n", ConnectionError, "before its answer was complete"),
        (b"", ConnectionError, "before its answer was complete"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2000, HttpError, "its answer exceeds the limit of 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * 2000, HttpError, "its answer exceeds the limit of 1000 bytes"),
    ],
)
def test_answers_that_are_not_complete_are_errors(data: bytes, kind: type[Exception], message: str) -> None:
    (error,) = asked(data)
    assert isinstance(error, kind)
    assert message in str(error)


def test_a_connection_is_used_again_and_replaced_if_the_server_has_closed_it() -> None:
    good = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    for close in (False, True):
        answers = asked(good, good, good, requests=3, close=close)
        assert [answer.body for answer in answers] == [b"ok"] * 3


def test_a_request_without_a_body_is_a_get() -> None:
    (answer,) = asked(b"HTTP/1.1 204 No Content\r\n\r\n", body=None)
    assert answer == HttpAnswer(204, {}, b"")
