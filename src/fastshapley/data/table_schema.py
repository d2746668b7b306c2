"""The user's table <-> one tensor.

A `Schema` is read off the table that an explainer is fitted on. It encodes any later table of the same
layout as a float64 tensor, losslessly (numbers as they are, categories as codes, gaps as NaN), and decodes
such a tensor back to rows of the user's own type, which is what the user's model is called with.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.data.column import Column, survives
from fastshapley.errors import InputError
from fastshapley.training.process_group import ProcessGroup

logger = logging.getLogger(__name__)

Table = pd.DataFrame | np.ndarray | Tensor
_EXACT = 2.0**53  # float64 holds every integer below, and rounds some above to this


@dataclass(frozen=True)
class Schema:
    """The layout of a table; see the module's description.

    >>> frame = pd.DataFrame({"age": [39, 50], "job": ["clerk", None]})
    >>> schema = Schema.of(frame)
    >>> schema.encode(frame)
    tensor([[39.,  0.],
            [50., nan]], dtype=torch.float64)
    >>> schema.decode(schema.encode(frame)).equals(frame)
    True
    """

    container: str
    columns: tuple[Column, ...]
    dtype: str = ""

    @classmethod
    def of(cls, X: Table) -> Schema:
        """The schema of a DataFrame, a two-dimensional array or a tensor."""
        if isinstance(X, pd.DataFrame):
            _check_frame(X)
            return cls("frame", tuple(Column.of(key, X[key]) for key in X.columns))
        if isinstance(X, Tensor):
            _check_matrix(X.shape)
            if X.is_complex():
                raise InputError("Complex data not supported: X is a complex tensor, pass real numbers")
            dtype = str(X.dtype).removeprefix("torch.")
            return cls("tensor", _plain_columns(X.shape[1], dtype), dtype)
        array = _as_array(X)
        if array.dtype.kind in "biuf":
            return cls("array", _plain_columns(array.shape[1], array.dtype.name), array.dtype.str)
        frame = pd.DataFrame(array.astype(object))
        columns = tuple(Column.of(f"x{key}", frame[key]) for key in frame.columns)
        return cls("array", columns, array.dtype.str)

    def agreed(self, processes: ProcessGroup) -> Schema:
        """The schema of the rows of a whole processes."""
        everyone = processes.everyone(self)
        if any((other.container, other.names) != (self.container, self.names) for other in everyone):
            raise InputError("X has other columns in other processes, or is of another type there")
        columns = zip(*(schema.columns for schema in everyone), strict=True)
        merged = tuple(Column.merged(parts) for parts in columns) if processes.size > 1 else self.columns
        plain = self.container != "frame" and all(column.categories is None for column in merged)
        dtype = str(np.result_type(*(s.dtype for s in everyone))) if plain and processes.size > 1 else self.dtype
        return Schema(self.container, merged, dtype)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    @property
    def categorical(self) -> bool:
        """Whether any column holds categories."""
        return any(column.categories is not None for column in self.columns)

    @property
    def category_counts(self) -> tuple[int, ...]:
        """The number of categories of each column, 0 for numbers."""
        return tuple(len(column.categories or ()) for column in self.columns)

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Whether each column holds no numbers."""
        return tuple(column.discrete for column in self.columns)

    def encode(self, X: Table, argument: str = "X") -> Tensor:
        """The table as a float64 tensor (rows, columns); an error names ``argument``."""
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy() if X.is_complex() else X.detach().cpu().double().numpy()
        if isinstance(X, pd.DataFrame) and self.container == "frame":
            self._check_names(X, argument)
        table = X if isinstance(X, pd.DataFrame) else _as_array(X, argument)
        if table.shape[1] != len(self.columns):
            raise InputError(
                f"{argument} has {table.shape[1]} features, but FastSHAP is expecting {len(self.columns)} features "
                "as input"
            )
        if isinstance(table, np.ndarray) and table.dtype.kind in "biuf" and not self.categorical:
            encoded = np.array(table, dtype=np.float64, order="C")
        else:
            frame = pd.DataFrame(table)
            encoded = np.empty(frame.shape, dtype=np.float64)
            for j, column in enumerate(self.columns):
                encoded[:, j] = column.encode(frame.iloc[:, j], argument)
        check_numbers(self.columns, encoded, argument)
        return torch.from_numpy(encoded)

    def encode_cell(self, column: int, value: Any) -> float:
        """One value of one column, as `encode` would encode it."""
        encoded = self.columns[column].encode(pd.Series([value], dtype=object), "values")
        check_numbers([self.columns[column]], encoded[:, None], "values")
        return float(encoded[0])

    def decode(self, x: Tensor) -> Table:
        """Rows of the user's own type from their tensor (rows, columns), which they share no memory with.

        A column that cannot hold its new values, such as integers that have got a mean or a gap, becomes float.
        """
        values = x.detach().cpu().numpy()
        if self.container == "tensor":
            own: torch.dtype = getattr(torch, self.dtype)
            fits = own.is_floating_point or survives(values, np.dtype(self.dtype))
            return x.detach().to(own if fits else x.dtype, copy=True)
        if self.container == "frame":
            return _frame(self.columns, values)
        dtype = np.dtype(self.dtype)
        if dtype.kind in "biuf":
            return values.astype(dtype if survives(values, dtype) else values.dtype)
        array = _frame(self.columns, values).to_numpy(dtype=object)
        # an array of strings has no gaps: "nan" in it would be one more string, and "n" where it is cut short
        return array if dtype.kind == "O" or np.isnan(values).any() else array.astype(dtype)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        for column in self.columns:
            values = (column.key, *(column.categories or ()))
            if not all(value is None or isinstance(value, str | int | float) for value in values):
                raise InputError(
                    f"column {column.name!r} has a name or categories that cannot be saved, such as "
                    f"{values[-1]!r}: turn them into strings before fitting"
                )
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Schema:
        """The schema that `to_dict` described."""
        columns = []
        for column in state["columns"]:
            categories = column["categories"]
            columns.append(Column(**{**column, "categories": None if categories is None else tuple(categories)}))
        return cls(state["container"], tuple(columns), state["dtype"])

    def _check_names(self, X: pd.DataFrame, argument: str) -> None:
        expected, got = [c.key for c in self.columns], list(X.columns)
        if got == expected:
            return
        _check_unique(X, argument)
        missing = [key for key in expected if key not in got]
        unknown = [key for key in got if key not in expected]
        if missing:
            raise InputError(lacking(argument, missing, unknown))
        if unknown:
            raise InputError(
                f"{argument} has columns that the explainer was not fitted on: {unknown}; "
                f"pass {argument}[list(explainer.feature_names_in_)]"
            )
        raise InputError(
            f"{argument} has its columns in another order than at fit; "
            f"pass {argument}[list(explainer.feature_names_in_)]"
        )


def lacking(argument: str, missing: Sequence[Any], unknown: Sequence[Any]) -> str:
    """That a table lacks columns, and which of its ``unknown`` ones these may be."""
    near = {key: difflib.get_close_matches(str(key), [str(k) for k in unknown], 1) for key in missing}
    hints = [f"{key!r}" + (f" (renamed to {near[key][0]!r}?)" if near[key] else "") for key in missing]
    return f"{argument} lacks the column{'s' * (len(missing) > 1)} {', '.join(hints)}"


def _plain_columns(width: int, dtype: str) -> tuple[Column, ...]:
    return tuple(Column(f"x{j}", dtype) for j in range(width))


def _as_array(X: Any, argument: str = "X") -> NDArray[Any]:
    if hasattr(X, "toarray") and hasattr(X, "tocsr"):
        raise InputError(f"{argument} is a sparse matrix: pass {argument}.toarray()")
    if isinstance(X, pd.Series):
        raise InputError(f"{argument} is a Series: pass a table, such as frame.iloc[[0]] for one row")
    if np.ma.isMaskedArray(X):
        raise InputError(f"{argument} is a masked array: pass {argument}.filled(np.nan), a gap being NaN")
    if hasattr(X, "column_names") or hasattr(X, "columns"):  # of other packages, by whose order it would go
        raise InputError(f"{argument} is a {type(X).__module__}.{type(X).__name__}: pass {argument}.to_pandas()")
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise InputError(f"{argument} is no table: {error}") from None
    _check_matrix(array.shape, argument)
    if array.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {argument} has dtype {array.dtype}, pass real numbers")
    if array.dtype.kind not in "biufOUS":
        raise InputError(f"{argument} has dtype {array.dtype}: pass numbers, booleans or strings")
    return array


def _check_matrix(shape: Sequence[int], argument: str = "X") -> None:
    if len(shape) == 4:
        raise InputError(f"{argument} has shape {tuple(shape)}: for images, pass players=Superpixels(grid=14)")
    if len(shape) != 2:
        raise InputError(
            f"{argument} has shape {tuple(shape)}. Reshape your data to a table of shape (rows, columns); "
            f"one row is {argument}.reshape(1, -1)"
        )
    if shape[1] == 0:
        raise InputError(
            f"{argument} has no columns: 0 feature(s) (shape={tuple(shape)}) while a minimum of 1 is required."
        )


def _check_frame(X: pd.DataFrame) -> None:
    _check_matrix(X.shape)
    if isinstance(X.columns, pd.MultiIndex):
        raise InputError("X has a MultiIndex as columns: flatten it first")
    _check_unique(X, "X")


def _check_unique(X: pd.DataFrame, argument: str) -> None:
    names = X.columns.map(str)
    if not names.is_unique:
        raise InputError(f"{argument} has duplicate columns: {names[names.duplicated()].unique().tolist()}")


def check_numbers(columns: Sequence[Column], encoded: NDArray[np.float64], argument: str) -> None:
    """Whether encoded rows (n, columns) are finite and exact; an error names ``argument``."""
    for j in np.flatnonzero((np.abs(encoded) >= _EXACT).any(axis=0)).tolist():
        where = f"in column {columns[j].name!r} of {argument}"
        if np.isinf(encoded[:, j]).any():
            raise InputError(f"infinite values {where}: replace them by NaN or a finite number")
        if columns[j].integral:
            raise InputError(f"integers from 2**53 {where}: if they are identifiers, drop the column")


def _frame(columns: Sequence[Column], values: NDArray[np.float64]) -> pd.DataFrame:
    if all(column.dtype == "float64" for column in columns):
        return pd.DataFrame(values, columns=[column.key for column in columns], copy=True)
    return pd.DataFrame({column.key: column.decode(values[:, j]) for j, column in enumerate(columns)})
