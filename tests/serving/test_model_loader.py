"""Loading models from graphs and from saved explainers."""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshapley.errors import FileFormatError
from fastshapley.export.graph import Graph
from fastshapley.serving.model_loader import ModelLoader, run_graph


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)


@pytest.fixture
def saved(exported: Any, tmp_path: Path) -> Path:
    """A copy of the saved explainer, beside which no server has kept a graph."""
    return Path(shutil.copy(exported.saved, tmp_path))


def command(script: str) -> list[str]:
    """Return a command that runs a script in place of the export. Its arguments are source, --output and target."""
    return [sys.executable, "-c", textwrap.dedent(script)]


def test_a_saved_explainer_is_exported_first(exported: Any, tmp_path: Path) -> None:
    """The real export runs in test_app, where a server has both a graph and a saved explainer."""
    saved = tmp_path / "people.fastshap"
    shutil.copy(exported.graph, saved)
    copy = command("import shutil, sys; assert sys.argv[2] == '--output'; shutil.copy(sys.argv[1], sys.argv[3])")
    model = ModelLoader(export_command=copy).load("people", saved)
    assert model.name == "people"
    assert model.data == exported.graph.read_bytes()
    assert model.graph.columns == list(exported.X.columns)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.onnx does not exist"):
        ModelLoader().load("people", tmp_path / "nothing.onnx")


def test_a_damaged_graph_is_an_error_with_its_path(exported: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.onnx"
    short.write_bytes(exported.graph.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"short\.onnx cannot be served: the graph is cut short"):
        ModelLoader().load("people", short)


def test_an_export_that_fails_is_an_error_with_its_last_message(saved: Path) -> None:
    fail = command("import sys; sys.exit('a warning\\nfastshapley export: the file is cut short')")
    with pytest.raises(FileFormatError, match=r"people\.fastshap cannot be served: the file is cut short$"):
        ModelLoader(export_command=fail).load("people", saved)


def test_an_export_that_takes_too_long_is_stopped(saved: Path) -> None:
    wait = command("import time; time.sleep(600)")
    with pytest.raises(FileFormatError, match=r"its export took more than 0\.05 seconds"):
        ModelLoader(0.05, export_command=wait).load("people", saved)


def test_closing_stops_a_running_export(saved: Path) -> None:
    loader = ModelLoader(export_command=command("import time; time.sleep(600)"))
    errors: list[Exception] = []

    def load() -> None:
        try:
            loader.load("people", saved)
        except FileFormatError as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    end = time.monotonic() + 30
    while thread.is_alive() and time.monotonic() < end:  # The export may not have started at the first call.
        loader.close()
        time.sleep(0.01)
    assert "its export was stopped" in str(errors[0])


def test_a_trial_that_takes_too_long_is_stopped(exported: Any) -> None:
    with pytest.raises(
        FileFormatError, match=r"people\.onnx cannot be served: its trial took more than 0\.01 seconds"
    ):
        ModelLoader(trial_timeout=0.01).load("people", exported.graph)


def test_rows_whose_results_are_not_finite_are_marked(graph: Graph) -> None:
    good = graph.example()[0]
    assert "valid" not in run_graph(graph, good)
    bad = good.copy()
    bad[0, :2] = 1e308, -1e308
    results = run_graph(graph, np.concatenate([good, bad]))
    assert results["valid"].tolist() == [True, False]


def test_rows_whose_values_do_not_sum_to_the_prediction_are_marked(graph: Graph, groups_graph: Path) -> None:
    good = graph.example()[0]
    bad = good.copy()
    bad[0, 1] = 1e300  # The values are finite, but 1e37.
    assert np.isfinite(graph(bad)["shap_values"]).all()
    assert run_graph(graph, np.concatenate([good, bad, good]))["valid"].tolist() == [True, False, True]
    not_normalized = Graph(groups_graph)
    results = run_graph(not_normalized, not_normalized.example()[0])  # Its values sum to the prediction only about.
    assert np.abs(results["shap_values"].sum(1) + results["base_values"] - results["predictions"]).max() > 1e-6
    assert "valid" not in results
