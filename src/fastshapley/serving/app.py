"""The server's application: puts models, middleware and the routing table together. It does not import torch."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fastshapley.serving.middleware import Endpoint, RequestMiddleware
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.request import Limits
from fastshapley.serving.responses import error_response
from fastshapley.serving.routes import RoutingEntry, routing_table
from fastshapley.serving.server_state import ServerState


def create_app(
    models: ModelStore,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
    example_rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> ServingApp:
    """Create the server's application.

    Parameters
    ----------
    models : ModelStore
        The models to serve.
    limits : Limits, optional
        Limits on each request.
    token : str, optional
        Bearer token that clients must send.
    origins : sequence of str, optional
        Origins of other sites whose pages may use the server.
    hosts : sequence of str, optional
        Host names that the server answers to, by default all. This protects a server without a token from pages
        whose host name was made to lead to this machine.
    example_rows : mapping, optional
        Rows to choose from on the page, by model.

    Returns
    -------
    app : ServingApp
        The application.
    """
    state = ServerState(models, limits or Limits(), example_rows or {}, needs_token=token is not None)
    middleware = RequestMiddleware(state, token=token, hosts=hosts)
    return ServingApp(state, middleware, routing_table(state, middleware), origins)


class ServingApp(Starlette):
    """The application of one server.

    Requests with rows come thousands of times per second. They are dispatched by their path, without Starlette's
    routing, unless other origins are allowed.

    Parameters
    ----------
    server_state : ServerState
        What the handlers share.
    middleware : RequestMiddleware
        What every request passes through.
    table : sequence of RoutingEntry
        The addresses.
    origins : sequence of str
        Origins of other sites whose pages may use the server.
    """

    def __init__(
        self,
        server_state: ServerState,
        middleware: RequestMiddleware,
        table: Sequence[RoutingEntry],
        origins: Sequence[str],
    ) -> None:
        self.server_state, self._request_middleware = server_state, middleware
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
        super().__init__(
            routes=[
                Route(entry.path, _starlette_endpoint(entry.endpoint), methods=[entry.method]) for entry in table
            ],
            middleware=[cors] if origins else [],
            exception_handlers={404: _not_found, 405: _wrong_method},
            lifespan=self._lifespan,
        )
        self.router.redirect_slashes = False  # A redirect would lead to whatever host the request names.
        self._direct: dict[str, tuple[str, Endpoint]] = {}
        if not origins:
            self._direct = {
                entry.path.format(name=name): (name, entry.endpoint)
                for entry in table
                if entry.method == "POST" and "{version}" not in entry.path
                for name in server_state.models
            }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI defines it."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        direct = self._direct.get(scope["path"]) if is_post else None
        if direct is None:
            await super().__call__(scope, receive, send)
            return
        name, endpoint = direct
        response = await endpoint(Request(scope, receive, send), name)
        await response(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Watch files and time limits while the server runs."""
        models, counters = self.server_state.models, self.server_state.counters
        gc.collect()
        gc.freeze()  # What exists now stays until the end: garbage collection need not search it.
        watching = asyncio.create_task(models.watch(counters.count_reload))
        tasks = [asyncio.create_task(self._request_middleware.cancel_overdue())]
        tasks += [asyncio.create_task(predictor.watch()) for predictor in models.predictors]
        yield
        for task in tasks:
            task.cancel()
        await models.close()
        await watching


def _starlette_endpoint(endpoint: Endpoint) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def respond(request: Request) -> Response:
        return await endpoint(request, request.path_params.get("name", ""))

    return respond


async def _not_found(request: Request, error: Exception) -> Response:
    return error_response(404, "this address does not exist: /docs lists all addresses")


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = error_response(405, f"this address does not take {request.method}")
    response.headers.update(getattr(error, "headers", None) or {})
    return response
