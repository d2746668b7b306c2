"""The model's outputs: checked, and on the scale of the values."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import records

pytest.importorskip("onnxruntime", reason="needs the onnx extra")
from fastshapley.export.graph import Graph
from fastshapley.export.onnx import describe
from fastshapley.serving.model_outputs import OutputsError, model_outputs


@pytest.fixture(scope="module")
def graph(conditional: Any) -> Graph:
    """The graph of an explainer whose model returns probabilities."""
    return Graph(conditional.graph)


def test_outputs_are_checked(graph: Graph) -> None:
    np.testing.assert_array_equal(model_outputs([[0.25, 0.75]], 1, graph), [[0.25, 0.75]])
    for returned, message in (
        ([0.5], "all classes, not labels"),
        ([["a", "b"]], "did not return one number"),
        ([[np.nan, 0.5]], "is not finite"),
        ([[0.5, 0.6]], "the explained model returned probabilities"),
        ([[0.5, 0.5], [0.5, 0.5]], r"returned shape \(2, 2\), but \(1, 2\) is expected"),
    ):
        with pytest.raises(OutputsError, match=message):
            model_outputs(returned, 1, graph)


def test_logits_become_probabilities_before_the_link(conditional: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    shutil.copy(conditional.graph, copy)
    graph = Graph(copy)
    graph.logits = True
    np.testing.assert_allclose(model_outputs([[0.0, np.log(3)]], 1, graph), [[0.25, 0.75]])
    graph.link = "log"
    np.testing.assert_allclose(model_outputs([[0.0, np.log(3)]], 1, graph), np.log([[0.25, 0.75]]))
    graph.link, graph.scale, graph.output_names = "logit", "probability", ["one"]
    np.testing.assert_allclose(model_outputs([-0.3, 800.0], 2, graph)[0], [-0.3])


def test_a_graph_says_whether_the_model_returns_logits(conditional: Any) -> None:
    """Only then its metadata has the entry, so other graphs have the same bytes as before."""
    fitted = conditional.explainer.fitted_
    assert describe(fitted, logits=True)["logits"] is True
    assert "logits" not in describe(fitted)
    assert not Graph(conditional.graph).logits


def test_encoded_rows_are_decoded(graph: Graph, conditional: Any) -> None:
    rows = [list(row.values()) for row in records(conditional.X[:20])]
    assert graph.decode(graph.encode(rows)) == [
        [float(value) if isinstance(value, int | float) else value for value in row] for row in rows
    ]
