"""The user's model as an ONNX graph. This module imports neither torch nor pandas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.errors import InputError
from fastshapley.export.graph import Array, Graph, Runs, open_session
from fastshapley.serving.model_outputs import OutputsError, model_outputs

_DTYPES: dict[str, Any] = {
    "tensor(double)": np.float64,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}


class UserModel:
    """A classifier or regressor as a function from encoded rows to the outputs that a graph takes.

    Parameters
    ----------
    data : bytes
        Content of the ONNX file. The model takes one matrix of numbers, or one input per column.
    graph : Graph
        The exported explainer of the model.

    Raises
    ------
    FileFormatError
        If the content is not an ONNX graph, or has tensors in other files.
    InputError
        If the model does not take the rows of the explainer.
    """

    def __init__(self, data: bytes, graph: Graph) -> None:
        session = open_session(data, "the model", threads=1)
        self._graph, self._runs = graph, Runs(session)
        self._output = output_name([output.name for output in session.get_outputs()])
        self._inputs = [(part.name, part.type) for part in session.get_inputs()]
        unknown = sorted({kind for _, kind in self._inputs} - _DTYPES.keys())
        if unknown:
            raise InputError(f"the model takes {unknown[0]}: use a model that takes numbers, booleans or strings")
        self._categories = [graph.categories(column) for column in graph.columns]
        self._places = self._matched_columns()

    def __call__(self, rows: Array) -> Array:
        """Return the outputs of rows on the scale of the values.

        Parameters
        ----------
        rows : ndarray
            What `Graph.encode` or `Graph.check` returned.

        Returns
        -------
        outputs : ndarray of shape (n, outputs)
            The outputs.

        Raises
        ------
        OutputsError
            If the model does not return what the explained model returned.
        InputError
            If a value is missing in a column that the model takes as integers or booleans.
        """
        if not self._places:
            ((name, kind),) = self._inputs
            given = {name: self._matrix(rows, kind)}
        else:
            given = {
                name: self._column(rows, place, kind)[:, None]
                for (name, kind), place in zip(self._inputs, self._places, strict=True)
            }
        (returned,) = self._runs([self._output], given)
        try:
            return model_outputs(output_matrix(returned), len(rows), self._graph)
        except OutputsError as error:
            raise OutputsError(f"the model {error}") from None

    def stop_runs(self, seconds: float) -> None:
        """Stop runs in other threads that have taken longer than this. They raise an error.

        Parameters
        ----------
        seconds : float
            Longest time of a run, in seconds.
        """
        self._runs.stop(seconds)

    def _matched_columns(self) -> list[int]:
        """Return the place of the column for each input, or an empty list for a model that takes one matrix."""
        columns, names = self._graph.columns, [name for name, _ in self._inputs]
        if len(names) == 1 and names != columns:
            texts = [column for column in columns if self._graph.categories(column) and self._has_text(column)]
            if texts:
                raise InputError(
                    f"the model takes one matrix of numbers, but column {texts[0]!r} has text: "
                    "use a model with one input per column"
                )
            return []
        if set(names) == set(columns):
            return [columns.index(name) for name in names]
        raise InputError(f"the model has the inputs {names}, but the explainer has the columns {columns}")

    def _has_text(self, column: str) -> bool:
        return any(isinstance(category, str) for category in self._graph.categories(column) or ())

    def _matrix(self, rows: Array, kind: str) -> NDArray[Any]:
        if self._graph.image_shape is not None or not any(self._categories):
            return self._cast(rows, kind, "rows")
        columns = [self._column(rows, place, "tensor(double)") for place in range(rows.shape[1])]
        return self._cast(np.column_stack(columns), kind, "rows")

    def _column(self, rows: Array, place: int, kind: str) -> NDArray[Any]:
        """Return the values of one column. A missing string is empty."""
        codes, categories = rows[:, place], self._categories[place]
        if kind == "tensor(string)":
            values = codes.tolist() if categories is None else _decoded(codes, categories)
            return np.array(["" if value is None or value != value else str(value) for value in values], object)
        if categories is not None:
            try:
                decoded = [math.nan if value is None else float(value) for value in _decoded(codes, categories)]
            except ValueError:
                name = self._graph.columns[place]
                raise InputError(f"the model takes numbers for column {name!r}, which has text") from None
            codes = np.array(decoded)
        return self._cast(codes, kind, f"column {self._graph.columns[place]!r}")

    def _cast(self, values: NDArray[Any], kind: str, label: str) -> NDArray[Any]:
        dtype = _DTYPES[kind]
        if dtype is object:
            raise InputError("the model takes one matrix of strings: use a model with one input per column")
        if np.dtype(dtype).kind in "ib" and np.isnan(values).any():
            raise InputError(f"{label} has a missing value, which the model (--model) cannot take")
        with np.errstate(over="ignore"):
            return values.astype(dtype)


def output_name(names: Sequence[str]) -> str:
    """Return the output of an ONNX model that holds its predictions.

    Parameters
    ----------
    names : sequence of str
        Names of all outputs.

    Returns
    -------
    name : str
        The first one with "prob" in its name, or the first one that does not hold labels.
    """
    likely = [name for name in names if "prob" in name.lower()]
    return (likely or [name for name in names if "label" not in name.lower()] or list(names))[0]


def output_matrix(returned: Any) -> Any:
    """Return the predictions of an ONNX model as one array or as lists of numbers.

    Parameters
    ----------
    returned : object
        An array, or a list of mappings from classes to probabilities, as scikit-learn's converter returns it.

    Returns
    -------
    predictions : object
        The array, or one list of probabilities per row, in the order of the classes.
    """
    if isinstance(returned, list):
        return [[row[name] for name in sorted(row)] for row in returned]
    return returned


def _decoded(codes: Array, categories: Sequence[Any]) -> list[Any]:
    """Return the categories of codes, with None for a missing one."""
    return [None if code != code else categories[int(code)] for code in codes.tolist()]
