"""The user's model as an ONNX file, which the server runs for the output of the explained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predictors import chances
from problems import records
from servers import serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.graph_trial import QUICK, SLOW, try_graph
from fastshapley.serving.model_loader import ModelLoader, OutputsSource
from fastshapley.serving.user_model import UserModel, output_matrix, output_name

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
TensorProto, helper = onnx.TensorProto, onnx.helper
EXPLAIN, PREDICT = "/v1/models/people:explain", "/v1/models/people:predict"
KINDS = {
    "age": TensorProto.INT64,
    "income": TensorProto.FLOAT,
    "job": TensorProto.STRING,
    "city": TensorProto.STRING,
    "member": TensorProto.BOOL,
}
ROW = {"age": 40, "income": 31.5, "job": "chef", "city": "Bern", "member": True}


def people_onnx(path: Path, kinds: dict[str, Any] | None = None, oldest: int = 47) -> Path:
    """Write the model `people_chances`, with one input per column."""
    nodes = [
        helper.make_node("Equal", ["job", "chef"], ["is_chef"]),
        helper.make_node("Cast", ["is_chef"], ["chef_number"], to=TensorProto.FLOAT),
        helper.make_node("Greater", ["age", "oldest"], ["is_old"]),
        helper.make_node("Cast", ["is_old"], ["old_number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["old_number", "two"], ["old_twice"]),
        helper.make_node("Add", ["chef_number", "old_twice"], ["sum"]),
        helper.make_node("Sub", ["sum", "one"], ["score"]),
        helper.make_node("Sigmoid", ["score"], ["yes"]),
        helper.make_node("Sub", ["one", "yes"], ["no"]),
        helper.make_node("Concat", ["no", "yes"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
    ]
    constants = [
        helper.make_tensor("chef", TensorProto.STRING, [1], [b"chef"]),
        helper.make_tensor("oldest", TensorProto.INT64, [1], [oldest]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0]),
    ]
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2]),
    ]
    return written(path, nodes, kinds or KINDS, outputs, constants)


def written(path: Path, nodes: Any, kinds: dict[str, Any], outputs: Any, constants: Any = ()) -> Path:
    inputs = [helper.make_tensor_value_info(name, kind, ["n", None]) for name, kind in kinds.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def graph(conditional: Any) -> Graph:
    """The graph of an explainer whose model returns probabilities."""
    return Graph(conditional.graph)


def test_values_sum_to_the_models_output(conditional: Any, baseline_graph: Path, tmp_path: Path) -> None:
    model = people_onnx(tmp_path / "model.onnx")
    X = conditional.X[:20].dropna()
    expected = conditional.explainer(X)
    rows = records(X)
    with serving(conditional.graph, f"baseline={baseline_graph}", "--model", model) as server:
        status, answer = server.ask(EXPLAIN, {"instances": rows})
        assert (status, answer["sums_to"]) == (200, "model")
        for row, explanation in enumerate(answer["explanations"]):
            np.testing.assert_allclose(explanation["shap_values"], expected.values[row], atol=1e-5)
        # Outputs of a request go before those of the model.
        _, answer = server.ask(PREDICT, {"instances": rows[:2], "outputs": [[0.3, 0.7], None]})
        np.testing.assert_allclose(answer["predictions"], [[0.3, 0.7], chances(rows)[1]], atol=1e-6)
        _, answer = server.ask("/v1/models/baseline:predict", {"instances": rows})
        odds = np.array(chances(rows))
        np.testing.assert_allclose(answer["predictions"], np.log(odds / odds[:, ::-1]), atol=1e-5)
        assert server.ask("/v2/models/baseline")[1]["parameters"]["outputs_from"] == "model"
        assert server.ask("/v2/health/ready")[0] == 200
        # A missing category is an empty string for the model, and a missing integer is an error.
        assert server.ask(PREDICT, {"instances": [{**rows[0], "job": None}]})[0] == 200
        status, answer = server.ask(PREDICT, {"instances": [{**rows[0], "age": None}]})
        assert status == 400
        assert answer["error"] == "column 'age' has a missing value, which the model (--model) cannot take"


def test_a_model_file_that_changes_is_loaded_again(conditional: Any, tmp_path: Path) -> None:
    model = people_onnx(tmp_path / "model.onnx")
    with serving(conditional.graph, "--model", f"people={model}") as server:
        _, before = server.ask(PREDICT, {"instances": [ROW]})
        people_onnx(tmp_path / "new.onnx", oldest=30).replace(model)
        until(lambda: server.ask(PREDICT, {"instances": [ROW]})[1]["predictions"] != before["predictions"])


def test_without_the_models_output_the_answer_names_the_ways_to_pass_it(baseline_graph: Path) -> None:
    with serving(f"people={baseline_graph}") as server:
        status, answer = server.ask(EXPLAIN, {"instances": [ROW]})
        assert status == 400
        assert "pass outputs of shape (1, 2) with the rows" in answer["error"]
        assert "--predictor URL or --model FILE.onnx" in answer["error"]
        assert server.ask(EXPLAIN, {"instances": [ROW], "outputs": [[0.5, 0.5]]})[0] == 200
        parameters = server.ask("/v2/models/people")[1]["parameters"]
        assert (parameters["outputs_from"], parameters["optional_inputs"]) == ("request", [])
        assert server.ask("/v1/models/people") == (200, {"name": "people", "ready": True, "needs": ["outputs"]})


def test_a_model_may_take_one_matrix(exported: Any, tmp_path: Path, graph: Graph) -> None:
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    model = written(
        tmp_path / "model.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": TensorProto.FLOAT}, outputs
    )
    with pytest.raises(InputError, match="takes one matrix of numbers, but column 'job' has text"):
        UserModel(model.read_bytes(), graph)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({**KINDS, "more": TensorProto.FLOAT}, "has the inputs"),
        ({**KINDS, "city": TensorProto.UINT64}, r"takes tensor\(uint64\): use a model that takes numbers"),
    ],
)
def test_models_that_do_not_take_the_rows_are_refused(
    graph: Graph, tmp_path: Path, kinds: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        UserModel(people_onnx(tmp_path / "model.onnx", kinds).read_bytes(), graph)


def test_a_model_is_tried_in_a_process_before_it_is_served(conditional: Any, tmp_path: Path) -> None:
    model = people_onnx(tmp_path / "model.onnx", {**KINDS, "city": TensorProto.FLOAT})
    with pytest.raises(FileFormatError, match="the model takes numbers for column 'city', which has text"):
        ModelLoader(sources={"people": OutputsSource(model=model)}).load("people", conditional.graph)
    model.write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="the model is cut short, damaged or not an ONNX graph"):
        ModelLoader(sources={"people": OutputsSource(model=model)}).load("people", conditional.graph)
    with pytest.raises(FileNotFoundError, match=r"--model is .*nowhere\.onnx', which does not exist"):
        ModelLoader(sources={"people": OutputsSource(model=tmp_path / "nowhere.onnx")}).load(
            "people", conditional.graph
        )


def test_a_model_with_a_loop_does_not_run_on_the_event_loop(conditional: Any, tmp_path: Path) -> None:
    data, model = conditional.graph.read_bytes(), people_onnx(tmp_path / "model.onnx")
    assert try_graph(data, model.read_bytes()) == QUICK
    proto = onnx.load(model)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["in"], ["out"])],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("in", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, [1]),
        ],
    )
    proto.graph.initializer.append(helper.make_tensor("steps", TensorProto.INT64, [], [3]))
    proto.graph.node.append(helper.make_node("Loop", ["steps", "", "one"], ["unused"], body=body))
    assert try_graph(data, proto.SerializeToString()) == SLOW


def test_tensors_in_other_files_are_refused(graph: Graph, tmp_path: Path) -> None:
    proto = onnx.load(people_onnx(tmp_path / "model.onnx"))
    (tensor,) = (part for part in proto.graph.initializer if part.name == "two")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret"
    with pytest.raises(FileFormatError, match="external data"):
        UserModel(proto.SerializeToString(), graph)


def test_an_explainer_of_a_surrogate_takes_no_model(exported: Any, tmp_path: Path) -> None:
    model = people_onnx(tmp_path / "model.onnx")
    with pytest.raises(InputError, match="people explains a surrogate, which does not take the model's output"):
        ModelLoader(sources={"people": OutputsSource(model=model)}).load("people", exported.graph)


def test_the_output_with_the_predictions_is_found() -> None:
    assert output_name(["label", "probabilities"]) == "probabilities"
    assert output_name(["label", "scores"]) == "scores"
    assert output_name(["label"]) == "label"
    assert output_matrix([{1: 0.3, 0: 0.7}]) == [[0.7, 0.3]]
