"""The server's application: KServe's protocols, and a page, around exported explainers. It imports no torch."""

from __future__ import annotations

import asyncio
import gc
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

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
_LARGE = 2  # larger ones that are worked on at a time
_LONGEST = 1000  # characters of an error
_POLICY = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

Handler = Callable[[Request], Awaitable[Response]]
Write = Callable[[Results], dict[str, Any]]
Read = Callable[[Any, Model], tuple[tuple[Array, ...], Write]]


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


def create_app(
    models: Models,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
    rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Starlette:
    """The application. ``origins`` are those whose pages may use it; ``rows`` are shown on the page, by model.

    ``hosts`` are the names it answers to, by default all: a page whose name is made to lead here has another one.
    """
    service = Service(models, limits or Limits(), token, hosts, rows or {})
    open_, guarded = service.open, service.guarded

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = service
        gc.collect()
        gc.freeze()  # what is here now stays: it need not be looked through again and again for what is left over
        watch, late = asyncio.create_task(models.watch()), asyncio.create_task(service.stop_the_late())
        yield
        late.cancel()
        await models.close()
        await watch

    files = static_files()
    posts = {
        "/v1/models/{name}:explain": guarded("explain", service.explained(service.read_explain)),
        "/v1/models/{name}:predict": guarded("predict", service.explained(service.read_predict)),
        "/v2/models/{name}/infer": guarded("infer", service.explained(service.read_infer)),
    }
    routes = [
        *(("POST", path, handler) for path, handler in posts.items()),
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
    application = _Application(
        routes=[Route(path, handler, methods=[method]) for method, path, handler in routes],
        middleware=[cors] * bool(origins),
        exception_handlers={404: _nothing_there, 405: _wrong_method},
        lifespan=lifespan,
    )
    if not origins:
        application.direct = {
            path.format(name=name): (name, handler) for path, handler in posts.items() for name in models
        }
    return application


class _Application(Starlette):
    """What is asked for thousands of times a second goes by its path to its handler, past Starlette's routing."""

    direct: Mapping[str, tuple[str, Handler]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.direct.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await super().__call__(scope, receive, send)
            return
        name, handler = found
        scope["path_params"] = {"name": name}
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)


class Service:
    """The handlers, and what they share."""

    def __init__(
        self,
        models: Models,
        limits: Limits,
        token: str | None,
        hosts: Sequence[str] | None,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
    ) -> None:
        self.models, self.limits, self._rows = models, limits, rows
        self._hosts = None if hosts is None else [name.encode("latin-1") for name in hosts]
        self.metrics = Metrics()
        models.reloaded = self.metrics.reload
        self._running: dict[asyncio.Task[Any], float] = {}  # since when
        self._late: set[asyncio.Task[Any]] = set()
        self._large = asyncio.Semaphore(_LARGE)
        self._token = None if token is None else token.encode()
        self.stopping = False

    # What every request goes through

    def guarded(self, action: str, handler: Handler) -> Handler:
        """A handler behind the token, if there is one."""
        token = self._token

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
                response = _refused(408, f"the request took more than {self.limits.seconds:g} seconds")
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

    def _check_host(self, request: Request) -> None:
        assert self._hosts is not None
        if _host(request) not in self._hosts:
            names = ", ".join(name.decode("latin-1") for name in self._hosts)
            raise Refusal(421, f"this server answers to {names}")

    async def _failed(self, error: Exception, request: Request) -> Response:
        """What a client is told of an error."""
        match error:
            case kserve.TooManyRows():
                return _refused(413, str(error))
            case InputError():
                return _refused(400, str(error))
            case ClientDisconnect():
                return _refused(400, "the client left")
            case Refusal():
                response = _refused(error.status, str(error))
                if not await self._rest_is_read(request):
                    response.headers["connection"] = "close"
                return response
        logger.error("a request failed", exc_info=error)
        return _refused(500, "internal error")

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

    def model(self, request: Request) -> Model:
        try:
            return self.models[request.path_params["name"]]
        except KeyError:
            raise Refusal(404, f"there is no such model; there are {sorted(self.models)}") from None

    def explained(self, read: Read) -> Handler:
        """A handler of rows: ``read`` makes arrays of a request's body, and says how to answer."""

        async def explain(request: Request) -> Response:
            model, body = self.model(request), await self.body(request)
            if len(body) <= _SMALL:
                return await self._explained(model, *read(_parsed(body), model))
            async with self._large:  # some at a time, in threads: others are answered meanwhile
                return await self._explained(model, *await asyncio.to_thread(lambda: read(_parsed(body), model)))

        return explain

    async def _explained(self, model: Model, arrays: tuple[Array, ...], write: Write) -> Response:
        found = await model.run(*arrays)
        if "finite" in found and not found.pop("finite").all():
            raise InputError("a row has numbers so far from those at fit that the network overflows")
        self.metrics.rows(model.name, len(arrays[0]))
        if len(arrays[0]) <= TOGETHER:
            return _Answer(write(found))
        return await asyncio.to_thread(lambda: _Answer(write(found)))

    # V1

    def read_explain(self, body: Any, model: Model) -> tuple[tuple[Array, ...], Write]:
        return self._read_v1(body, model), lambda found: kserve.write_v1(found, model.graph, explain=True)

    def read_predict(self, body: Any, model: Model) -> tuple[tuple[Array, ...], Write]:
        return self._read_v1(body, model), lambda found: kserve.write_v1(found, model.graph, explain=False)

    def _read_v1(self, body: Any, model: Model) -> tuple[Array, ...]:
        return kserve.read_v1(body, model.graph, self.limits.rows)

    async def list_v1(self, request: Request) -> Response:
        return _Answer({"models": sorted(self.models)})

    async def show_v1(self, request: Request) -> Response:
        return _Answer({"name": self.model(request).name, "ready": True})

    # V2

    def read_infer(self, body: Any, model: Model) -> tuple[tuple[Array, ...], Write]:
        wanted = kserve.wanted_v2(body, model.graph)
        arrays = kserve.read_v2(body, model.graph, self.limits.rows)
        return arrays, lambda found: kserve.write_v2(found, wanted, model.name, body.get("id"))

    async def show_server(self, request: Request) -> Response:
        return _Answer({"name": "fastshapley", "version": __version__, "extensions": []})

    async def live(self, request: Request) -> Response:
        return _Answer({"live": True})

    async def ready(self, request: Request) -> Response:
        return _Answer({"ready": not self.stopping}, 503 if self.stopping else 200)

    async def show_v2(self, request: Request) -> Response:
        return _Answer(kserve.about_v2(self.model(request).name, self.model(request).graph))

    async def ready_v2(self, request: Request) -> Response:
        return _Answer({"name": self.model(request).name, "ready": True})

    # What is about the server, and what the page needs

    async def graph(self, request: Request) -> Response:
        return Response(self.model(request).data, media_type="application/octet-stream")

    async def rows(self, request: Request) -> Response:
        model = self.model(request)
        examples = self._rows.get(model.name, ())
        return _Answer([row for row in examples if list(row) == model.graph.columns])  # it may be another by now

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": self.metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        return _Answer(describe(self.models, self.limits.rows, token=self._token is not None))


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is no JSON: {error}") from None


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


class _Answer(Response):
    """JSON, arrays too. Its headers are made by hand: Starlette's own way takes three times as long."""

    def __init__(self, content: Any, status: int = 200) -> None:
        self.body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        self.status_code, self.background = status, None
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]


def _refused(status: int, message: str) -> Response:
    if len(message) > _LONGEST:  # it may quote what came
        message = message[:_LONGEST] + " ..."
    response = _Answer({"error": message}, status)
    if status == 408:  # there may be more of the body to come, which nobody reads
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
