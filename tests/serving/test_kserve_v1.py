"""KServe's V1 protocol: from JSON values to arrays and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import records

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.batching import Batcher
from fastshapley.serving.kserve_v1 import KSERVE_V1, read_rows, write_explanations, write_predictions
from fastshapley.serving.model_loader import ServedModel
from fastshapley.serving.serving_protocol import TooManyRowsError

ROW = {"age": 40, "income": 31.5, "job": "chef", "city": "Bern", "member": True}


def served(graph: Graph) -> ServedModel:
    """Return a graph as the server has it."""
    return ServedModel("people", graph, b"", Batcher(graph), digest="0123456789abcdef" * 4)


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)


def test_a_row_may_be_an_object_a_list_or_the_whole_body(graph: Graph) -> None:
    (expected,) = read_rows({"instances": [ROW]}, graph, 100)
    for body in (ROW, {"instances": [list(ROW.values())]}):
        np.testing.assert_array_equal(read_rows(body, graph, 100)[0], expected)


@pytest.mark.parametrize("body", [None, 3, "rows", [], [ROW], {"instances": []}, {"instances": ROW}])
def test_bodies_without_rows_are_refused(body: Any, graph: Graph) -> None:
    with pytest.raises(InputError, match="the body must be"):
        read_rows(body, graph, 100)


def test_too_many_rows_are_refused_before_they_are_read(graph: Graph) -> None:
    with pytest.raises(TooManyRowsError, match="101 rows exceed the limit of 100"):
        read_rows({"instances": ["not a row"] * 101}, graph, 100)


def test_an_answer_has_one_explanation_per_row(graph: Graph, exported: Any) -> None:
    X = exported.X[:3]
    results = graph(graph.encode(records(X)))
    answer = write_explanations(results, graph)
    expected = exported.explainer(X, errors=True)
    for row, explanation in enumerate(answer["explanations"]):
        np.testing.assert_allclose(explanation["shap_values"], expected.values[row], atol=1e-5)
        np.testing.assert_allclose(explanation["base_values"], expected.base_values[row], atol=1e-5)
        np.testing.assert_allclose(explanation["error_std"], expected.error_std[row], atol=1e-5)
        total = np.sum(explanation["shap_values"], axis=0) + explanation["base_values"]
        np.testing.assert_allclose(answer["predictions"][row], total, atol=1e-5)
    assert len(answer["explanations"]) == 3
    assert answer["feature_names"] == list(exported.X.columns)
    assert answer["sums_to"] == "surrogate"
    assert write_explanations(results, graph, "mixed")["sums_to"] == "mixed"
    assert answer["output_names"] == ["0", "1"]


def test_predictions_have_no_explanations(graph: Graph, exported: Any) -> None:
    results = graph(graph.encode(records(exported.X[:3])))
    answer = write_predictions(results, graph)
    assert answer.keys() == {"predictions", "output_names", "sums_to"}
    assert answer["sums_to"] == "surrogate"
    np.testing.assert_array_equal(answer["predictions"], results["predictions"])


def test_outputs_of_the_model_are_read_if_the_graph_needs_them(baseline_graph: Path, exported: Any) -> None:
    graph, X = Graph(baseline_graph), exported.X[:2]
    outputs = [[0.25, 0.75], [-1.0, 1.0]]
    body = {"instances": records(X), "outputs": outputs}
    np.testing.assert_allclose(read_rows(body, graph, 100)[1], outputs)
    for bad in (None, [[1.0]], [["a", "b"]] * 2, [[1.0, float("nan")]] * 2):
        with pytest.raises(InputError, match="outputs"):
            read_rows({**body, "outputs": bad}, graph, 100)


def test_every_address_is_described(graph: Graph) -> None:
    described = {*KSERVE_V1.describe_server(), *KSERVE_V1.describe_model(served(graph), 100)}
    assert described == {path.format(name="people") for path in KSERVE_V1.paths}


def test_the_description_lists_columns_and_categories(graph: Graph) -> None:
    explain = KSERVE_V1.describe_model(served(graph), 100)["/v1/models/people:explain"]["post"]
    schema = explain["requestBody"]["content"]["application/json"]["schema"]
    row = schema["anyOf"][1]
    assert list(row["properties"]) == ["age", "income", "job", "city", "member"]
    assert row["properties"]["job"]["examples"] == ["chef", "clerk", "nurse"]
    assert schema["anyOf"][0]["properties"]["instances"]["maxItems"] == 100


def test_outputs_may_be_left_out_if_they_are_optional(conditional: Any) -> None:
    graph, X = Graph(conditional.graph), conditional.X[:2]
    body = {"instances": records(X)}
    assert np.isnan(read_rows(body, graph, 100)[1]).all()
    assert np.isnan(read_rows(ROW, graph, 100)[1]).all()
    given = {**body, "outputs": [[0.25, 0.75], None]}
    np.testing.assert_array_equal(read_rows(given, graph, 100)[1], [[0.25, 0.75], [np.nan, np.nan]])


def test_optional_outputs_are_described(conditional: Any) -> None:
    """An example without outputs is valid, and so are outputs with null."""
    jsonschema = pytest.importorskip("jsonschema")
    graph = Graph(conditional.graph)
    explain = KSERVE_V1.describe_model(served(graph), 100)["/v1/models/people:explain"]["post"]
    content = explain["requestBody"]["content"]["application/json"]
    example = content["example"]
    assert example.keys() == {"instances"}
    for outputs in ([[0.5, 0.5]], [None], [[None, 0.5]], None):
        jsonschema.validate({**example, "outputs": outputs}, content["schema"]["anyOf"][0])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**example, "outputs": [[0.5]]}, content["schema"]["anyOf"][0])
    answer = explain["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]["sums_to"]["enum"] == ["model", "surrogate", "mixed"]
    assert "sums_to" in answer["required"]
