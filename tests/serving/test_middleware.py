"""What every request passes through. test_app and test_faults test it over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from starlette.requests import Request
from starlette.responses import Response

from fastshapley.serving.middleware import RequestMiddleware
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.request import Limits, ServerRequest
from fastshapley.serving.responses import JsonResponse, RequestError
from fastshapley.serving.server_state import ServerState


def middleware(limits: Limits | None = None, **options: Any) -> RequestMiddleware:
    return RequestMiddleware(ServerState(ModelStore({}), limits or Limits(), {}), **options)


def request(headers: dict[bytes, bytes] | None = None) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/somewhere",
        "headers": list((headers or {}).items()),
        "client": ("127.0.0.1", 1),
    }
    return Request(scope, receive)


async def answer(request: ServerRequest) -> Response:
    return JsonResponse({"a": 1})


async def wait_forever(request: ServerRequest) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


def test_an_unexpected_error_is_logged_but_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: ServerRequest) -> Response:
        raise RuntimeError("/home/secret")

    response = asyncio.run(middleware().public("explain", broken)(request(), "people"))
    assert (response.status_code, json.loads(bytes(response.body))) == (500, {"error": "internal error"})
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "/home/secret" in str(record.exc_info)


def test_a_request_that_takes_too_long_is_answered_with_408() -> None:
    async def run() -> Response:
        limited = middleware(Limits(seconds=0.05))
        watching = asyncio.create_task(limited.cancel_overdue())
        response = await limited.public("explain", wait_forever)(request(), "people")
        watching.cancel()
        return response

    response = asyncio.run(run())
    assert response.status_code == 408
    assert response.headers["connection"] == "close"
    assert "more than 0.05 seconds" in json.loads(bytes(response.body))["error"]


def test_a_request_that_others_cancel_stays_cancelled() -> None:
    async def run() -> None:
        task = asyncio.create_task(middleware().public("explain", wait_forever)(request(), "people"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_handlers_get_the_name_of_the_model_and_the_limits() -> None:
    received: list[ServerRequest] = []

    async def record(request: ServerRequest) -> Response:
        received.append(request)
        return JsonResponse({})

    limits = Limits(body=3)
    asyncio.run(middleware(limits).public("explain", record)(request(), "people"))
    assert [(one.model_name, one.limits) for one in received] == [("people", limits)]


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), (b"Bearer wrong", 401), (b"Basic secret", 401), (b"Bearer secret", 200), (b"bearer secret", 200)],
)
def test_protected_endpoints_need_the_token(header: bytes | None, status: int) -> None:
    headers = {} if header is None else {b"authorization": header}
    endpoint = middleware(token="secret").protected("explain", answer)
    assert asyncio.run(endpoint(request(headers), "people")).status_code == status


def test_without_a_token_protected_endpoints_are_public() -> None:
    assert asyncio.run(middleware().protected("explain", answer)(request(), "people")).status_code == 200


@pytest.mark.parametrize(("host", "status"), [(b"localhost:80", 200), (b"evil.example", 421)])
def test_only_listed_host_names_are_answered(host: bytes, status: int) -> None:
    endpoint = middleware(hosts=["localhost"]).public("explain", answer)
    assert asyncio.run(endpoint(request({b"host": host}), "people")).status_code == status


def test_only_failures_are_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(request: ServerRequest) -> Response:
        raise RequestError(400, "x" * 100_000)

    with caplog.at_level(logging.INFO, "fastshapley.requests"):
        assert asyncio.run(middleware().public("explain", answer)(request(), "people")).body == b'{"a":1}'
        response = asyncio.run(middleware().public("explain", refuse)(request(), "people"))
    assert len(response.body) < 1100
    assert [record.fields["status"] for record in caplog.records] == [400]  # type: ignore[attr-defined]
