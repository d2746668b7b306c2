"""KServe's V2 protocol: from tensors in JSON to arrays and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.batching import Batcher
from fastshapley.serving.kserve_v2 import KSERVE_V2, model_metadata, read_rows, requested_outputs, write_outputs
from fastshapley.serving.model_loader import ModelLoader, ServedModel
from fastshapley.serving.serving_protocol import TooManyRowsError

ROW = {"age": 40, "income": 31.5, "job": "chef", "city": "Bern", "member": True}


def served(graph: Graph) -> ServedModel:
    """Return a graph as the server has it."""
    return ServedModel("people", graph, b"", Batcher(graph), digest="0123456789abcdef" * 4)


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)


def tensor(name: Any = "rows", **changes: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, 5], "datatype": "FP64", "data": [40, 31.5, 0, 1, 1], **changes}


def test_one_tensor_of_rows_or_one_tensor_per_column(graph: Graph) -> None:
    expected = graph.encode([ROW])
    data = [40, 31.5, 0, 1, 1]  # chef is the first job, Bern the second city.
    for body in (
        {"inputs": [tensor(data=data)]},
        {"inputs": [tensor(data=[data])]},
        {"inputs": [tensor(data=[40.0, 31.5, 0.0, 1.0, 1.0])]},
        {"inputs": [tensor(data=data, datatype="FP32")], "id": "7"},
        {"inputs": [tensor(name, shape=[1], datatype="BYTES", data=[value]) for name, value in ROW.items()]},
        {"inputs": [tensor(name, shape=[1, 1], datatype="BYTES", data=[value]) for name, value in ROW.items()]},
    ):
        np.testing.assert_array_equal(read_rows(body, graph, 100)[0], expected)


def test_null_is_a_missing_value(graph: Graph) -> None:
    (rows,) = read_rows({"inputs": [tensor(data=[None] * 5)]}, graph, 100)
    assert np.isnan(rows).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, "the body must be"),
        ([1], "the body must be"),
        ([], "needs an input with the name rows"),
        ([tensor(), tensor()], "each input needs a different name"),
        ([tensor(name=3)], "each input needs a different name"),
        ([tensor(datatype="FP8")], "rows has datatype 'FP8'"),
        ([tensor(shape=[1, -5])], "rows has an invalid shape"),
        ([tensor(shape="5")], "rows has an invalid shape"),
        ([tensor(shape=[1] * 65, data=[1])], "rows has an invalid shape"),
        ([tensor(shape=[10**4000, 10**4000])], "rows has an invalid shape"),
        ([tensor(shape=[2, 5])], r"rows has 5 values, but its shape \[2, 5\] needs 10"),
        ([tensor(shape=[2**30, 2**30])], "rows has 5 values"),
        ([tensor(shape=[0, 5], data=[])], "the request has no rows"),
        ([tensor(shape=[5])], r"rows must have shape \(n, 5\)"),
        ([tensor(shape=[0, 2**31 - 1, 2**31 - 1], data=[])], "the request has no rows"),
        ([tensor(shape=[1, 0], data=[])], r"rows has shape \[1, 0\], so the request has no rows"),
        ([tensor(data=40)], "rows has data of type int: pass a list"),
        ([tensor(data=[[40, 31.5, 0, 1], [1]])], r"rows has nested data whose lists do not match axis 0"),
        (
            [tensor(shape=[2, 5], data=[[1, 2, 0, 1, 1, 3], [4, 0, 1, 1]])],
            r"axis 1 of its shape \[2, 5\]: .*length 5",
        ),
        ([tensor(shape=[2, 5], data=[[1, 2, 0, 1, 1], 3, 4, 0, 1, 1])], "lists do not match axis 0"),
        ([tensor(shape=[2, 5], data=[[1, 2, 0, 1, 1], 3])], "lists do not match axis 1"),
        ([tensor(data=[[40, 31.5, 0, 1, [1]]])], "rows has data that are nested deeper than its shape"),
        ([tensor(data=["40", 31.5, 0, 1, 1])], "rows has the value '40', which is not of its datatype FP64"),
        ([tensor(data=[40, 31.5, 0, 1, True])], "the value True, which is not of its datatype FP64"),
        ([tensor(data=[[40, 31.5, 0, 1, {}]])], "the value {}, which is not of its datatype FP64"),
        ([tensor(data=[39.7, 1, 0, 1, 1], datatype="BOOL")], "the value 39.7, which is not of its datatype BOOL"),
        ([tensor(data=["1", 1, 0, 1, 1], datatype="BOOL")], "the value '1', which is not of its datatype BOOL"),
        ([tensor(data=[1e9, 1, 0, 1, 1], datatype="INT8")], "1000000000.0, which is not of its datatype INT8"),
        ([tensor(data=[-129, 1, 0, 1, 1], datatype="INT8")], "-129, which is not of its datatype INT8"),
        ([tensor(data=[-1, 1, 0, 1, 1], datatype="UINT64")], "-1, which is not of its datatype UINT64"),
        ([tensor(data=[2**63, 1, 0, 1, 1], datatype="INT64")], "9223372036854775808, which is not"),
        ([tensor(data=[31.5, 1, 0, 1, 1], datatype="INT32")], "31.5, which is not of its datatype INT32"),
        ([tensor(data=[1e39, 1, 0, 1, 1], datatype="FP32")], r"1e\+39, which is not of its datatype FP32"),
        ([tensor("job", shape=[1], datatype="INT8", data=["chef"])], "job has the value 'chef', which is not of"),
        ([tensor(data=["40", 31.5, 0, 1, 1], datatype="BYTES")], "rows must be numbers"),
        ([tensor(data=[1e999, 31.5, 0, 1, 1])], "rows must be finite"),
        ([tensor(data=[10**400, 31.5, 0, 1, 1])], "rows must be numbers"),
        ([tensor(data=[40, 31.5, 7, 1, 1])], "column 'job' is categorical: pass its codes, 0 to 2"),
        ([tensor("age", shape=[1], data=[3])], "lacks the columns"),
        ([tensor("age", shape=[], data=[3])], "inputs per column must have shape"),
        ([tensor("age", shape=[1], data=[3]), tensor("job", shape=[2], data=[1, 2])], "with the same n"),
    ],
)
def test_bad_tensors_are_refused(inputs: Any, message: str, graph: Graph) -> None:
    with pytest.raises(InputError, match=message):
        read_rows({"inputs": inputs}, graph, 100)


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "UINT8", "INT64", "UINT64", "FP32", "FP64", "BYTES"])
def test_values_of_their_datatype_are_taken(datatype: str, graph: Graph) -> None:
    data = [1, None, 0, 1.0, 0]  # JSON has one type of numbers: 1.0 is an integer, too.
    (rows,) = read_rows({"inputs": [tensor(datatype=datatype, data=data)]}, graph, 100)
    np.testing.assert_array_equal(rows, [[1, np.nan, 0, 1, 0]])


def test_deeply_nested_lists_do_not_exhaust_the_stack(graph: Graph) -> None:
    data: Any = 1
    for _ in range(900):
        data = [data]
    with pytest.raises(InputError):
        read_rows({"inputs": [tensor(data=data)]}, graph, 100)


def test_too_many_rows_are_refused_before_they_are_read(graph: Graph) -> None:
    with pytest.raises(TooManyRowsError, match="101 rows exceed the limit of 100"):
        read_rows({"inputs": [tensor(shape=[101, 5], data=["not a number"] * 505)]}, graph, 100)


def test_an_answer_has_the_outputs_that_were_requested(exported: Any, graph: Graph) -> None:
    people = ModelLoader().load("people", exported.graph)
    results = graph(graph.example()[0])
    outputs = requested_outputs({"outputs": [{"name": "predictions"}]}, graph)
    answer = write_outputs(results, outputs, people, "a", "surrogate")
    assert answer["parameters"] == {"sums_to": "surrogate"}
    (output,) = answer["outputs"]
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("people", people.version, "a")
    assert (output["name"], output["shape"], output["datatype"]) == ("predictions", [1, 2], "FP64")
    np.testing.assert_array_equal(output["data"], results["predictions"][0])


def test_all_outputs_are_returned_by_default(graph: Graph) -> None:
    assert requested_outputs({}, graph) == graph.results


@pytest.mark.parametrize(
    "outputs",
    [
        "predictions",
        [],
        [{"name": "nothing"}],
        [3],
        [{"name": ["predictions"]}],
        [{"name": "predictions"}] * 2,
    ],
)
def test_unknown_or_repeated_outputs_are_refused(outputs: Any, graph: Graph) -> None:
    with pytest.raises(InputError, match="outputs must name some of"):
        requested_outputs({"outputs": outputs}, graph)


def test_metadata_has_the_shapes_of_inputs_and_outputs(graph: Graph) -> None:
    metadata = model_metadata("people", graph)
    assert metadata["inputs"] == [{"name": "rows", "datatype": "FP64", "shape": [-1, 5]}]
    assert {part["name"]: part["shape"] for part in metadata["outputs"]} == {
        "shap_values": [-1, 5, 2],
        "base_values": [-1, 2],
        "predictions": [-1, 2],
        "error_std": [-1, 5, 2],
    }


def test_outputs_of_the_model_are_read_if_the_graph_needs_them(baseline_graph: Path) -> None:
    graph = Graph(baseline_graph)
    outputs = np.array([[0.25, 0.75], [-1.0, 1.0]])
    flat = {"name": "outputs", "shape": [2, 2], "datatype": "FP64", "data": outputs.ravel().tolist()}
    rows = {"name": "rows", "shape": [2, 5], "datatype": "FP64", "data": [1, 2, 0, 0, 1] * 2}
    np.testing.assert_allclose(read_rows({"inputs": [rows, flat]}, graph, 100)[1], outputs)
    with pytest.raises(InputError, match=r"needs the model.s outputs: pass outputs of shape"):
        read_rows({"inputs": [rows]}, graph, 100)


def test_every_address_is_described(graph: Graph) -> None:
    described = {*KSERVE_V2.describe_server(), *KSERVE_V2.describe_model(served(graph), 100)}
    assert described == {path.format(name="people", version="0123456789abcdef") for path in KSERVE_V2.paths}


def test_the_example_of_the_description_can_be_read(graph: Graph) -> None:
    infer = KSERVE_V2.describe_model(served(graph), 100)["/v2/models/people/infer"]["post"]
    example = infer["requestBody"]["content"]["application/json"]["example"]
    np.testing.assert_array_equal(read_rows(example, graph, 100)[0], graph.example()[0])


def test_outputs_may_be_left_out_if_they_are_optional(conditional: Any) -> None:
    graph = Graph(conditional.graph)
    assert np.isnan(read_rows({"inputs": [tensor()]}, graph, 100)[1]).all()
    for data, expected in (([0.25, 0.75], [[0.25, 0.75]]), ([None, None], [[np.nan, np.nan]])):
        outputs = tensor("outputs", shape=[1, 2], data=data)
        np.testing.assert_array_equal(read_rows({"inputs": [tensor(), outputs]}, graph, 100)[1], expected)


def test_optional_outputs_are_described(conditional: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    graph = Graph(conditional.graph)
    metadata = model_metadata("people", graph)
    assert [part["name"] for part in metadata["inputs"]] == ["rows", "outputs"]
    assert metadata["parameters"]["optional_inputs"] == ["outputs"]
    assert metadata["parameters"]["sums_to"] == "surrogate"
    infer = KSERVE_V2.describe_model(served(graph), 100)["/v2/models/people/infer"]["post"]
    content = infer["requestBody"]["content"]["application/json"]
    assert [part["name"] for part in content["example"]["inputs"]] == ["rows"]
    jsonschema.validate(content["example"], content["schema"])
    for data in ([0.5, 0.5], [None, None]):
        outputs = tensor("outputs", shape=[1, 2], data=data)
        jsonschema.validate({"inputs": [*content["example"]["inputs"], outputs]}, content["schema"])
    answer = infer["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]["parameters"]["properties"]["sums_to"]["enum"] == ["model", "surrogate", "mixed"]


def test_outputs_that_are_needed_are_not_optional(baseline_graph: Path) -> None:
    assert model_metadata("it", Graph(baseline_graph))["parameters"]["optional_inputs"] == []
