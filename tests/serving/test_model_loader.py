"""Loading models from graphs and from saved explainers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshapley.errors import FileFormatError
from fastshapley.export.graph import Graph
from fastshapley.serving.model_loader import ModelLoader, run_graph


def test_a_graph_and_a_saved_explainer_are_the_same_model(exported: Any) -> None:
    loader = ModelLoader()
    graph, saved = loader.load("a", exported.graph).graph, loader.load("b", exported.saved).graph
    assert graph.about == saved.about
    row = graph.example()[0]
    np.testing.assert_array_equal(graph(row)["shap_values"], saved(row)["shap_values"])


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.onnx does not exist"):
        ModelLoader().load("people", tmp_path / "nothing.onnx")


def test_a_damaged_graph_is_an_error_with_its_path(exported: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.onnx"
    short.write_bytes(exported.graph.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"short\.onnx: the graph is cut short"):
        ModelLoader().load("people", short)


def test_a_damaged_explainer_is_an_error_with_the_reason_of_the_export(exported: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.fastshap"
    short.write_bytes(exported.saved.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"cannot be served: .*short\.fastshap"):
        ModelLoader().load("people", short)


def test_an_export_that_takes_too_long_is_stopped(exported: Any) -> None:
    with pytest.raises(FileFormatError, match=r"its export took more than 0\.05 seconds"):
        ModelLoader(export_timeout=0.05).load("people", exported.saved)


def test_closing_stops_a_running_export(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    class Slow(subprocess.Popen[str]):
        """A process that never ends, in place of the export."""

        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            started.set()

    monkeypatch.setattr(subprocess, "Popen", Slow)
    loader = ModelLoader()
    errors: list[Exception] = []

    def load() -> None:
        try:
            loader.load("people", exported.saved)
        except FileFormatError as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    assert started.wait(30)
    while thread.is_alive():  # The process may have started before the loader knows it.
        loader.close()
        time.sleep(0.01)
    assert "its export was stopped" in str(errors[0])


def test_rows_whose_results_are_not_finite_are_marked(graph: Graph) -> None:
    good = graph.example()[0]
    assert "finite" not in run_graph(graph, good)
    bad = good.copy()
    bad[0, :2] = 1e308, -1e308
    results = run_graph(graph, np.concatenate([good, bad]))
    assert results["finite"].tolist() == [True, False]
