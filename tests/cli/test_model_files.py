"""Tests of loading models from files: loaded models predict the same as the saved ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from fastshapley.cli.model_files import OnnxModel, feature_names, load_model
from fastshapley.errors import FileFormatError, InputError


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(100, 3)), columns=["a", "b", "c"])
    return X, (X["a"] + X["b"] * X["c"] > 0).to_numpy().astype(int)


def test_a_pickle_must_be_trusted(table: tuple[pd.DataFrame, Any], tmp_path: Path) -> None:
    X, y = table
    model = LogisticRegression().fit(X, y)
    path = tmp_path / "model.joblib"
    joblib.dump(model, path)
    with pytest.raises(InputError, match="pass --trust if you trust it"):
        load_model(str(path))
    loaded = load_model(str(path), trust=True)
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert feature_names(loaded) == ["a", "b", "c"]


def test_boosters_predict_the_same_after_loading(table: tuple[pd.DataFrame, Any], tmp_path: Path) -> None:
    X, y = table
    lightgbm = pytest.importorskip("lightgbm", reason="needs the paper extra")
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(X, y), 5)
    booster.save_model(tmp_path / "model.txt")
    loaded = load_model(str(tmp_path / "model.txt"))
    np.testing.assert_allclose(loaded.predict(X), booster.predict(X))
    assert feature_names(loaded) == ["a", "b", "c"]

    xgboost = pytest.importorskip("xgboost", reason="needs the paper extra")
    trees = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(X, y), 5)
    for name in ("model.json", "model.ubj"):
        trees.save_model(tmp_path / name)
        loaded = load_model(str(tmp_path / name))
        np.testing.assert_allclose(loaded.predict(xgboost.DMatrix(X)), trees.predict(xgboost.DMatrix(X)))
        assert feature_names(loaded) == ["a", "b", "c"]

    catboost = pytest.importorskip("catboost", reason="needs the dev extra")
    cats = catboost.CatBoostClassifier(iterations=5, verbose=False, allow_writing_files=False).fit(X, y)
    cats.save_model(str(tmp_path / "model.cbm"))
    loaded = load_model(str(tmp_path / "model.cbm"))
    np.testing.assert_allclose(loaded.predict_proba(X), cats.predict_proba(X))
    assert feature_names(loaded) == ["a", "b", "c"]


def _onnx(path: Path, inputs: list[tuple[str, int]]) -> None:
    """Write a graph that returns labels and the probabilities of a sigmoid of the sum of its inputs."""
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Concat", [name for name, _ in inputs], ["all"], axis=1),
        helper.make_node("ReduceSum", ["all", "axes"], ["sum"], keepdims=1),
        helper.make_node("Sigmoid", ["sum"], ["one"]),
        helper.make_node("Sub", ["unit", "one"], ["zero"]),
        helper.make_node("Concat", ["zero", "one"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(name, kind, ["n", width]) for name, width in inputs],
        [
            helper.make_tensor_value_info("label", onnx.TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("probabilities", kind, ["n", 2]),
        ],
        [
            helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1]),
            helper.make_tensor("unit", kind, [1], [1.0]),
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    path.write_bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


@pytest.mark.parametrize("inputs", [[("X", 3)], [("a", 1), ("b", 1), ("c", 1)]])
def test_onnx_models_return_probabilities_also_after_pickling(
    inputs: list[tuple[str, int]], table: tuple[pd.DataFrame, Any], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    import pickle

    _onnx(tmp_path / "model.onnx", inputs)
    model = load_model(str(tmp_path / "model.onnx"))
    X, _ = table
    expected = 1 / (1 + np.exp(-X.sum(axis=1)))
    for found in (model, pickle.loads(pickle.dumps(model))):
        assert isinstance(found, OnnxModel)
        np.testing.assert_allclose(found(X)[:, 1], expected, rtol=1e-5)


def test_a_function_is_imported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "function_by_name.py").write_text(
        "class Own:\n    @staticmethod\n    def f(rows):\n        return rows[:, 0]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_model("function_by_name:Own.f")(np.ones((2, 2))).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match=r"function_by_name:Own.g, which cannot be imported"):
        load_model("function_by_name:Own.g")
    with pytest.raises(InputError, match=r"nowhere:f, which cannot be imported"):
        load_model("nowhere:f")


def test_files_that_are_not_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"which is neither a file nor module:function"):
        load_model(str(tmp_path / "nothing.txt"))
    (tmp_path / "model.h5").write_bytes(b"")
    with pytest.raises(InputError, match=r"use a file that ends in one of"):
        load_model(str(tmp_path / "model.h5"))
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(FileFormatError, match=r"model.onnx cannot be read as a model"):
        load_model(str(tmp_path / "model.onnx"))


def test_an_onnx_model_with_tensors_in_other_files_is_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    _onnx(tmp_path / "model.onnx", [("x", 2)])
    model = onnx.load(tmp_path / "model.onnx")
    (tensor, *_) = model.graph.initializer
    tensor.raw_data = tensor.raw_data or b"0" * 16
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "secret"
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FileFormatError):
        load_model(str(tmp_path / "model.onnx"))
