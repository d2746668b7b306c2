"""The server's application: KServe's protocols, and a page, around exported explainers. It imports no torch."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fastshapley.errors import InputError
from fastshapley.export.graph import Array
from fastshapley.serving import kserve
from fastshapley.serving.batching import TOGETHER, Results
from fastshapley.serving.counters import Metrics
from fastshapley.serving.middleware import Answer, Guard, Handler, Limits, Refusal, refused
from fastshapley.serving.model_store import Model, Models
from fastshapley.serving.openapi import describe
from fastshapley.serving.static_page import static_files
from fastshapley.version import __version__

_SMALL = 64 * 1024  # bytes of a body that is read on the event loop
_LARGE = 2  # larger ones that are worked on at a time
_POLICY = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

Write = Callable[[Results], dict[str, Any]]
Read = Callable[[Any, Model], tuple[tuple[Array, ...], Write]]


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
    metrics = Metrics()
    models.reloaded = metrics.reload
    guard = Guard(limits or Limits(), metrics, models, token=token, hosts=hosts)
    service = Service(models, guard, metrics, rows or {})
    open_, guarded = guard.open, guard.guarded

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = service
        gc.collect()
        gc.freeze()  # what is here now stays: it need not be looked through again and again for what is left over
        watch, late = asyncio.create_task(models.watch()), asyncio.create_task(guard.stop_the_late())
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
        guard: Guard,
        metrics: Metrics,
        rows: Mapping[str, Sequence[Mapping[str, Any]]],
    ) -> None:
        self.models, self._guard, self._metrics, self._rows = models, guard, metrics, rows
        self._large = asyncio.Semaphore(_LARGE)
        self.stopping = False

    def model(self, request: Request) -> Model:
        try:
            return self.models[request.path_params["name"]]
        except KeyError:
            raise Refusal(404, f"there is no such model; there are {sorted(self.models)}") from None

    def explained(self, read: Read) -> Handler:
        """A handler of rows: ``read`` makes arrays of a request's body, and says how to answer."""

        async def explain(request: Request) -> Response:
            model, body = self.model(request), await self._guard.body(request)
            if len(body) <= _SMALL:
                return await self._explained(model, *read(_parsed(body), model))
            async with self._large:  # some at a time, in threads: others are answered meanwhile
                return await self._explained(model, *await asyncio.to_thread(lambda: read(_parsed(body), model)))

        return explain

    async def _explained(self, model: Model, arrays: tuple[Array, ...], write: Write) -> Response:
        found = await model.run(*arrays)
        if "finite" in found and not found.pop("finite").all():
            raise InputError("a row has numbers so far from those at fit that the network overflows")
        self._metrics.rows(model.name, len(arrays[0]))
        if len(arrays[0]) <= TOGETHER:
            return Answer(write(found))
        return await asyncio.to_thread(lambda: Answer(write(found)))

    # V1

    def read_explain(self, body: Any, model: Model) -> tuple[tuple[Array, ...], Write]:
        return self._read_v1(body, model), lambda found: kserve.write_v1(found, model.graph, explain=True)

    def read_predict(self, body: Any, model: Model) -> tuple[tuple[Array, ...], Write]:
        return self._read_v1(body, model), lambda found: kserve.write_v1(found, model.graph, explain=False)

    def _read_v1(self, body: Any, model: Model) -> tuple[Array, ...]:
        return kserve.read_v1(body, model.graph, self._guard.limits.rows)

    async def list_v1(self, request: Request) -> Response:
        return Answer({"models": sorted(self.models)})

    async def show_v1(self, request: Request) -> Response:
        return Answer({"name": self.model(request).name, "ready": True})

    # V2

    def read_infer(self, body: Any, model: Model) -> tuple[tuple[Array, ...], Write]:
        wanted = kserve.wanted_v2(body, model.graph)
        arrays = kserve.read_v2(body, model.graph, self._guard.limits.rows)
        return arrays, lambda found: kserve.write_v2(found, wanted, model.name, body.get("id"))

    async def show_server(self, request: Request) -> Response:
        return Answer({"name": "fastshapley", "version": __version__, "extensions": []})

    async def live(self, request: Request) -> Response:
        return Answer({"live": True})

    async def ready(self, request: Request) -> Response:
        return Answer({"ready": not self.stopping}, 503 if self.stopping else 200)

    async def show_v2(self, request: Request) -> Response:
        return Answer(kserve.about_v2(self.model(request).name, self.model(request).graph))

    async def ready_v2(self, request: Request) -> Response:
        return Answer({"name": self.model(request).name, "ready": True})

    # What is about the server, and what the page needs

    async def graph(self, request: Request) -> Response:
        return Response(self.model(request).data, media_type="application/octet-stream")

    async def rows(self, request: Request) -> Response:
        model = self.model(request)
        examples = self._rows.get(model.name, ())
        return Answer([row for row in examples if list(row) == model.graph.columns])  # it may be another by now

    async def show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": self._metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        return Answer(describe(self.models, self._guard.limits.rows, token=self._guard.token is not None))


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is no JSON: {error}") from None


def _file(name: str, files: Mapping[str, bytes]) -> Handler:
    kind = _TYPES[name.rpartition(".")[2]]

    async def send(request: Request) -> Response:
        return Response(files[name], media_type=kind, headers={**_POLICY, "cache-control": "no-cache"})

    return send


async def _nothing_there(request: Request, error: Exception) -> Response:
    return refused(404, "there is nothing here; /docs says what there is")


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = refused(405, f"{request.method} is not for this address")
    response.headers.update(getattr(error, "headers", None) or {})
    return response
