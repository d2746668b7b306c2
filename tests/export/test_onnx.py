"""Tests of the ONNX export: a graph returns the same values as its explainer."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Exported
from games import Additive
from numpy.typing import NDArray
from problems import QUICK, explainer, numbers, people, people_chances
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from small_images import X as IMAGES
from small_images import explainer as image_explainer
from torch import nn

from fastshapley import FastSHAP, Groups, Training, UNet
from fastshapley.cli import main
from fastshapley.errors import ExportError, InputError
from fastshapley.networks import TableEncoder

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the onnx extra")
RECIPE = replace(QUICK, errors=Training(steps=50), tails=3.0, own_units=2)


def run(path: Path, **inputs: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


def metadata(path: Path) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: dict[str, Any] = json.loads(session.get_modelmeta().custom_metadata_map["fastshapley"])
    return found


@pytest.fixture(scope="module")
def people_model() -> tuple[pd.DataFrame, Any]:
    X, y = people(400)
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return X, make_pipeline(encoder, HistGradientBoostingClassifier()).fit(X, y)


@pytest.mark.parametrize(
    "options", [{}, {"link": "logit"}, {"players": Groups({"work": ["income", "job"]})}, {"normalize": "never"}]
)
def test_the_graph_of_a_table_returns_the_values_of_the_explainer(
    options: Any, people_model: tuple[pd.DataFrame, Any], tmp_path: Path
) -> None:
    X, model = people_model
    fitted = explainer(model, recipe=RECIPE, **options).fit(X)
    path = tmp_path / "graph.onnx"
    fitted.export_onnx(path)
    for rows in (1, 2, 300):
        expected = fitted(X[:rows])
        found = run(path, rows=fitted.schema_.encode(X[:rows])[:].numpy())
        np.testing.assert_allclose(found["shap_values"], expected.values, atol=1e-5)
        np.testing.assert_allclose(found["base_values"], expected.base_values, atol=1e-5)
    if fitted.normalize != "never":
        total = found["shap_values"].sum(1) + found["base_values"]
        np.testing.assert_allclose(found["predictions"], total, atol=1e-5)
        np.testing.assert_allclose(found["error_std"], fitted(X[:300], errors=True).error_std, atol=1e-5)


def test_the_graph_of_networks_that_can_jump_returns_the_values_of_the_explainer(tmp_path: Path) -> None:
    """There are strings, categories and gaps, and rows on both sides of each cut."""
    X, y = people(400)
    kinds = ColumnTransformer([("kinds", OrdinalEncoder(), ["job", "city"])], remainder="passthrough")
    model = make_pipeline(kinds, HistGradientBoostingClassifier()).fit(X, y)
    fitted = explainer(model, recipe=replace(RECIPE, cuts=8)).fit(X)
    encoder = fitted.network_.encoder
    assert isinstance(encoder, TableEncoder)
    assert {fitted.feature_names_in_[j] for j in encoder.columns[encoder.plain_inputs :]} == {"age", "income"}
    path = tmp_path / "graph.onnx"
    fitted.export_onnx(path)
    rows = fitted.schema_.encode(X)[:][: 2 * len(encoder.cut)]
    for i, (column, cut) in enumerate(zip(encoder.cut_columns.tolist(), encoder.cut.tolist(), strict=True)):
        rows[2 * i : 2 * i + 2, column] = torch.tensor([cut, np.nextafter(cut, np.inf)])
    found = run(path, rows=rows.numpy())
    values, _, predictions = fitted.explain_encoded(rows)
    np.testing.assert_allclose(found["shap_values"], values, atol=1e-5)
    np.testing.assert_allclose(found["predictions"], predictions, atol=1e-5)
    fitted.save(tmp_path / "file.fastshap")
    loaded = FastSHAP.load(tmp_path / "file.fastshap")
    assert torch.equal(loaded.explain_encoded(rows)[0], values)
    assert loaded.recipe == fitted.recipe


def test_the_metadata_holds_columns_players_outputs_report_and_ranges(
    people_model: tuple[pd.DataFrame, Any], tmp_path: Path
) -> None:
    X, model = people_model
    fitted = explainer(model, recipe=RECIPE).fit(X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    known = metadata(tmp_path / "graph.onnx")
    assert [column["key"] for column in known["schema"]["columns"]] == list(X.columns)
    assert known["schema"]["columns"][2]["categories"] == ["chef", "clerk", "nurse"]
    assert known["players"]["names"] == list(X.columns)
    assert known["output_names"] == ["0", "1"]
    assert fitted.report_ is not None
    assert known["report"]["rows"] == fitted.report_.rows
    low, middle, high = known["ranges"][0]
    assert 18 <= low < middle < high <= 80


def test_the_graph_of_a_game_that_calls_the_model_takes_the_outputs_of_the_model(
    people_model: tuple[pd.DataFrame, Any], tmp_path: Path
) -> None:
    X, model = people_model
    fitted = explainer(model, recipe=RECIPE, value_function="baseline").fit(X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    x = fitted.schema_.encode(X[:20])[:].numpy()
    found = run(tmp_path / "graph.onnx", rows=x, outputs=model.predict_proba(X[:20]))
    np.testing.assert_allclose(found["shap_values"], fitted(X[:20]).values, atol=1e-5)


@pytest.mark.parametrize("network", [None, UNet(width=8)])
def test_the_graph_of_images_returns_the_values_of_the_explainer(network: Any, tmp_path: Path) -> None:
    fitted = image_explainer(network=network).fit(IMAGES)
    fitted.export_onnx(tmp_path / "graph.onnx")
    found = run(tmp_path / "graph.onnx", rows=np.asarray(IMAGES[:7], dtype=np.float32))
    values = fitted.shap_values(IMAGES[:7])
    np.testing.assert_allclose(found["shap_values"].reshape(values.shape), values, atol=1e-5)
    assert metadata(tmp_path / "graph.onnx")["players"]["grid"] is not None


def test_the_graph_runs_without_torch(tmp_path: Path) -> None:
    X = numbers(300)
    fitted = explainer(lambda rows: rows[:, 0] * rows[:, 1]).fit(X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    np.savez(tmp_path / "rows.npz", rows=X[:9], values=fitted(X[:9]).values)
    script = """
        import sys
        sys.modules["torch"] = None
        import numpy, onnxruntime
        saved = numpy.load(sys.argv[2])
        session = onnxruntime.InferenceSession(sys.argv[1])
        values = session.run(["shap_values"], {"rows": saved["rows"]})[0][..., 0]
        assert numpy.abs(values - saved["values"]).max() < 1e-5
    """
    arguments = [str(tmp_path / "graph.onnx"), str(tmp_path / "rows.npz")]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), *arguments], check=True)


def test_the_command_line_exports_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = numbers(300)
    fitted = explainer(lambda rows: rows[:, 0] * rows[:, 1]).fit(X)
    fitted.save(tmp_path / "small.fastshap")
    assert main(["export", str(tmp_path / "small.fastshap")]) == 0
    assert capsys.readouterr().out == f"graph: {tmp_path / 'small.onnx'}\n"
    found = run(tmp_path / "small.onnx", rows=X[:5])
    np.testing.assert_allclose(found["shap_values"][..., 0], fitted(X[:5]).values, atol=1e-5)
    assert main(["export", str(tmp_path / "nothing.fastshap")]) == 1
    assert "nothing.fastshap does not exist" in capsys.readouterr().err


def test_a_network_of_the_user_is_exported(tmp_path: Path) -> None:
    X = numbers(300)
    body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    fitted = explainer(lambda rows: rows[:, 0] * rows[:, 1], network=body).fit(X)
    fitted.export_onnx(tmp_path / "graph.onnx")
    found = run(tmp_path / "graph.onnx", rows=X[:5])
    np.testing.assert_allclose(found["shap_values"][..., 0], fitted(X[:5]).values, atol=1e-5)


def test_a_graph_with_wrong_values_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = explainer(lambda rows: rows[:, 0] * rows[:, 1]).fit(numbers(300))
    (tmp_path / "graph.onnx").write_text("before")
    session = onnxruntime.InferenceSession

    class Wrong:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.session = session(*args, **options)

        def get_outputs(self) -> Any:
            return self.session.get_outputs()

        def run(self, *args: Any) -> Any:
            return [part + 1e-3 for part in self.session.run(*args)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(ExportError, match=r"shap_values of the graph differs from torch by 0\.001"):
        fitted.export_onnx(tmp_path / "graph.onnx")
    assert (tmp_path / "graph.onnx").read_text() == "before"


def test_explainers_that_cannot_be_exported_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        explainer(lambda rows: rows[:, 0]).export_onnx(tmp_path / "graph.onnx")
    game = Additive(4)
    fitted = FastSHAP(value_function=game, recipe=QUICK, random_state=0, progress=False).fit(
        torch.as_tensor(game.rows(200))
    )
    with pytest.raises(InputError, match="has no null"):
        fitted.export_onnx(tmp_path / "graph.onnx")


def test_the_graph_of_a_conditional_game_takes_outputs_or_nan(conditional: Exported) -> None:
    """A row with an output that is not known has the values of an explainer without its model."""
    X, fitted = conditional.X[:30], conditional.explainer
    alone = FastSHAP.load(conditional.saved)
    x = fitted.schema_.encode(X)[:].numpy()
    outputs = people_chances(X)
    known = run(conditional.graph, rows=x, outputs=outputs)
    expected = fitted(X, errors=True)
    np.testing.assert_allclose(known["shap_values"], expected.values, atol=1e-5)
    np.testing.assert_allclose(known["error_std"], expected.error_std, atol=1e-5)
    np.testing.assert_allclose(known["predictions"], outputs, atol=1e-9)
    estimated = run(conditional.graph, rows=x, outputs=np.full_like(outputs, np.nan))
    np.testing.assert_allclose(estimated["shap_values"], alone(X).values, atol=1e-5)
    assert np.abs(estimated["predictions"] - outputs).max() > 0.02  # the surrogate is not the model
    outputs[::2, 1] = np.nan
    mixed = run(conditional.graph, rows=x, outputs=outputs)
    for name, values in mixed.items():
        np.testing.assert_allclose(values[::2], estimated[name][::2], atol=1e-9)
        np.testing.assert_allclose(values[1::2], known[name][1::2], atol=1e-9)


def test_the_graph_of_a_conditional_game_with_a_link_and_one_output(tmp_path: Path) -> None:
    X = numbers(300)
    fitted = explainer(lambda rows: 1 / (1 + np.exp(-rows[:, 0])), value_function="conditional", link="logit").fit(
        X
    )
    fitted.save(tmp_path / "file.fastshap")
    fitted.export_onnx(tmp_path / "graph.onnx")
    known = run(tmp_path / "graph.onnx", rows=X[:9], outputs=X[:9, :1])
    np.testing.assert_allclose(known["shap_values"][..., 0], fitted(X[:9]).values, atol=1e-5)
    estimated = run(tmp_path / "graph.onnx", rows=X[:9], outputs=np.full((9, 1), np.nan))
    alone = FastSHAP.load(tmp_path / "file.fastshap")
    np.testing.assert_allclose(estimated["shap_values"][..., 0], alone(X[:9]).values, atol=1e-5)


@pytest.mark.parametrize("unknown", [0, 2, 5])
def test_the_check_of_a_conditional_graph_covers_known_and_unknown_outputs(
    unknown: int, conditional: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that is wrong for one kind of outputs only is found."""
    session = onnxruntime.InferenceSession

    class Wrong:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.session = session(*args, **options)

        def get_outputs(self) -> Any:
            return self.session.get_outputs()

        def run(self, names: Any, given: dict[str, NDArray[np.float64]]) -> Any:
            rows = len(given["rows"])
            wrong = rows > 1 and np.isnan(given["outputs"]).any(1).sum() == unknown
            return [part + 1e-3 * wrong for part in self.session.run(names, given)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(ExportError, match="differs from torch"):
        conditional.explainer.export_onnx(tmp_path / "graph.onnx")


def test_the_metadata_says_what_values_sum_to(
    exported: Exported, conditional: Exported, baseline_graph: Path
) -> None:
    files = (exported.graph, conditional.graph, baseline_graph)
    assert [metadata(file)["sums_to"] for file in files] == ["surrogate", "surrogate", "model"]
