"""What all serving protocols share: the limit on rows, and the inputs of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.serving_protocol import TooManyRowsError, check_row_count, graph_inputs, numeric_array


@pytest.fixture(scope="module")
def graph(exported: Any) -> Graph:
    """The exported explainer of people."""
    return Graph(exported.graph)


def test_the_limit_on_rows_is_inclusive() -> None:
    check_row_count(100, 100)
    with pytest.raises(TooManyRowsError, match="101 rows exceed the limit of 100"):
        check_row_count(101, 100)


def test_null_becomes_nan_in_an_array_of_numbers() -> None:
    np.testing.assert_array_equal(numeric_array("rows", [[1, None]], np.float64), [[1.0, np.nan]])


@pytest.mark.parametrize("values", [[["1"]], [[True]], [[1], [1, 2]], [[10**400]], [[{}]]])
def test_values_that_are_not_numbers_are_refused(values: Any) -> None:
    with pytest.raises(InputError, match="rows must be numbers"):
        numeric_array("rows", values, np.float64)


def test_outputs_are_ignored_if_the_graph_does_not_need_them(graph: Graph) -> None:
    rows = graph.example()[0]
    assert graph_inputs(rows, "anything", graph) == (rows,)


def test_outputs_are_reshaped_to_one_row_per_row(baseline_graph: Path) -> None:
    graph = Graph(baseline_graph)
    rows = np.repeat(graph.example()[0], 2, axis=0)
    np.testing.assert_array_equal(graph_inputs(rows, [1, 2, 3, 4], graph)[1], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (None, r"needs its own outputs: pass outputs of shape \(2, 2\)"),
        ([1, 2, 3], r"must be finite and have shape \(2, 2\), but have \(3,\)"),
        ([[1, 2], [3, None]], "must be finite"),
    ],
)
def test_missing_or_bad_outputs_are_refused(outputs: Any, message: str, baseline_graph: Path) -> None:
    graph = Graph(baseline_graph)
    with pytest.raises(InputError, match=message):
        graph_inputs(np.repeat(graph.example()[0], 2, axis=0), outputs, graph)
