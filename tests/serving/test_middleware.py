"""What every request goes through, whatever its handler does. Over HTTP it is in test_serving_app and _faults."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from starlette.requests import Request
from starlette.responses import Response

from fastshapley.serving.counters import Metrics
from fastshapley.serving.middleware import Answer, Guard, Limits, Refusal


def guard(limits: Limits | None = None, **options: Any) -> Guard:
    return Guard(limits or Limits(), Metrics(), ["people"], **options)


def request(*parts: bytes, headers: dict[bytes, bytes] | None = None) -> Request:
    """One whose body comes in parts, and whose client then leaves."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": place < len(parts)}
        for place, part in enumerate(parts, start=1)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/somewhere",
        "headers": list((headers or {}).items()),
        "client": ("127.0.0.1", 1),
        "path_params": {"name": "people"},
    }
    return Request(scope, receive)


def test_an_unforeseen_error_is_logged_but_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> Response:
        raise RuntimeError("/home/secret")

    response = asyncio.run(guard().open("explain", broken)(request(b"")))
    assert (response.status_code, json.loads(bytes(response.body))) == (500, {"error": "internal error"})
    (logged,) = [entry for entry in caplog.records if entry.exc_info]
    assert "/home/secret" in str(logged.exc_info)


def test_who_takes_too_long_is_stopped() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> Response:
        late = guard(Limits(seconds=0.05))
        watch = asyncio.create_task(late.stop_the_late())
        response = await late.open("explain", slow)(request(b""))
        watch.cancel()
        return response

    response = asyncio.run(run())
    assert response.status_code == 408
    assert response.headers["connection"] == "close"
    assert "more than 0.05 seconds" in json.loads(bytes(response.body))["error"]


def test_who_is_cancelled_by_others_is_cancelled() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        task = asyncio.create_task(guard().open("explain", slow)(request(b"")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


@pytest.mark.parametrize(
    ("parts", "promised", "expected"),
    [
        ((b"ab", b"cd"), b"4", b"abcd"),
        ((b"abcd", b"efgh"), b"8", b"abcdefgh"),
        ((b"abcd", b"efghi"), b"", 413),  # nothing was said of its length
        ((b"a", b"b"), b"9", 413),  # it is not waited for
    ],
)
def test_a_body_is_read_as_far_as_it_may_go(
    parts: tuple[bytes, ...], promised: bytes, expected: bytes | int
) -> None:
    body = guard(Limits(body=8)).body(request(*parts, headers={b"content-length": promised}))
    if isinstance(expected, bytes):
        assert asyncio.run(body) == expected
    else:
        with pytest.raises(Refusal, match="more than 8 bytes") as caught:
            asyncio.run(body)
        assert caught.value.status == expected


def test_errors_do_not_quote_without_end(caplog: pytest.LogCaptureFixture) -> None:
    async def talkative(request: Request) -> Response:
        raise Refusal(400, "x" * 100_000)

    with caplog.at_level(logging.WARNING, "fastshapley.requests"):
        response = asyncio.run(guard().open("explain", talkative)(request(b"")))
    assert len(response.body) < 1100
    assert [entry.fields["status"] for entry in caplog.records] == [400]  # type: ignore[attr-defined]


def test_a_good_answer_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def good(request: Request) -> Response:
        return Answer({"a": 1})

    with caplog.at_level(logging.INFO, "fastshapley.requests"):
        assert asyncio.run(guard(token="x").open("explain", good)(request(b""))).body == b'{"a":1}'
        assert asyncio.run(guard(token="x").guarded("explain", good)(request(b""))).status_code == 401
    assert [entry.fields["status"] for entry in caplog.records] == [401]  # type: ignore[attr-defined]
