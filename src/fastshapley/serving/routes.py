"""The routing table: the addresses of all protocols, and those of the server itself and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.responses import Response

from fastshapley.serving.kserve_v1 import KSERVE_V1
from fastshapley.serving.kserve_v2 import KSERVE_V2
from fastshapley.serving.middleware import Endpoint, Handler, RequestMiddleware
from fastshapley.serving.model_loader import ServedModel
from fastshapley.serving.openapi import openapi_document
from fastshapley.serving.request import ServerRequest
from fastshapley.serving.responses import JsonResponse
from fastshapley.serving.rows_handler import RowsHandler, find_model
from fastshapley.serving.server_state import ServerState
from fastshapley.serving.serving_protocol import Protocol
from fastshapley.serving.static_page import static_files

PROTOCOLS: tuple[Protocol, ...] = (KSERVE_V1, KSERVE_V2)  # A new protocol is added here.

_PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PAGE_PATHS = {"index.html": "/", "docs.html": "/docs"}  # All other files have their name as their path.


@dataclass(frozen=True)
class RoutingEntry:
    """One address of the server.

    Parameters
    ----------
    method : str
        HTTP method.
    path : str
        Address, possibly with ``{name}`` for a model.
    endpoint : callable
        Answers a Starlette request and the name of a model.
    """

    method: str
    path: str
    endpoint: Endpoint


def routing_table(state: ServerState, middleware: RequestMiddleware) -> list[RoutingEntry]:
    """Return all addresses of a server.

    Parameters
    ----------
    state : ServerState
        The server's models, limits and counters.
    middleware : RequestMiddleware
        What every request passes through.

    Returns
    -------
    entries : list of RoutingEntry
        The addresses.
    """
    rows_handler = RowsHandler(state)
    table = []
    for protocol in PROTOCOLS:
        table += list(_protocol_entries(protocol, state, middleware, rows_handler))
    return [*table, *_model_file_entries(state, middleware), *_server_entries(state, middleware)]


def _protocol_entries(
    protocol: Protocol, state: ServerState, middleware: RequestMiddleware, rows_handler: RowsHandler
) -> Iterator[RoutingEntry]:
    for rows in protocol.rows_routes:
        yield RoutingEntry("POST", rows.path, middleware.protected(rows.action, rows_handler.handler(rows)))
    for server in protocol.server_routes:
        wrap = middleware.public if server.public else middleware.protected
        yield RoutingEntry("GET", server.path, wrap(server.action, _server_handler(state, server.respond)))
    for model in protocol.model_routes:
        handler = _model_handler(state, model.respond)
        yield RoutingEntry("GET", model.path, middleware.protected(model.action, handler))


def _model_file_entries(state: ServerState, middleware: RequestMiddleware) -> Iterator[RoutingEntry]:
    """Yield what the page downloads about a model."""

    def graph(model: ServedModel) -> Response:
        return Response(model.data, media_type="application/octet-stream")

    def rows(model: ServedModel) -> Response:
        examples = state.example_rows.get(model.name, ())
        # A reloaded model may have other columns than the rows.
        return JsonResponse([row for row in examples if list(row) == model.graph.columns])

    graph_handler, rows_handler = _model_handler(state, graph), _model_handler(state, rows)
    yield RoutingEntry("GET", "/models/{name}.onnx", middleware.protected("graph", graph_handler))
    yield RoutingEntry("GET", "/models/{name}.rows.json", middleware.protected("rows", rows_handler))


def _server_entries(state: ServerState, middleware: RequestMiddleware) -> Iterator[RoutingEntry]:
    """Yield the counters, the OpenAPI document and the files of the page."""

    def metrics(state: ServerState) -> Response:
        return Response(state.counters.text(), headers={"content-type": state.counters.content_type})

    def openapi(state: ServerState) -> Response:
        return JsonResponse(openapi_document(state, PROTOCOLS))

    yield RoutingEntry("GET", "/metrics", middleware.protected("metrics", _server_handler(state, metrics)))
    yield RoutingEntry("GET", "/openapi.json", middleware.protected("openapi", _server_handler(state, openapi)))
    for name, content in static_files().items():
        action = "docs" if name == "docs.html" else "page"
        path = _PAGE_PATHS.get(name, f"/{name}")
        yield RoutingEntry("GET", path, middleware.public(action, _file_handler(name, content)))


def _model_handler(state: ServerState, respond: Callable[[ServedModel], Response]) -> Handler:
    async def handler(request: ServerRequest) -> Response:
        return respond(find_model(state, request))

    return handler


def _server_handler(state: ServerState, respond: Callable[[ServerState], Response]) -> Handler:
    async def handler(request: ServerRequest) -> Response:
        return respond(state)

    return handler


def _file_handler(name: str, content: bytes) -> Handler:
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]

    async def handler(request: ServerRequest) -> Response:
        return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

    return handler
