"""Tests of explainers as MLflow models: logged, loaded and served without a pickle."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small_images
import torch
from conftest import Exported
from problems import explainer, numbers, people, people_chances, people_model

from fastshapley import FastSHAP, Groups
from fastshapley.errors import FileFormatError, InputError, ModelError

pytest.importorskip("mlflow", reason="needs the mlflow extra")
import fastshapley.interop.mlflow as interop

mlflow: Any = interop.mlflow
pytestmark = [
    pytest.mark.filterwarnings("ignore:Operation with range"),  # mlflow 3.17 with pandas 3.1
    pytest.mark.filterwarnings("ignore:.*filesystem tracking backend:FutureWarning"),
]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a tracking store in the folder of the test, without pickles and without telemetry."""
    for name, value in {
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        monkeypatch.setenv(name, value)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def grouped() -> tuple[FastSHAP, pd.DataFrame]:
    """Return an explainer of a table with a group, a pandas categorical, gaps and two outputs, and the table."""
    X, y = people()
    return explainer(people_model(X, y), players=Groups({"work": ["income", "job"]})).fit(X), X


@pytest.fixture
def saved(grouped: tuple[FastSHAP, pd.DataFrame], tmp_path: Path) -> Path:
    interop.save_explainer(grouped[0], tmp_path / "saved")
    return tmp_path / "saved"


def check(found: pd.DataFrame, fitted: FastSHAP, X: Any) -> None:
    """Check that a table holds the values, base values and predictions of rows."""
    explanation = fitted(X)
    outputs = len(fitted.output_names_)
    values = np.reshape(explanation.values, (len(X), -1, outputs))
    base = np.reshape(explanation.base_values, (len(X), outputs))
    for k, output in enumerate(fitted.output_names_):
        suffix = f"_{output}" if outputs > 1 else ""
        for j, player in enumerate(fitted.player_names_):
            np.testing.assert_allclose(found[f"shap_{player}{suffix}"], values[:, j, k], atol=1e-6)
        np.testing.assert_allclose(found[f"base_value{suffix}"], base[:, k], atol=1e-6)
        np.testing.assert_allclose(found[f"prediction{suffix}"], base[:, k] + values[:, :, k].sum(1), atol=1e-6)
    assert found.shape == (len(X), (len(fitted.player_names_) + 2) * outputs)


def test_a_logged_explainer_can_be_loaded_and_predicts_from_every_uri(
    grouped: tuple[FastSHAP, pd.DataFrame],
) -> None:
    fitted, X = grouped
    with mlflow.start_run() as run:
        info = interop.log_explainer(fitted, "credit", registered_model_name="credit")
    assert info.run_id == run.info.run_id
    for uri in (info.model_uri, f"runs:/{run.info.run_id}/credit", "models:/credit/1"):
        loaded = interop.load_explainer(uri)
        assert isinstance(loaded, FastSHAP)
        np.testing.assert_array_equal(loaded.shap_values(X[:9]), fitted.shap_values(X[:9]))
        check(mlflow.pyfunc.load_model(uri).predict(X[:9]), fitted, X[:9])


def test_the_artifact_is_one_file_without_a_pickle(saved: Path) -> None:
    names = {path.name for path in saved.rglob("*") if path.is_file()}
    assert {"MLmodel", "explainer.fastshap", "requirements.txt"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".joblib", ".pt"))]
    (file,) = saved.rglob("explainer.fastshap")
    FastSHAP.load(file)
    assert "fastshapley[mlflow]==" in (saved / "requirements.txt").read_text()


def test_predictions_keep_the_index_and_accept_columns_in_any_order(
    saved: Path, grouped: tuple[FastSHAP, pd.DataFrame]
) -> None:
    fitted, X = grouped
    rows = X[40:45]
    found = mlflow.pyfunc.load_model(os.fspath(saved)).predict(rows[rows.columns[::-1]])
    assert found.index.equals(rows.index)
    check(found, fitted, rows)


def test_the_signature_and_the_input_example_are_inferred(
    saved: Path, grouped: tuple[FastSHAP, pd.DataFrame]
) -> None:
    fitted, X = grouped
    model = mlflow.models.Model.load(os.fspath(saved))
    kinds = {spec.name: str(getattr(spec.type, "name", spec.type)) for spec in model.signature.inputs}
    assert kinds == {"age": "long", "income": "double", "job": "string", "city": "Any", "member": "boolean"}
    predicted = mlflow.pyfunc.load_model(os.fspath(saved)).predict(X[:2])
    assert model.signature.outputs.input_names() == list(predicted.columns)
    example = model.load_input_example(os.fspath(saved))
    assert list(example.columns) == list(X.columns)
    assert len(example) == 5
    check(mlflow.pyfunc.load_model(os.fspath(saved)).predict(example), fitted, example)
    # The example has values of the columns, but no training row.
    assert set(example["city"]) <= {"Bern", "Basel"}
    assert len(example.merge(X.astype({"city": str}), on=["age", "income", "job"])) == 0


def test_the_metadata_holds_the_report(saved: Path, grouped: tuple[FastSHAP, pd.DataFrame]) -> None:
    report = grouped[0].report_
    assert report is not None
    metadata = mlflow.models.Model.load(os.fspath(saved)).metadata
    assert metadata["report"]["relative_squared_error"] == report.relative_squared_error


def test_options_of_the_user_are_passed_to_mlflow(grouped: tuple[FastSHAP, pd.DataFrame], tmp_path: Path) -> None:
    fitted, X = grouped
    given = {"pip_requirements": ["fastshapley==7"], "metadata": {"team": "credit"}}
    interop.save_explainer(fitted, tmp_path / "given", input_example=X[:3], **given)
    model = mlflow.models.Model.load(os.fspath(tmp_path / "given"))
    assert model.metadata == {"team": "credit"}
    assert "fastshapley==7" in (tmp_path / "given/requirements.txt").read_text()
    np.testing.assert_array_equal(model.load_input_example(os.fspath(tmp_path / "given"))["age"], X["age"][:3])
    with pytest.raises(InputError, match="X lacks the column 'age'"):
        interop.save_explainer(fitted, tmp_path / "other", input_example=X.drop(columns="age"))
    with pytest.raises(InputError, match="python_model is passed to MLflow by this function"):
        interop.save_explainer(fitted, tmp_path / "other", python_model=object())


@pytest.mark.parametrize("container", ["array", "tensor", "integers"])
def test_explainers_of_arrays_accept_arrays_and_frames_with_any_names(container: str, tmp_path: Path) -> None:
    array = numbers(150)
    X: Any = {"array": array, "tensor": torch.from_numpy(array), "integers": (4 * array).astype(int)}[container]
    fitted = explainer(lambda x: 0.5 * x[:, 0] * x[:, 1]).fit(X)
    interop.save_explainer(fitted, tmp_path / "array")
    served = mlflow.pyfunc.load_model(os.fspath(tmp_path / "array"))
    rows = np.asarray(X[:6])
    check(served.predict(rows), fitted, rows)
    check(served.predict(pd.DataFrame(rows, columns=list("abcd"))), fitted, rows)


@pytest.mark.parametrize("given", [True, False])
def test_columns_with_numbers_as_labels_are_found(given: bool, tmp_path: Path) -> None:
    X = pd.DataFrame(numbers())
    fitted = explainer(lambda rows: np.asarray(rows)[:, 0]).fit(X)
    interop.save_explainer(fitted, tmp_path / "saved", input_example=X[:3] if given else None)
    check(mlflow.pyfunc.load_model(os.fspath(tmp_path / "saved")).predict(X[:4].rename(columns=str)), fitted, X[:4])


def test_columns_of_types_that_mlflow_does_not_have_are_accepted(tmp_path: Path) -> None:
    """Integers with gaps, for example, have no type in MLflow."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "gaps": pd.array([None if u < 0.2 else int(9 * u) for u in rng.random(120)], dtype="Int64"),
            "maybe": pd.array([None if u < 0.2 else u < 0.5 for u in rng.random(120)], dtype="boolean"),
            "grade": pd.Categorical(rng.integers(1, 4, 120)),
            "small": rng.integers(0, 200, 120).astype(np.uint8),
            "single": rng.normal(size=120).astype(np.float32),
            "mixed": rng.choice(np.array(["a", 1], dtype=object), 120),
        }
    )
    fitted = explainer(lambda table: table["single"].to_numpy() + (table["grade"] == 2)).fit(X)
    interop.save_explainer(fitted, tmp_path / "kinds")
    check(mlflow.pyfunc.load_model(os.fspath(tmp_path / "kinds")).predict(X[:20]), fitted, X[:20])


@pytest.mark.parametrize("kind", ["marginal", "images"])
def test_explainers_that_need_the_model_are_loaded_with_it_and_not_served(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, image_explainer: FastSHAP
) -> None:
    if kind == "images":
        fitted, X = image_explainer, small_images.X
    else:
        X = torch.from_numpy(numbers(120))
        fitted = explainer(lambda x: x[:, 0] * x[:, 1], value_function="marginal").fit(X)
    caplog.clear()
    interop.save_explainer(fitted, tmp_path / "needy")
    (record,) = [r for r in caplog.records if r.name == "fastshapley.interop.mlflow"]
    assert "the explainer needs the model" in record.message
    loaded = interop.load_explainer(tmp_path / "needy", fitted.model)
    np.testing.assert_allclose(loaded.shap_values(X[:3]), fitted.shap_values(X[:3]), atol=1e-9)
    with pytest.raises((FileFormatError, ModelError), match="model"):
        mlflow.pyfunc.load_model(os.fspath(tmp_path / "needy")).predict(X[:3].numpy())


def test_an_mlflow_model_without_an_explainer_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "loader.py"
    other.write_text("def _load_pyfunc(path):\n    return None\n")
    mlflow.pyfunc.save_model(
        os.fspath(tmp_path / "other"), loader_module="loader", data_path=os.fspath(other), pip_requirements=[]
    )
    with pytest.raises(
        FileFormatError, match=r"not written by log_explainer: its flavors are \['python_function'\]"
    ):
        interop.load_explainer(tmp_path / "other")


def test_explainers_logged_by_mlflow_shap_can_be_loaded(
    grouped: tuple[FastSHAP, pd.DataFrame], tmp_path: Path
) -> None:
    fitted, X = grouped
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to serialize underlying model")
        mlflow.shap.save_explainer(fitted, os.fspath(tmp_path / "shap"), pip_requirements=["fastshapley"])
    loaded = interop.load_explainer(tmp_path / "shap")
    np.testing.assert_array_equal(loaded.shap_values(X[:9]), fitted.shap_values(X[:9]))


# serving


@dataclass(frozen=True)
class Server:
    """An MLflow scoring server in a process of its own."""

    url: str
    fitted: FastSHAP
    X: pd.DataFrame
    folder: Path

    def ask(self, body: bytes, kind: str = "application/json") -> tuple[int, Any]:
        request = urllib.request.Request(f"{self.url}/invocations", body, {"content-type": kind})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture(scope="module")
def server(grouped: tuple[FastSHAP, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from mlflow.pyfunc import scoring_server

    folder = tmp_path_factory.mktemp("mlflow") / "served"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Operation with range")
        interop.save_explainer(grouped[0], folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    get_cmd: Any = scoring_server.get_cmd
    command, environment = get_cmd(os.fspath(folder), port=port, host="127.0.0.1")
    environment |= {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    log, url = folder.parent / "log", f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(command)], env=environment, stdout=file, stderr=file
        )
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/ping", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.2)
        yield Server(url, *grouped, folder)
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("orient", ["split", "records"])
def test_the_server_explains_rows_in_json(server: Server, orient: str) -> None:
    rows = server.X[:7]
    body = json.dumps({f"dataframe_{orient}": json.loads(rows.to_json(orient=orient))})  # type: ignore[call-overload]
    status, answer = server.ask(body.encode())
    assert status == 200
    check(pd.DataFrame(answer["predictions"]), server.fitted, rows)


def test_the_server_accepts_the_example_that_mlflow_saves(server: Server) -> None:
    status, answer = server.ask((server.folder / "serving_input_example.json").read_bytes())
    assert status == 200
    example = mlflow.models.Model.load(os.fspath(server.folder)).load_input_example(os.fspath(server.folder))
    check(pd.DataFrame(answer["predictions"]), server.fitted, example)


def test_the_server_names_missing_columns(server: Server) -> None:
    status, answer = server.ask(b'{"dataframe_records": [{"age": 3}]}')
    assert status == 400
    assert "missing inputs" in answer["message"]


def test_the_import_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "fastshapley.interop.mlflow")
    with pytest.raises(ImportError, match=r"needs mlflow: install it with pip install 'fastshapley\[mlflow\]'"):
        import fastshapley.interop.mlflow  # noqa: F401


def test_a_conditional_game_is_served_with_the_sum_of_its_surrogate(conditional: Exported, tmp_path: Path) -> None:
    interop.save_explainer(conditional.explainer, tmp_path / "saved")
    metadata = mlflow.models.Model.load(os.fspath(tmp_path / "saved")).metadata
    assert metadata["sums_to"] == "surrogate"
    X = conditional.X[:5]
    served = mlflow.pyfunc.load_model(os.fspath(tmp_path / "saved")).predict(X)
    check(served, FastSHAP.load(conditional.saved), X)
    whole = interop.load_explainer(tmp_path / "saved", people_chances)
    np.testing.assert_array_equal(whole(X).values, conditional.explainer(X).values)
