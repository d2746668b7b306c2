"""What every request goes through: who may ask, how long it may be and take, what is told of failures, counters."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Container, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.serving import kserve
from fastshapley.serving.counters import Metrics

logger = logging.getLogger(__name__)
requests_log = logging.getLogger("fastshapley.requests")

_LONGEST = 1000  # characters of an error

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Limits:
    """What a request may be: bytes of its body, rows, and seconds until it is answered."""

    body: int = 8_000_000
    rows: int = 10_000
    seconds: float = 30.0


class Refusal(Exception):
    """A request that is not answered, with the status and the words that say why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Makes of handlers what may meet a client: ``guarded`` ones are behind the token, if there is one."""

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        models: Container[str],
        *,
        token: str | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self.limits, self._metrics, self._models = limits, metrics, models
        self.token = None if token is None else token.encode()
        self._hosts = None if hosts is None else [name.encode("latin-1") for name in hosts]
        self._running: dict[asyncio.Task[Any], float] = {}  # since when
        self._late: set[asyncio.Task[Any]] = set()

    def guarded(self, action: str, handler: Handler) -> Handler:
        """A handler behind the token, if there is one."""
        token = self.token

        async def allowed(request: Request) -> Response:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            right = token is not None and hmac.compare_digest(given.strip().encode("latin-1"), token)
            if scheme.lower() != "bearer" or not right:
                raise Refusal(401, "a bearer token is needed")
            return await handler(request)

        return self.open(action, handler if token is None else allowed)

    def open(self, action: str, handler: Handler) -> Handler:
        """A handler whose failures are answered, within the time that there is, and which is counted."""

        async def answered(request: Request) -> Response:
            start, task = time.perf_counter(), asyncio.current_task()
            assert task is not None
            self._running[task] = start
            try:
                try:
                    if self._hosts is not None:
                        self._check_host(request)
                    response = await handler(request)
                except Exception as error:
                    response = await self._failed(error, request)
            except asyncio.CancelledError:
                if task not in self._late:
                    raise
                task.uncancel()
                response = refused(408, f"the request took more than {self.limits.seconds:g} seconds")
            finally:
                del self._running[task]
                self._late.discard(task)
            seconds = time.perf_counter() - start
            model = request.path_params.get("name", "")
            known = model if model in self._models else ""  # clients make up names: they are not to fill the memory
            self._metrics.request(known, action, response.status_code, seconds)
            if response.status_code >= 400 or requests_log.isEnabledFor(logging.DEBUG):
                _log(request, response, action, seconds)
            return response

        return answered

    def _check_host(self, request: Request) -> None:
        assert self._hosts is not None
        if _host(request) not in self._hosts:
            names = ", ".join(name.decode("latin-1") for name in self._hosts)
            raise Refusal(421, f"this server answers to {names}")

    async def _failed(self, error: Exception, request: Request) -> Response:
        """What a client is told of an error."""
        match error:
            case kserve.TooManyRows():
                return refused(413, str(error))
            case InputError():
                return refused(400, str(error))
            case ClientDisconnect():
                return refused(400, "the client left")
            case Refusal():
                response = refused(error.status, str(error))
                if not await self._rest_is_read(request):
                    response.headers["connection"] = "close"
                return response
        logger.error("a request failed", exc_info=error)
        return refused(500, "internal error")

    async def _rest_is_read(self, request: Request) -> bool:
        """Read what is left of a body, within limits: many clients look for an answer when they have sent all."""
        size, more = 0, request.method == "POST" and not request.scope.get("read", False)
        if more and _promised(request) > 2 * self.limits.body:
            return False
        while more and size <= self.limits.body:
            message = await request.receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        return not more

    async def stop_the_late(self) -> None:
        """Cancel requests that take too long, for ever: one look now and then, not a timer for each."""
        while True:
            await asyncio.sleep(min(1.0, self.limits.seconds / 4))
            latest = time.perf_counter() - self.limits.seconds
            for task in [task for task, start in self._running.items() if start < latest]:
                self._late.add(task)
                task.cancel()

    async def body(self, request: Request) -> bytes:
        """The body, no longer than it may be."""
        parts, size, more = [], 0, True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            request.scope["read"] = not more
            if size > self.limits.body or (more and _promised(request) > self.limits.body):
                raise Refusal(413, f"the body has more than {self.limits.body} bytes")
            parts.append(part)
        return b"".join(parts)


class Answer(Response):
    """JSON, arrays too. Its headers are made by hand: Starlette's own way takes three times as long."""

    def __init__(self, content: Any, status: int = 200) -> None:
        self.body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        self.status_code, self.background = status, None
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]


def refused(status: int, message: str) -> Response:
    """What says that, and why, there is no answer."""
    if len(message) > _LONGEST:  # it may quote what came
        message = message[:_LONGEST] + " ..."
    response = Answer({"error": message}, status)
    if status == 408:  # there may be more of the body to come, which nobody reads
        response.headers["connection"] = "close"
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _host(request: Request) -> bytes:
    """The name that the server was asked under, without the port."""
    for header, value in request.scope["headers"]:  # Starlette's own way to a header takes ten times as long
        if header == b"host":
            name: bytes = value
            return name[: name.find(b"]") + 1] if name.startswith(b"[") else name.partition(b":")[0]
    return b""


def _promised(request: Request) -> int:
    """How long the body is said to be."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _log(request: Request, response: Response, action: str, seconds: float) -> None:
    level = logging.WARNING if response.status_code >= 400 else logging.DEBUG
    fields = {
        "action": action,
        "path": request.scope["path"],
        "status": response.status_code,
        "milliseconds": round(1e3 * seconds, 3),
        "client": request.client.host if request.client else None,
    }
    if response.status_code >= 400:
        fields["error"] = bytes(response.body).decode()
    requests_log.log(level, "request", extra={"fields": fields})
