"""The user's table <-> one tensor.

A `Schema` is read off the table that an explainer is fitted on. It encodes any later table of the same
layout as a float64 tensor, losslessly (numbers as they are, categories as codes, gaps as NaN), and decodes
such a tensor back to rows of the user's own type, which is what the user's model is called with.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.errors import InputError

logger = logging.getLogger(__name__)

Table = pd.DataFrame | np.ndarray | Tensor
_EXACT = 2.0**53  # float64 holds every integer below, and rounds some above to this


@dataclass(frozen=True)
class Column:
    """One column: its name, the dtype to give back, and for categories the values that the codes stand for.

    ``gap`` is what the user's own table has where a value is missing: None, NaN or ``pd.NA``. ``inner`` is the
    dtype of the categories, or of the numbers in an object column.
    """

    key: Any
    dtype: str
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    gap: str = "nan"
    inner: str = ""

    @property
    def name(self) -> str:
        return str(self.key)

    @property
    def discrete(self) -> bool:
        """Whether it holds categories or booleans, for which a mean makes no sense."""
        return self.categories is not None or self.dtype in ("bool", "boolean")

    @property
    def integral(self) -> bool:
        """Whether it holds integers that are numbers, not categories."""
        return self.categories is None and (self.inner or self.dtype).lower().startswith(("int", "uint"))


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
            return cls("frame", tuple(_column(key, X[key]) for key in X.columns))
        if isinstance(X, Tensor):
            _check_matrix(X.shape)
            if X.is_complex():
                raise InputError("X is a complex tensor: pass real numbers")
            dtype = str(X.dtype).removeprefix("torch.")
            return cls("tensor", _plain_columns(X.shape[1], dtype), dtype)
        array = _as_array(X)
        if array.dtype.kind in "biuf":
            return cls("array", _plain_columns(array.shape[1], array.dtype.name), array.dtype.str)
        frame = pd.DataFrame(array.astype(object))
        columns = tuple(_column(f"x{key}", frame[key]) for key in frame.columns)
        return cls("array", columns, array.dtype.str)

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

    def encode(self, X: Table, argument: str = "X") -> Tensor:
        """The table as a float64 tensor (rows, columns); an error names ``argument``."""
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy() if X.is_complex() else X.detach().cpu().double().numpy()
        if isinstance(X, pd.DataFrame) and self.container == "frame":
            self._check_names(X, argument)
        table = X if isinstance(X, pd.DataFrame) else _as_array(X, argument)
        if table.shape[1] != len(self.columns):
            raise InputError(f"{argument} has {table.shape[1]} columns where {len(self.columns)} are expected")
        if isinstance(table, np.ndarray) and table.dtype.kind in "biuf" and not self.categorical:
            encoded = np.array(table, dtype=np.float64, order="C")
        else:
            frame = pd.DataFrame(table)
            encoded = np.empty(frame.shape, dtype=np.float64)
            for j, column in enumerate(self.columns):
                encoded[:, j] = _encode(column, frame.iloc[:, j], argument)
        _check_numbers(self.columns, encoded, argument)
        return torch.from_numpy(encoded)

    def encode_cell(self, column: int, value: Any) -> float:
        """One value of one column, as `encode` would encode it."""
        encoded = _encode(self.columns[column], pd.Series([value], dtype=object), "values")
        _check_numbers([self.columns[column]], encoded[:, None], "values")
        return float(encoded[0])

    def decode(self, x: Tensor) -> Table:
        """Rows of the user's own type from their tensor (rows, columns), which they share no memory with.

        A column that cannot hold its new values, such as integers that have got a mean or a gap, becomes float.
        """
        values = x.detach().cpu().numpy()
        if self.container == "tensor":
            own: torch.dtype = getattr(torch, self.dtype)
            fits = own.is_floating_point or _fits(values, np.dtype(self.dtype))
            return x.detach().to(own if fits else x.dtype, copy=True)
        if self.container == "frame":
            return _frame(self.columns, values)
        dtype = np.dtype(self.dtype)
        if dtype.kind in "biuf":
            return values.astype(dtype if _fits(values, dtype) else values.dtype)
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
            near = {key: difflib.get_close_matches(str(key), [str(k) for k in unknown], 1) for key in missing}
            hints = [f"{key!r}" + (f" (renamed to {near[key][0]!r}?)" if near[key] else "") for key in missing]
            raise InputError(f"{argument} lacks the column{'s' * (len(missing) > 1)} {', '.join(hints)}")
        if unknown:
            raise InputError(
                f"{argument} has columns that the explainer was not fitted on: {unknown}; "
                f"pass {argument}[list(explainer.feature_names_in_)]"
            )
        raise InputError(
            f"{argument} has its columns in another order than at fit; "
            f"pass {argument}[list(explainer.feature_names_in_)]"
        )


def _plain_columns(width: int, dtype: str) -> tuple[Column, ...]:
    return tuple(Column(f"x{j}", dtype) for j in range(width))


def _as_array(X: Any, argument: str = "X") -> NDArray[Any]:
    if hasattr(X, "toarray") and hasattr(X, "tocsr"):
        raise InputError(f"{argument} is a sparse matrix: pass {argument}.toarray()")
    if isinstance(X, pd.Series):
        raise InputError(f"{argument} is a Series: pass a table, such as frame.iloc[[0]] for one row")
    array = np.asarray(X)
    _check_matrix(array.shape, argument)
    if array.dtype.kind not in "biufOUS":
        raise InputError(f"{argument} has dtype {array.dtype}: pass numbers, booleans or strings")
    return array


def _check_matrix(shape: Sequence[int], argument: str = "X") -> None:
    if len(shape) != 2:
        raise InputError(
            f"{argument} has shape {tuple(shape)}: pass a table of shape (rows, columns); "
            f"one row is {argument}.reshape(1, -1)"
        )
    if shape[1] == 0:
        raise InputError(f"{argument} has no columns")


def _check_frame(X: pd.DataFrame) -> None:
    _check_matrix(X.shape)
    if isinstance(X.columns, pd.MultiIndex):
        raise InputError("X has a MultiIndex as columns: flatten it first")
    _check_unique(X, "X")


def _check_unique(X: pd.DataFrame, argument: str) -> None:
    names = X.columns.map(str)
    if not names.is_unique:
        raise InputError(f"{argument} has duplicate columns: {names[names.duplicated()].unique().tolist()}")


def _check_numbers(columns: Sequence[Column], encoded: NDArray[np.float64], argument: str) -> None:
    for j in np.flatnonzero((np.abs(encoded) >= _EXACT).any(axis=0)).tolist():
        where = f"in column {columns[j].name!r} of {argument}"
        if np.isinf(encoded[:, j]).any():
            raise InputError(f"infinite values {where}: replace them by NaN or a finite number")
        if columns[j].integral:
            raise InputError(f"integers from 2**53 {where}: if they are identifiers, drop the column")


def _column(key: Any, values: pd.Series[Any]) -> Column:
    """What a column of the fitted table looks like."""
    dtype = values.dtype
    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(dtype, pd.CategoricalDtype):
        categories = tuple(dtype.categories.tolist())
        return Column(key, "category", categories, bool(dtype.ordered), inner=str(dtype.categories.dtype))
    if pd.api.types.is_numeric_dtype(dtype) and dtype.kind != "c" and not isinstance(dtype, pd.SparseDtype):
        return Column(key, str(dtype))
    if pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype):
        missing = values.isna()
        gaps = values[missing].iloc[:1].tolist()
        gap = "nan" if not gaps else {type(None): "none", type(pd.NA): "na"}.get(type(gaps[0]), "nan")
        present = values[~missing]
        kind = pd.api.types.infer_dtype(present) if pd.api.types.is_object_dtype(dtype) else ""
        if kind in _NUMBERS:
            return Column(key, "object", gap=gap, inner=_NUMBERS[kind])
        try:
            unique = pd.unique(present).tolist()
        except TypeError:
            raise InputError(
                f"column {key!r} holds objects such as {present.iloc[0]!r}: turn them into numbers or strings first"
            ) from None
        unique = [value.item() if isinstance(value, np.generic) else value for value in unique]
        with contextlib.suppress(TypeError):  # of several types: in the order met
            unique = sorted(unique)
        return Column(key, str(dtype), tuple(unique), gap=gap)
    raise InputError(f"column {key!r} has dtype {dtype}: turn it into plain numbers, strings or categories")


def _encode(column: Column, values: pd.Series[Any], argument: str) -> NDArray[np.float64]:
    if column.categories is None:
        try:
            if values.dtype.kind in "mMc":  # times and complex numbers, which numpy would turn into floats
                raise TypeError
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"{argument} has values in column {column.name!r} that are not numbers, "
                f"such as {_first_text(values)!r}; it held numbers at fit"
            ) from None
    index = pd.Index(list(column.categories), dtype=object)
    codes = index.get_indexer(pd.Index(values.astype(object))).astype(np.float64)
    unseen = (codes < 0) & values.notna().to_numpy()
    if unseen.any():
        example = values.to_numpy(dtype=object)[unseen][0]
        logger.warning(
            "column %r has values not seen at fit, such as %r: they are treated as missing",
            column.name,
            example,
        )
    codes[codes < 0] = np.nan
    return codes


def _first_text(values: pd.Series[Any]) -> Any:
    for value in values[values.notna()]:
        try:
            float(value)
        except (TypeError, ValueError, OverflowError):
            return value
    return None


def _frame(columns: Sequence[Column], values: NDArray[np.float64]) -> pd.DataFrame:
    if all(column.dtype == "float64" for column in columns):
        return pd.DataFrame(values, columns=[column.key for column in columns], copy=True)
    return pd.DataFrame({column.key: _decode(column, values[:, j]) for j, column in enumerate(columns)})


def _decode(column: Column, values: NDArray[np.float64]) -> Any:
    gaps = np.isnan(values)
    if column.categories is not None:
        codes = np.where(gaps, -1, values).astype(np.int64)
        if column.dtype == "category":
            categories = pd.Index(list(column.categories), dtype=cast(Any, column.inner))
            return pd.Categorical.from_codes(cast("Sequence[int]", codes), categories, column.ordered)
        table = np.empty(len(column.categories) + 1, dtype=object)
        table[:-1] = column.categories
        table[-1] = _GAPS[column.gap]()
        if column.dtype == "object":
            return pd.Series(table[codes], dtype=object)
        return pd.Series(table, dtype=cast(Any, column.dtype)).array.take(codes)
    dtype = pd.api.types.pandas_dtype(column.dtype)
    if pd.api.types.is_object_dtype(dtype):
        boxed = values.astype(object)
        if column.integral:
            whole = values == np.floor(values)
            boxed[whole] = values[whole].astype(np.int64)
        boxed[gaps] = _GAPS[column.gap]()
        return boxed
    if isinstance(dtype, np.dtype):
        return values.astype(dtype if _fits(values, dtype) else values.dtype)
    fits = _fits(values[~gaps], cast(Any, dtype).numpy_dtype)
    return pd.Series(np.where(gaps, 0, values)).astype(cast(Any, dtype if fits else "Float64")).mask(gaps)


_NUMBERS = {"integer": "int64", "floating": "float64", "mixed-integer-float": "float64"}  # as pandas infers them
_GAPS: dict[str, Callable[[], Any]] = {"none": lambda: None, "nan": lambda: np.nan, "na": lambda: pd.NA}


def _fits(values: NDArray[np.float64], dtype: np.dtype[Any]) -> bool:
    """Whether float64 values survive the way back to the user's dtype (a mean of integers would not)."""
    if dtype.kind == "f":  # where rounding is all that happens
        return dtype.itemsize >= 8 or not bool((np.abs(values) > np.finfo(dtype).max).any())
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = values == np.floor(values)  # False where there is a NaN
    return bool((whole & (values >= float(low)) & (values <= float(high))).all())
