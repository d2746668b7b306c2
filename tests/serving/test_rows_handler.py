"""Requests that send rows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import records

pytest.importorskip("starlette", reason="needs the serve extra")
from starlette.requests import Request
from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.serving.batching import MAX_BATCH_ROWS
from fastshapley.serving.kserve_v1 import KSERVE_V1
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.request import Limits, ServerRequest
from fastshapley.serving.responses import RequestError
from fastshapley.serving.rows_handler import RowsHandler, find_model
from fastshapley.serving.server_state import ServerState
from fastshapley.serving.serving_protocol import TooManyRowsError

EXPLAIN, PREDICT = KSERVE_V1.rows_routes


@pytest.fixture(scope="module")
def state(exported: Any) -> ServerState:
    return ServerState(ModelStore({"people": exported.graph}), Limits(rows=1000), {})


def request(body: bytes = b"", model: str = "people") -> ServerRequest:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    return ServerRequest(Request(scope, receive), model, Limits())


def respond(state: ServerState, body: Any, route: Any = PREDICT) -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def run() -> Response:
        return await RowsHandler(state).handler(route)(request(data))

    return asyncio.run(run())


@pytest.mark.parametrize("rows", [1, MAX_BATCH_ROWS + 1, 900])  # one row, more than a batch, a large body
def test_rows_are_explained_and_counted(rows: int, state: ServerState, exported: Any) -> None:
    state = replace(state, counters=type(state.counters)())
    X = exported.X.iloc[np.arange(rows) % len(exported.X)]
    answer = json.loads(bytes(respond(state, {"instances": records(X)}, EXPLAIN).body))
    values = [explanation["shap_values"] for explanation in answer["explanations"]]
    np.testing.assert_allclose(values, exported.explainer(X).values, atol=1e-5)
    assert f'fastshapley_rows_total{{model="people"}} {float(rows)}'.encode() in state.counters.text()


def test_a_body_that_is_not_json_is_refused(state: ServerState) -> None:
    with pytest.raises(InputError, match="the body is not JSON"):
        respond(state, b"{")


def test_the_limit_on_rows_is_kept(state: ServerState) -> None:
    with pytest.raises(TooManyRowsError, match="1001 rows exceed the limit of 1000"):
        respond(state, {"instances": [[0] * 5] * 1001})


def test_rows_that_overflow_the_network_are_refused(state: ServerState, exported: Any) -> None:
    row = {**records(exported.X[:1])[0], "income": -1e308, "age": 1e308}
    with pytest.raises(InputError, match="the network overflows"):
        respond(state, {"instances": [row]})


def test_an_unknown_model_is_refused(state: ServerState) -> None:
    assert find_model(state, request()).name == "people"
    with pytest.raises(RequestError, match=r"there is no such model: choose one of \['people'\]") as caught:
        find_model(state, request(model="nobody"))
    assert caught.value.status == 404
