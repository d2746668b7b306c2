"""KServe's protocols, as JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import explainer, records

from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving import kserve

ROW = {"age": 40, "income": 31.5, "job": "chef", "city": "Bern", "member": True}


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    return Graph(exported.graph)


def tensor(name: Any = "rows", **changes: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, 5], "datatype": "FP64", "data": [40, 31.5, 0, 1, 1], **changes}


def test_rows_by_name_by_place_and_alone(graph: Graph) -> None:
    (expected,) = kserve.read_v1({"instances": [ROW]}, graph, 100)
    for body in (ROW, {"instances": [list(ROW.values())]}):
        np.testing.assert_array_equal(kserve.read_v1(body, graph, 100)[0], expected)


@pytest.mark.parametrize("body", [None, 3, "rows", [], [ROW], {"instances": []}, {"instances": ROW}])
def test_bodies_that_are_none(body: Any, graph: Graph) -> None:
    with pytest.raises(InputError, match="the body must be"):
        kserve.read_v1(body, graph, 100)


def test_an_answer_has_a_part_for_each_row(graph: Graph, exported: Any) -> None:
    X = exported.X[:3]
    found = graph(graph.encode(records(X)))
    answer = kserve.write_v1(found, graph, explain=True)
    expected = exported.explainer(X, errors=True)
    for row in range(3):
        explanation = answer["explanations"][row]
        np.testing.assert_allclose(explanation["shap_values"], expected.values[row], atol=1e-5)
        np.testing.assert_allclose(explanation["base_values"], expected.base_values[row], atol=1e-5)
        np.testing.assert_allclose(explanation["error_std"], expected.error_std[row], atol=1e-5)
        total = np.sum(explanation["shap_values"], axis=0) + explanation["base_values"]
        np.testing.assert_allclose(answer["predictions"][row], total, atol=1e-5)
    assert answer["feature_names"] == list(exported.X.columns)
    assert answer["output_names"] == ["0", "1"]
    assert kserve.write_v1(found, graph, explain=False).keys() == {"predictions", "output_names"}


def test_tensors_of_rows_and_of_columns(graph: Graph) -> None:
    (expected,) = kserve.read_v1(ROW, graph, 100)
    codes = [0, 1]  # chef is the first, Bern the second
    data = [40, 31.5, *codes, 1]
    for body in (
        {"inputs": [tensor(data=data)]},
        {"inputs": [tensor(data=[data])]},
        {"inputs": [tensor(data=data, datatype="FP32")], "id": "7"},
        {"inputs": [tensor(name, shape=[1], datatype="BYTES", data=[value]) for name, value in ROW.items()]},
        {"inputs": [tensor(name, shape=[1, 1], datatype="BYTES", data=[value]) for name, value in ROW.items()]},
    ):
        np.testing.assert_array_equal(kserve.read_v2(body, graph, 100)[0], expected)
    gaps = kserve.read_v2({"inputs": [tensor(data=[None] * 5)]}, graph, 100)[0]
    assert np.isnan(gaps).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "the body must be"),
        ([1], "the body must be"),
        ([], "needs an input called rows"),
        ([tensor(), tensor()], "a name of its own"),
        ([tensor(name=3)], "a name of its own"),
        ([tensor(datatype="FP8")], "rows has the datatype 'FP8'"),
        ([tensor(shape=[1, -5])], "rows has a shape that is none"),
        ([tensor(shape="5")], "rows has a shape that is none"),
        ([tensor(shape=[1] * 65, data=[1])], "rows has a shape that is none"),
        ([tensor(shape=[10**4000, 10**4000])], "rows has a shape that is none"),
        ([tensor(shape=[2, 5])], r"rows has 5 values, and its shape \[2, 5\] is that of 10"),
        ([tensor(shape=[2**30, 2**30])], "rows has 5 values"),
        ([tensor(shape=[0, 5], data=[])], "there are no rows"),
        ([tensor(shape=[5])], r"rows must be of shape \(n, 5\)"),
        ([tensor(data=["40", 31.5, 0, 1, 1])], "rows must be numbers"),
        ([tensor(data=[1e999, 31.5, 0, 1, 1])], "rows must be finite"),
        ([tensor(data=[10**400, 31.5, 0, 1, 1])], "rows must be numbers"),
        ([tensor(data=[40, 31.5, 7, 1, 1])], "column 'job' has categories: pass their codes, 0 to 2"),
        ([tensor("age", shape=[1], data=[3])], "lacks the columns"),
        ([tensor("age", shape=[], data=[3])], "must each be of shape"),
        ([tensor("age", shape=[1], data=[3]), tensor("job", shape=[2], data=[1, 2])], "with one n"),
    ],
)
def test_bad_tensors(inputs: Any, message: str, graph: Graph) -> None:
    with pytest.raises(InputError, match=message):
        kserve.read_v2({"inputs": inputs}, graph, 100)


def test_deep_lists_do_not_exhaust_the_stack(graph: Graph) -> None:
    data: Any = 1
    for _ in range(900):
        data = [data]
    with pytest.raises(InputError):
        kserve.read_v2({"inputs": [tensor(data=data)]}, graph, 100)


def test_outputs_that_were_asked_for(graph: Graph) -> None:
    found = graph(graph.example()[0])
    wanted = kserve.wanted_v2({"outputs": [{"name": "predictions"}]}, graph)
    answer = kserve.write_v2(found, wanted, "people", "a")
    (output,) = answer["outputs"]
    assert (answer["model_name"], answer["id"]) == ("people", "a")
    assert (output["name"], output["shape"], output["datatype"]) == ("predictions", [1, 2], "FP64")
    np.testing.assert_array_equal(output["data"], found["predictions"][0])
    assert kserve.wanted_v2({}, graph) == graph.results
    for bad in (
        "predictions",
        [],
        [{"name": "nothing"}],
        [3],
        [{"name": ["predictions"]}],
        [{"name": "predictions"}] * 2,
    ):
        with pytest.raises(InputError, match="outputs are"):
            kserve.wanted_v2({"outputs": bad}, graph)


def test_too_many_rows_are_refused_before_they_are_read(graph: Graph) -> None:
    with pytest.raises(kserve.TooManyRows, match="there are 101 rows, and 100 are the most"):
        kserve.read_v1({"instances": ["no row"] * 101}, graph, 100)
    with pytest.raises(kserve.TooManyRows, match="there are 101 rows"):
        kserve.read_v2({"inputs": [tensor(shape=[101, 5], data=["no number"] * 505)]}, graph, 100)


def test_metadata(graph: Graph) -> None:
    about = kserve.about_v2("people", graph)
    assert about["inputs"] == [{"name": "rows", "datatype": "FP64", "shape": [-1, 5]}]
    assert {part["name"]: part["shape"] for part in about["outputs"]} == {
        "shap_values": [-1, 5, 2],
        "base_values": [-1, 2],
        "predictions": [-1, 2],
        "error_std": [-1, 5, 2],
    }


def test_a_game_of_the_model_needs_its_outputs(exported: Any, tmp_path: Any) -> None:
    X, model = exported.X[:2], exported.explainer.model
    explainer(model, value_function="baseline").fit(exported.X).export_onnx(tmp_path / "baseline.onnx")
    graph = Graph(tmp_path / "baseline.onnx")
    outputs = model.predict_proba(X)
    body = {"instances": records(X), "outputs": outputs.tolist()}
    np.testing.assert_allclose(kserve.read_v1(body, graph, 100)[1], outputs)
    flat = {"name": "outputs", "shape": [2, 2], "datatype": "FP64", "data": outputs.ravel().tolist()}
    rows = {"name": "rows", "shape": [2, 5], "datatype": "FP64", "data": [1, 2, 0, 0, 1] * 2}
    np.testing.assert_allclose(kserve.read_v2({"inputs": [rows, flat]}, graph, 100)[1], outputs)
    for bad in (None, [[1.0]], [["a", "b"]] * 2, [[1.0, float("nan")]] * 2):
        with pytest.raises(InputError, match="outputs"):
            kserve.read_v1({**body, "outputs": bad}, graph, 100)
