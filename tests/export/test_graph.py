"""Tests of exported explainers, which run without torch."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Exported
from problems import explainer, people_chances, records
from small_images import X as IMAGES

from fastshapley import FastSHAP
from fastshapley.errors import FileFormatError, InputError
from fastshapley.export import graph as graph_module
from fastshapley.export.graph import Graph, open_session, sealed

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")


@pytest.fixture(scope="module")
def table(exported: Any) -> tuple[pd.DataFrame, Any]:
    """Return the data and the model."""
    return exported.X, exported.explainer.model


@pytest.fixture(scope="module")
def fitted(exported: Any) -> FastSHAP:
    found: FastSHAP = exported.explainer
    return found


@pytest.fixture(scope="module")
def path(exported: Any) -> Path:
    found: Path = exported.graph
    return found


@pytest.fixture(scope="module")
def graph(path: Path) -> Graph:
    return Graph(path)


def test_rows_of_json_are_encoded_as_in_the_library(graph: Graph, fitted: FastSHAP, table: Any) -> None:
    X = table[0]
    expected = fitted.schema_.encode(X)[:].numpy()
    np.testing.assert_allclose(graph.encode(records(X)), expected, rtol=1e-9)  # The JSON has ten digits.
    lists = [list(row.values()) for row in records(X)]
    np.testing.assert_array_equal(graph.encode(lists), graph.encode(records(X)))


def test_values_are_those_of_the_explainer(graph: Graph, fitted: FastSHAP, table: Any) -> None:
    X = table[0][:50]
    found = graph(graph.encode(records(X)))
    expected = fitted(X, errors=True)
    np.testing.assert_allclose(found["shap_values"], expected.values, atol=1e-5)
    np.testing.assert_allclose(found["base_values"], expected.base_values, atol=1e-5)
    np.testing.assert_allclose(found["error_std"], expected.error_std, atol=1e-5)
    total = found["shap_values"].sum(1) + found["base_values"]
    np.testing.assert_allclose(found["predictions"], total, atol=1e-5)


def test_names_and_report_are_those_of_the_explainer(graph: Graph, fitted: FastSHAP) -> None:
    assert graph.columns == graph.players == ["age", "income", "job", "city", "member"]
    assert graph.output_names == ["0", "1"]
    assert fitted.report_ is not None
    found = json.loads(json.dumps(fitted.report_.to_dict()))
    assert graph.report == {**found, "warnings": fitted.report_.warnings()}
    assert graph.image_shape is None


def test_unseen_categories_are_treated_as_missing(
    graph: Graph, table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    row = records(table[0][:1])[0]
    gap, unseen = graph.encode([{**row, "job": None}, {**row, "job": "pilot"}])
    np.testing.assert_array_equal(gap, unseen)
    assert "columns ['job'] have values not seen at fit" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": "old"}, "row 1 has 'old' in column 'age', but a number is expected"),
        ({"age": float("inf")}, "row 1 has inf in column 'age', but a finite number is expected"),
        ({"age": 10**400}, "row 1 has a number that is too large for a float"),
        ({"age": [1]}, r"row 1 has \[1\] in column 'age', but a number is expected"),
        ({"job": {}}, r"row 1 has {} in column 'job', but a category is expected"),
        ({"colour": 1}, r"row 1 has unknown columns: \['colour'\]"),
    ],
)
def test_bad_values_are_refused(change: dict[str, Any], message: str, graph: Graph, table: Any) -> None:
    row = records(table[0][:1])[0]
    with pytest.raises(InputError, match=message):
        graph.encode([row, {**row, **change}])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"age": 1}, r"row 0 lacks the columns \['income', 'job', 'city', 'member'\]"),
        ([1, 2], "row 0 has 2 values, but the table has 5 columns"),
        ("12345", "row 0 is a str"),
        (3, "row 0 is a int"),
    ],
)
def test_bad_rows_are_refused(row: Any, message: str, graph: Graph) -> None:
    with pytest.raises(InputError, match=message):
        graph.encode([row])


def test_encoded_rows_are_checked(graph: Graph, table: Any) -> None:
    rows = graph.encode(records(table[0][:4]))
    np.testing.assert_array_equal(graph.check(rows), rows)
    for place, value, message in (
        (0, np.inf, "rows must be finite"),
        (2, 3, "column 'job' is categorical: pass its codes, 0 to 2"),
        (2, -1, "column 'job' is categorical"),
        (3, 0.5, "column 'city' is categorical"),
    ):
        bad = rows.copy()
        bad[1, place] = value
        with pytest.raises(InputError, match=message):
            graph.check(bad)
    with pytest.raises(InputError, match=r"rows must have shape \(n, 5\)"):
        graph.check(rows[:, :4])


def test_rows_that_are_not_encoded_are_refused(graph: Graph) -> None:
    for rows in (np.zeros((2, 5), dtype=np.float32), np.zeros((2, 3))):
        with pytest.raises(InputError, match=r"rows must be float64 \(2, 5\), but are float(32|64) \(2, [35]\)"):
            graph(rows)


def test_the_example_is_a_typical_row(graph: Graph, table: Any) -> None:
    row, outputs = graph.example()
    assert outputs is None
    np.testing.assert_array_equal(graph.check(row), row)
    assert abs(row[0, 0] - table[0]["age"].median()) < 5
    assert np.isfinite(graph(row)["shap_values"]).all()


def test_the_file_contains_no_paths_of_the_machine_that_wrote_it(path: Path) -> None:
    for word in (b'File "', b"site-packages", b"/src/", b"stack_trace"):
        assert word not in path.read_bytes()


def test_a_graph_can_be_read_from_bytes(graph: Graph, path: Path) -> None:
    same = Graph(path.read_bytes())
    assert same.about == graph.about
    with pytest.raises(FileFormatError, match="the graph is cut short"):
        Graph(path.read_bytes()[:-100])


def test_categorical_columns_have_categories(graph: Graph) -> None:
    assert graph.categories("job") == ["chef", "clerk", "nurse"]
    assert graph.categories("age") is None


def test_no_rows_give_no_values(graph: Graph) -> None:
    assert graph(graph.encode([]))["shap_values"].shape == (0, 5, 2)


def test_images_are_explained(image_graph: Path, image_explainer: FastSHAP) -> None:
    graph = Graph(image_graph)
    assert graph.image_shape == (1, 8, 8)
    found = graph(graph.encode(IMAGES[:3].tolist()))["shap_values"]
    expected = image_explainer.shap_values(IMAGES[:3])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-5)
    for bad in ([[1.0, 2.0]], [[["a"]]], [[[1.0], [1.0, 2.0]]]):
        with pytest.raises(InputError, match="images"):
            graph.encode(bad)


def test_explainers_of_the_model_itself_need_its_outputs(table: Any, tmp_path: Path) -> None:
    X, model = table
    fitted = explainer(model, value_function="baseline").fit(X)
    fitted.export_onnx(tmp_path / "baseline.onnx")
    graph = Graph(tmp_path / "baseline.onnx")
    rows = graph.encode(records(X[:5]))
    found = graph(rows, model.predict_proba(X[:5]))["shap_values"]
    np.testing.assert_allclose(found, fitted(X[:5]).values, atol=1e-5)
    with pytest.raises(InputError, match=r"needs the model's outputs: pass outputs of shape \(5, 2\)"):
        graph(rows)


def test_missing_and_damaged_files_are_errors(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Graph(tmp_path / "nothing.onnx")
    (tmp_path / "short.onnx").write_bytes(path.read_bytes()[:1000])
    (tmp_path / "text.onnx").write_text("not a graph")
    for name in ("short.onnx", "text.onnx"):
        with pytest.raises(FileFormatError, match="is cut short, damaged or not an ONNX graph"):
            Graph(tmp_path / name)


def test_a_graph_imports_neither_torch_nor_pandas(path: Path, table: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(records(table[0][:3])))
    script = """
        import json, sys
        sys.modules.update(torch=None, pandas=None, shap=None, sklearn=None)
        from fastshapley.export.graph import Graph
        graph = Graph(sys.argv[1])
        found = graph(graph.encode(json.load(open(sys.argv[2]))))
        assert found["shap_values"].shape == (3, 5, 2)
    """
    arguments = [str(path), str(tmp_path / "rows.json")]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), *arguments], check=True)


def test_outputs_are_optional_for_a_conditional_game(conditional: Exported, exported: Exported) -> None:
    graph, X = Graph(conditional.graph), conditional.X[:5]
    assert (graph.takes_outputs, graph.needs_outputs, graph.sums_to) == (True, False, "surrogate")
    plain = Graph(exported.graph)
    assert (plain.takes_outputs, plain.needs_outputs, plain.sums_to) == (False, False, "surrogate")
    rows, outputs = graph.encode(records(X)), people_chances(X)
    np.testing.assert_allclose(graph(rows, outputs)["shap_values"], conditional.explainer(X).values, atol=1e-5)
    alone = FastSHAP.load(conditional.saved)
    np.testing.assert_allclose(graph(rows)["shap_values"], alone(X).values, atol=1e-5)
    assert graph.example()[1] is None
    with pytest.raises(InputError, match=r"takes the model's outputs: pass outputs of shape \(5, 2\)"):
        graph(rows, outputs[:3])


def test_what_values_sum_to_depends_on_the_outputs(conditional: Exported, baseline_graph: Path) -> None:
    graph, outputs = Graph(conditional.graph), np.full((3, 2), 0.5)
    assert graph.sums_with(outputs) == "model"
    outputs[1, 0] = np.nan
    assert graph.sums_with(outputs) == "mixed"
    outputs[:, 1] = np.nan
    assert graph.sums_with(outputs) == graph.sums_with(None) == "surrogate"
    assert Graph(baseline_graph).sums_with(outputs) == "model"


def test_a_graph_from_before_optional_outputs_can_be_read(
    baseline_graph: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of such a graph does not say what values sum to."""

    def old(session: Any, label: str, has_digest: bool) -> dict[str, Any]:
        about = read(session, label, has_digest)
        del about["sums_to"]
        return about

    read = graph_module._read_metadata
    monkeypatch.setattr(graph_module, "_read_metadata", old)
    assert (Graph(path).sums_to, Graph(path).needs_outputs) == ("surrogate", False)
    assert (Graph(baseline_graph).sums_to, Graph(baseline_graph).needs_outputs) == ("model", True)


def with_metadata(path: Path, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a graph without a digest and with other metadata."""
    model = onnx.load(path)
    del model.metadata_props[-1]
    about = json.loads(model.metadata_props[-1].value)
    change(about)
    model.metadata_props[-1].value = json.dumps(about)
    data: bytes = model.SerializeToString()
    return data


def test_a_graph_with_a_flipped_bit_is_refused(path: Path) -> None:
    """A graph without a digest gives other values for a third of these, some of them up to 1e35."""
    data, choose = path.read_bytes(), random.Random(0)
    for start, end in ((0, len(data)), (len(data) - 300, len(data))):
        for _ in range(60):
            damaged = bytearray(data)
            damaged[choose.randrange(start, end)] ^= 1 << choose.randrange(8)
            with pytest.raises(FileFormatError, match=r"damaged"):
                Graph(bytes(damaged))


def test_a_graph_ends_with_the_digest_of_the_rest(path: Path) -> None:
    data = path.read_bytes()
    entry = onnx.load(path).metadata_props[-1]
    assert entry.key == "fastshapley.sha256"
    assert data.endswith(entry.value.encode())
    end = data.index(b"fastshapley.sha256") - 4  # what comes before the key says how long the entry is
    assert entry.value == hashlib.sha256(data[:end]).hexdigest()


def test_a_graph_from_before_digests_can_be_read(graph: Graph, path: Path, table: Any) -> None:
    old = Graph(with_metadata(path, lambda about: about.update(format=1)))
    rows = graph.encode(records(table[0][:5]))
    np.testing.assert_array_equal(old(rows)["shap_values"], graph(rows)["shap_values"])


def test_a_graph_of_the_new_format_needs_its_digest(path: Path) -> None:
    with pytest.raises(FileFormatError, match="the graph is cut short or damaged: it does not end with its digest"):
        Graph(with_metadata(path, lambda about: None))


@pytest.mark.parametrize("name", ["schema", "players", "output_names", "report", "format", "version"])
def test_a_graph_with_incomplete_metadata_is_refused(name: str, path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"damaged: its metadata .*" + name):
        Graph(sealed(with_metadata(path, lambda about: about.pop(name))))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"format": null}'])
def test_a_graph_with_metadata_that_cannot_be_read_is_refused(text: str, path: Path) -> None:
    model = onnx.load(path)
    del model.metadata_props[-1]
    model.metadata_props[-1].value = text
    with pytest.raises(FileFormatError, match="damaged"):
        Graph(model.SerializeToString())


def test_a_graph_with_metadata_that_is_not_text_is_refused(path: Path) -> None:
    content = with_metadata(path, lambda about: None)
    assert b'"version"' in content
    with pytest.raises(FileFormatError, match="damaged"):
        Graph(content.replace(b'"version"', b'"vers\xff\xff\xff"'))


def external(tensor: Any, file: str) -> None:
    """Make a tensor one whose data are in another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", file


def initializer(model: Any) -> Any:
    return next(tensor for tensor in model.graph.initializer if tensor.HasField("raw_data"))


def attribute(model: Any) -> Any:
    node = model.graph.node.add(op_type="Constant", output=["unused"])
    return node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t


def attribute_of_a_subgraph(model: Any) -> Any:
    node = model.graph.node.add(op_type="If", output=["unused"])
    inner = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    return inner.node.add(op_type="Constant").attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t


def attribute_of_a_function(model: Any) -> Any:
    node = model.functions.add(name="f", domain="d").node.add(op_type="Constant")
    return node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t


def sparse_initializer(model: Any) -> Any:
    return model.graph.sparse_initializer.add().values


@pytest.mark.parametrize(
    "choose", [initializer, attribute, attribute_of_a_subgraph, attribute_of_a_function, sparse_initializer]
)
def test_a_graph_with_tensors_in_other_files_is_refused(
    choose: Callable[[Any], Any], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime reads such files below the working directory, whatever they are."""
    (tmp_path / "secret").write_bytes(bytes(100_000))
    monkeypatch.chdir(tmp_path)
    model = onnx.load(path)
    del model.metadata_props[-1]  # the digest of the file
    external(choose(model), "secret")
    data = sealed(model.SerializeToString())
    (tmp_path / "other.onnx").write_bytes(data)
    for source in (data, tmp_path / "other.onnx"):
        with pytest.raises(FileFormatError, match=r"has a tensor in another file .* as a single file"):
            Graph(source)


def test_a_file_in_the_format_of_onnxruntime_is_refused(path: Path, tmp_path: Path) -> None:
    """Such a file can have tensors in other files, and its content cannot be checked."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "graph.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with pytest.raises(FileFormatError, match="is cut short, damaged or not an ONNX graph"):
        Graph(tmp_path / "graph.ort")


def test_a_session_of_a_user_model_refuses_tensors_in_other_files(path: Path) -> None:
    model = onnx.load(path)
    assert open_session(path.read_bytes(), "model.onnx").get_inputs()[0].name == "rows"
    external(initializer(model), "secret")
    with pytest.raises(FileFormatError, match=r"^model\.onnx has a tensor in another file"):
        open_session(model.SerializeToString(), "model.onnx")
