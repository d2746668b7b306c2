"""Versions of explainers: answers tell theirs, and a file with another contract is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from problems import records
from servers import Server, serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
from fastshapley.export.graph import sealed
from fastshapley.serving.model_loader import ModelLoader
from fastshapley.serving.model_store import model_changes
from fastshapley.version import __version__

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
EXPLAIN, INFER = "/v1/models/people:explain", "/v2/models/people/infer"


@pytest.fixture(scope="module")
def served(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the graph, which tests replace."""
    return Path(shutil.copy(exported.graph, tmp_path_factory.mktemp("served") / "people.onnx"))


@pytest.fixture(scope="module")
def server(served: Path) -> Iterator[Server]:
    with serving(served) as running:
        yield running


@pytest.fixture
def body(exported: Any) -> dict[str, Any]:
    return {"instances": records(exported.X[:1])}


def tensors(body: dict[str, Any]) -> dict[str, Any]:
    """Return the same request as tensors."""
    kinds = {str: "BYTES", bool: "BOOL", int: "INT64", float: "FP64"}
    (row,) = body["instances"]
    return {
        "inputs": [
            {"name": name, "shape": [1], "datatype": kinds[type(value)], "data": [value]}
            for name, value in row.items()
        ]
    }


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def other_version(file: Path) -> bytes:
    """Return the same graph with another name, so that its digest differs."""
    model = onnx.load(file)
    del model.metadata_props[-1]  # the digest
    model.graph.name = f"{model.graph.name} again"
    return sealed(model.SerializeToString())


def headers_of(server: Server, path: str, body: Any) -> dict[str, str]:
    connection = server.connect()
    connection.request("POST", path, json.dumps(body).encode())
    response = connection.getresponse()
    assert response.status == 200, response.read()
    found = {name.lower(): value for name, value in response.getheaders()}
    connection.close()
    return found


def test_answers_tell_the_digest_of_the_explainers_file(server: Server, served: Path, body: Any) -> None:
    expected = digest(served)
    headers = headers_of(server, EXPLAIN, body)
    assert headers["x-model-digest"] == f"sha256:{expected}"
    assert headers["x-model-version"] == expected[:16]
    assert server.ask(INFER, tensors(body))[1]["model_version"] == expected[:16]
    metadata = server.ask("/v2/models/people")[1]
    assert metadata["versions"] == [expected[:16]]
    assert metadata["parameters"]["digest"] == f"sha256:{expected}"
    assert metadata["parameters"]["fastshapley_version"] == __version__


def test_addresses_may_name_the_version(server: Server, served: Path, body: Any) -> None:
    path = f"/v2/models/people/versions/{digest(served)[:16]}"
    assert server.ask(path)[1] == server.ask("/v2/models/people")[1]
    assert server.ask(f"{path}/ready") == (200, {"name": "people", "ready": True})
    assert server.ask(f"{path}/infer", tensors(body)) == server.ask(INFER, tensors(body))
    for other in ("/v2/models/people/versions/1", "/v2/models/people/versions/1/ready"):
        status, answer = server.ask(other)
        assert status == 404
        assert answer["error"] == f"this version of people is not served: its version is {digest(served)[:16]}"
    assert server.ask("/v2/models/people/versions/1/infer", tensors(body))[0] == 404


def test_a_new_version_replaces_the_old_one_unless_its_contract_differs(
    server: Server, served: Path, body: Any, groups_graph: Path, exported: Any
) -> None:
    new = served.with_name("new.onnx")
    new.write_bytes(other_version(served))
    expected = digest(new)[:16]
    new.replace(served)
    until(lambda: server.ask("/v2/models/people")[1]["versions"] == [expected])
    shutil.copy(groups_graph, new)
    new.replace(served)
    until(lambda: any("is refused" in entry["message"] for entry in server.log))
    assert server.ask("/v2/models/people")[1]["versions"] == [expected]
    assert server.ask(INFER, tensors(body))[1]["model_version"] == expected
    (message,) = (entry["message"] for entry in server.log if "is refused" in entry["message"])
    assert f"the new explainer is refused and version {expected} stays" in message
    assert "link: 'identity' before, 'log' now" in message
    assert "players: ['age', " in message
    assert "--allow-changes" in message
    assert b'fastshapley_reloads_total{model="people",result="refused"} 1.0' in server.ask("/metrics")[1]
    # The earlier explainer is not refused.
    shutil.copy(exported.graph, new)
    new.replace(served)
    until(lambda: server.ask("/v2/models/people")[1]["versions"] == [digest(exported.graph)[:16]])


def test_changes_can_be_allowed(exported: Any, groups_graph: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(exported.graph, tmp_path / "people.onnx"))
    with serving(file, "--allow-changes") as server:
        shutil.copy(groups_graph, tmp_path / "new.onnx")
        (tmp_path / "new.onnx").replace(file)
        until(lambda: server.ask("/v2/models/people")[1]["versions"] == [digest(groups_graph)[:16]])
        assert any("people has changed: players" in entry["message"] for entry in server.log)


def test_changes_are_found(exported: Any, conditional: Any, baseline_graph: Path, iris_graph: Path) -> None:
    loader = ModelLoader()
    people, other, baseline, iris = (
        loader.load("people", file) for file in (exported.graph, conditional.graph, baseline_graph, iris_graph)
    )
    assert model_changes(people, people) == []
    assert [change.partition(":")[0] for change in model_changes(people, baseline)] == [
        "link",
        "outputs of the model in each request",
    ]
    assert {change.partition(":")[0] for change in model_changes(people, iris)} >= {"columns", "outputs"}
    assert all(change.startswith("outputs:") for change in model_changes(people, other))
