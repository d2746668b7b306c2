"""What all serving protocols share: the limit on rows, and the inputs of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the serve extra")
from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.serving_protocol import (
    TooManyRowsError,
    check_row_count,
    graph_inputs,
    numeric_array,
    sums_of,
)


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
        (None, r"needs the model.s outputs: pass outputs of shape \(2, 2\)"),
        ([1, 2, 3], r"must be finite and have shape \(2, 2\), but have \(3,\)"),
        ([[1, 2], [3, None]], "must be finite"),
        ([[1], [2], [3], [4]], r"must be finite and have shape \(2, 2\), but have \(4, 1\)"),
        ([[1, 2, 3, 4]], r"must be finite and have shape \(2, 2\), but have \(1, 4\)"),
    ],
)
def test_missing_or_bad_outputs_are_refused(outputs: Any, message: str, baseline_graph: Path) -> None:
    graph = Graph(baseline_graph)
    with pytest.raises(InputError, match=message):
        graph_inputs(np.repeat(graph.example()[0], 2, axis=0), outputs, graph)


@pytest.mark.parametrize(
    ("outputs", "expected", "sums_to"),
    [
        (None, [[np.nan] * 2] * 2, "surrogate"),
        ([None, None], [[np.nan] * 2] * 2, "surrogate"),
        ([[0.25, 0.75], None], [[0.25, 0.75], [np.nan] * 2], "mixed"),
        ([[0.25, 0.75], [None, 0.5]], [[0.25, 0.75], [np.nan, 0.5]], "mixed"),
        ([[0.25, 0.75], [0.5, 0.5]], [[0.25, 0.75], [0.5, 0.5]], "model"),
    ],
)
def test_optional_outputs_may_be_left_out(outputs: Any, expected: Any, sums_to: str, conditional: Any) -> None:
    graph = Graph(conditional.graph)
    arrays = graph_inputs(np.repeat(graph.example()[0], 2, axis=0), outputs, graph)
    np.testing.assert_array_equal(arrays[1], expected)
    assert sums_of(arrays, graph) == sums_to


@pytest.mark.parametrize("outputs", [[[0.5, 0.5]], [[0.5, 1e999], None], [0.5, None], [["a", "b"], None], "ab", {}])
def test_bad_optional_outputs_are_refused(outputs: Any, conditional: Any) -> None:
    graph = Graph(conditional.graph)
    with pytest.raises(InputError, match="outputs must be"):
        graph_inputs(np.repeat(graph.example()[0], 2, axis=0), outputs, graph)


def test_values_of_a_graph_without_outputs_sum_to_the_surrogate(graph: Graph, baseline_graph: Path) -> None:
    rows = graph.example()[0]
    assert sums_of((rows,), graph) == "surrogate"
    assert sums_of((rows, np.zeros((1, 2))), Graph(baseline_graph)) == "model"
