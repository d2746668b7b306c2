"""The routing table."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from starlette.requests import Request
from starlette.responses import Response

from fastshapley.serving.middleware import RequestMiddleware
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.request import Limits
from fastshapley.serving.routes import PROTOCOLS, RoutingEntry, routing_table
from fastshapley.serving.server_state import ServerState

Table = dict[tuple[str, str], RoutingEntry]


@pytest.fixture
def state(exported: Any) -> ServerState:
    rows: list[dict[str, Any]] = [
        {"age": 1, "income": 2.0, "job": "chef", "city": None, "member": True},
        {"other": 1},
    ]
    return ServerState(ModelStore({"people": exported.graph}), Limits(), {"people": rows}, needs_token=True)


@pytest.fixture
def table(state: ServerState) -> Table:
    entries = routing_table(state, RequestMiddleware(state, token="secret"))
    assert len({(entry.method, entry.path) for entry in entries}) == len(entries)
    return {(entry.method, entry.path): entry for entry in entries}


def get(table: Table, path: str, *, token: str | None = "secret") -> Response:
    """Return the answer to a GET request."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "client": None}
    return asyncio.run(table["GET", path].endpoint(Request(scope), "people"))


def test_the_table_has_every_address_of_every_protocol(table: Table) -> None:
    for protocol in PROTOCOLS:
        posts = {route.path for route in protocol.rows_routes}
        assert {("POST" if path in posts else "GET", path) for path in protocol.paths} <= table.keys()


def test_only_public_addresses_answer_without_a_token(table: Table) -> None:
    public = {path for method, path in table if method == "GET" and get(table, path, token=None).status_code == 200}
    assert {"/", "/docs", "/page.js", "/page.css", "/v2", "/v2/health/live", "/v2/health/ready"} <= public
    assert public.isdisjoint(
        {"/metrics", "/openapi.json", "/v1/models", "/models/{name}.onnx", "/v2/models/{name}"}
    )


def test_files_of_the_page_have_their_media_type_and_a_policy(table: Table) -> None:
    for path, media_type in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        response = get(table, path)
        assert response.headers["content-type"].startswith(media_type)
        assert response.headers["content-security-policy"].startswith("default-src 'self'")


def test_only_example_rows_with_the_columns_of_the_model_are_sent(table: Table) -> None:
    rows = json.loads(bytes(get(table, "/models/{name}.rows.json").body))
    assert [row["age"] for row in rows] == [1]


def test_a_stopping_server_is_not_ready(table: Table, state: ServerState) -> None:
    assert get(table, "/v2/health/ready").status_code == 200
    state.stopping = True
    response = get(table, "/v2/health/ready")
    assert (response.status_code, json.loads(bytes(response.body))) == (503, {"ready": False})
