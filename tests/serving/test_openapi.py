"""The OpenAPI document of a server."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.serving.model_store import ModelStore
from fastshapley.serving.openapi import openapi_document
from fastshapley.serving.request import Limits
from fastshapley.serving.routes import PROTOCOLS
from fastshapley.serving.server_state import ServerState
from fastshapley.version import __version__


@pytest.fixture(scope="module")
def models(exported: Any) -> ModelStore:
    return ModelStore({"second": exported.graph, "people": exported.graph})


def test_every_protocol_describes_the_server_and_each_model(models: ModelStore) -> None:
    document = openapi_document(ServerState(models, Limits(rows=7), {}), PROTOCOLS)
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == __version__
    paths = [path for protocol in PROTOCOLS for path in protocol.paths]
    assert document["paths"].keys() == {
        path.format(name=name, version=models[name].version) for path in paths for name in models
    }
    explain = document["paths"]["/v1/models/people:explain"]["post"]
    schema = explain["requestBody"]["content"]["application/json"]["schema"]
    assert schema["anyOf"][0]["properties"]["instances"]["maxItems"] == 7


def test_a_protocol_that_is_not_listed_is_not_described(models: ModelStore) -> None:
    document = openapi_document(ServerState(models, Limits(), {}), PROTOCOLS[:1])
    assert all(path.startswith("/v1") for path in document["paths"])


@pytest.mark.parametrize("needs_token", [True, False])
def test_the_token_is_described_if_there_is_one(needs_token: bool, models: ModelStore) -> None:
    document = openapi_document(ServerState(models, Limits(), {}, needs_token=needs_token), PROTOCOLS)
    assert ("security" in document) == needs_token
    assert ("components" in document) == needs_token
