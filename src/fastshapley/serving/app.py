"""The server's application: KServe's protocols, and a page, around exported explainers. It imports no torch."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fastshapley.errors import InputError
from fastshapley.graph import Array
from fastshapley.serving import kserve
from fastshapley.serving.batching import TOGETHER, Results
from fastshapley.serving.metrics import Metrics
from fastshapley.serving.models import Model, Models
from fastshapley.serving.openapi import describe
from fastshapley.serving.page import static_files
from fastshapley.version import __version__

logger = logging.getLogger(__name__)
requests_log = logging.getLogger("fastshapley.requests")

_SMALL = 64 * 1024  # bytes of a body that is read on the event loop
_POLICY = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """What a request may be: bytes of its body, rows, and seconds until it is answered."""

    body: int = 16_000_000
    rows: int = 10_000
    seconds: float = 30.0


class Refusal(Exception):
    """A request that is not answered, with the status and the words that say why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_app(
    models: Models,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    origins: Sequence[str] = (),
    rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Starlette:
    """The application. ``origins`` are those whose pages may use it; ``rows`` are shown on the page, by model."""
    service = Service(models, limits or Limits(), token, rows or {})
    open_, guarded = service.open, service.guarded

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(models.watch()), asyncio.create_task(service.stop_the_late())]
        yield
        for task in tasks:
            task.cancel()

    files = static_files()
    routes = [
        ("POST", "/v1/models/{name}:explain", guarded("explain", service.explain)),
        ("POST", "/v1/models/{name}:predict", guarded("predict", service.predict)),
        ("POST", "/v2/models/{name}/infer", guarded("infer", service.infer)),
        ("GET", "/v1/models", guarded("list", service.list_v1)),
        ("GET", "/v1/models/{name}", guarded("show", service.show_v1)),
        ("GET", "/v2", open_("server", service.show_server)),
        ("GET", "/v2/health/live", open_("live", service.live)),
        ("GET", "/v2/health/ready", open_("ready", service.ready)),
        ("GET", "/v2/models/{name}", guarded("metadata", service.show_v2)),
        ("GET", "/v2/models/{name}/ready", guarded("ready", service.ready_v2)),
        ("GET", "/models/{name}.onnx", guarded("graph", service.graph)),
        ("GET", "/models/{name}.rows.json", guarded("rows", service.rows)),
        ("GET", "/metrics", guarded("metrics", service.show_metrics)),
        ("GET", "/openapi.json", guarded("openapi", service.openapi)),
        ("GET", "/", open_("page", _file("index.html", files))),
        ("GET", "/docs", open_("docs", _file("docs.html", files))),
        *(("GET", f"/{name}", open_("page", _file(name, files))) for name in files if not name.endswith(".html")),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
    )
    return Starlette(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in routes],
        middleware=[cors] if origins else [],
        exception_handlers={404: _nothing_there, 405: _wrong_method},
        lifespan=lifespan,
    )


class Service:
    """The handlers, and what they share."""

    def __init__(
        self, models: Models, limits: Limits, token: str | None, rows: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> None:
        self.models, self.limits, self._rows = models, limits, rows
        self.metrics = Metrics()
        models.reloaded = self.metrics.reload
        self._running: dict[asyncio.Task[Any], float] = {}  # since when
        self._late: set[asyncio.Task[Any]] = set()
        self._token = None if token is None else f"Bearer {token}".encode()

    # What every request goes through

    def guarded(self, action: str, handler: Handler) -> Handler:
        """A handler behind the token, if there is one."""
        token = self._token

        async def allowed(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("latin-1")
            if token is not None and not hmac.compare_digest(given, token):
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
                response = await handler(request)
            except Refusal as refusal:
                response = _refused(refusal.status, str(refusal))
            except InputError as error:
                response = _refused(400, str(error))
            except asyncio.CancelledError:
                if task not in self._late:
                    raise
                task.uncancel()
                response = _refused(408, f"the request took more than {self.limits.seconds:g} seconds")
            except ClientDisconnect:
                response = _refused(400, "the client left")
            except Exception:
                logger.exception("a request failed")
                response = _refused(500, "internal error")
            finally:
                del self._running[task]
                self._late.discard(task)
            seconds = time.perf_counter() - start
            model = request.path_params.get("name", "")
            known = model if model in self.models else ""  # clients make up names, which are not to fill the memory
            self.metrics.request(known, action, response.status_code, seconds)
            if response.status_code >= 400 or requests_log.isEnabledFor(logging.DEBUG):
                _log(request, response, action, seconds)
            return response

        return answered

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
            if size > self.limits.body or (more and _promised(request) > self.limits.body):
                raise Refusal(413, f"the body has more than {self.limits.body} bytes")
            parts.append(part)
        return b"".join(parts)

    def model(self, request: Request) -> Model:
        try:
            return self.models[request.path_params["name"]]
        except KeyError:
            raise Refusal(404, f"there is no such model; there are {sorted(self.models)}") from None

    async def computed(self, model: Model, arrays: tuple[Array, ...]) -> Results:
        if len(arrays[0]) > self.limits.rows:
            raise Refusal(413, f"there are {len(arrays[0])} rows, and {self.limits.rows} are the most")
        found = await model.run(*arrays)
        if not found.pop("finite").all():
            raise InputError("a row has numbers so far from those at fit that the network overflows")
        self.metrics.rows(model.name, len(arrays[0]))
        return found

    # V1

    async def explain(self, request: Request) -> Response:
        return await self._act(request, explain=True)

    async def predict(self, request: Request) -> Response:
        return await self._act(request, explain=False)

    async def _act(self, request: Request, *, explain: bool) -> Response:
        model, body = self.model(request), await self.body(request)
        if len(body) <= _SMALL:
            arrays = kserve.read_v1(_parsed(body), model.graph)
        else:
            arrays = await asyncio.to_thread(lambda: kserve.read_v1(_parsed(body), model.graph))
        found = await self.computed(model, arrays)
        if len(arrays[0]) <= TOGETHER:
            return _answer(kserve.write_v1(found, model.graph, explain=explain))
        return await asyncio.to_thread(lambda: _answer(kserve.write_v1(found, model.graph, explain=explain)))

    async def list_v1(self, request: Request) -> Response:
        return _answer({"models": sorted(self.models)})

    async def show_v1(self, request: Request) -> Response:
        return _answer({"name": self.model(request).name, "ready": True})

    # V2

    async def infer(self, request: Request) -> Response:
        model, body = self.model(request), await self.body(request)

        def read() -> tuple[Any, tuple[Array, ...]]:
            parsed = _parsed(body)
            return parsed, kserve.read_v2(parsed, model.graph)

        parsed, arrays = read() if len(body) <= _SMALL else await asyncio.to_thread(read)
        found = await self.computed(model, arrays)
        if len(arrays[0]) <= TOGETHER:
            return _answer(kserve.write_v2(found, parsed, model.name))
        return await asyncio.to_thread(lambda: _answer(kserve.write_v2(found, parsed, model.name)))

    async def show_server(self, request: Request) -> Response:
        return _answer({"name": "fastshapley", "version": __version__, "extensions": []})

    async def live(self, request: Request) -> Response:
        return _answer({"live": True})

    async def ready(self, request: Request) -> Response:
        return _answer({"ready": True})

    async def show_v2(self, request: Request) -> Response:
        return _answer(kserve.about_v2(self.model(request).name, self.model(request).graph))

    async def ready_v2(self, request: Request) -> Response:
        return _answer({"name": self.model(request).name, "ready": True})

    # What is about the server, and what the page needs

    async def graph(self, request: Request) -> Response:
        return Response(self.model(request).data, media_type="application/octet-stream")

    async def rows(self, request: Request) -> Response:
        return _answer(list(self._rows.get(self.model(request).name, ())))

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": self.metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        return _answer(describe(self.models, self.limits.rows, token=self._token is not None))


def _parsed(body: bytes) -> Any:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the body is no JSON: {error}") from None


def _promised(request: Request) -> int:
    """How long the body is said to be."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _answer(content: Any, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")


def _refused(status: int, message: str) -> Response:
    response = _answer({"error": message}, status)
    if status in (408, 413):  # there may be more of the body to come, which nobody reads
        response.headers["connection"] = "close"
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _file(name: str, files: Mapping[str, bytes]) -> Handler:
    kind = _TYPES[name.rpartition(".")[2]]

    async def send(request: Request) -> Response:
        return Response(files[name], media_type=kind, headers={**_POLICY, "cache-control": "no-cache"})

    return send


async def _nothing_there(request: Request, error: Exception) -> Response:
    return _refused(404, "there is nothing here; /docs says what there is")


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = _refused(405, f"{request.method} is not for this address")
    response.headers.update(getattr(error, "headers", None) or {})
    return response


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
