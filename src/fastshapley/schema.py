"""The user's table <-> one tensor.

A `Schema` is read off the table that an explainer is fitted on. It encodes any later table of the same
layout as a float64 tensor, losslessly (numbers as they are, categories as codes, gaps as NaN), and decodes
such a tensor back to rows of the user's own type, which is what the user's model is called with.
"""

from __future__ import annotations

import contextlib
import difflib
import json
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
_EXACT = 2**53  # float64 holds every integer up to here


@dataclass(frozen=True)
class Column:
    """One column: its name, the dtype to give back, and for categories the values that the codes stand for.

    ``gap`` is what the user's own table has where a value is missing: None, NaN or ``pd.NA``.
    """

    key: Any
    dtype: str
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    gap: str = "nan"

    @property
    def name(self) -> str:
        return str(self.key)

    @property
    def discrete(self) -> bool:
        """Whether it holds categories or booleans, for which a mean makes no sense."""
        return self.categories is not None or self.dtype in ("bool", "boolean")


@dataclass(frozen=True)
class Schema:
    """The layout of a table; see the module's description.

    >>> frame = pd.DataFrame({"age": [39, 50], "job": ["clerk", None]})
    >>> schema = Schema.of(frame)
    >>> schema.encode(frame)
    tensor([[39., 0.],
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

    def encode(self, X: Table, argument: str = "X") -> Tensor:
        """The table as a float64 tensor (rows, columns); an error names ``argument``."""
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        if isinstance(X, pd.DataFrame):
            if self.container == "frame":
                self._check_names(X, argument)
            frame = X
        else:
            array = _as_array(X, argument)
            if array.dtype.kind in "biuf" and not self.categorical:
                self._check_width(array.shape[1], argument)
                return self._finite(np.array(array, dtype=np.float64, order="C"), argument)
            frame = pd.DataFrame(array)
        self._check_width(frame.shape[1], argument)
        encoded = np.empty(frame.shape, dtype=np.float64)
        for j, column in enumerate(self.columns):
            encoded[:, j] = _encode(column, frame.iloc[:, j], argument)
        return self._finite(encoded, argument)

    def encode_cell(self, column: int, value: Any) -> float:
        """One value of one column, as `encode` would encode it."""
        return float(_encode(self.columns[column], pd.Series([value], dtype=object), "values")[0])

    def decode(self, x: Tensor) -> Table:
        """Rows of the user's own type from their tensor (rows, columns)."""
        if self.container == "tensor":
            return x.to(getattr(torch, self.dtype)) if _fits(x, np.dtype(self.dtype)) else x
        values = x.detach().cpu().numpy()
        if self.container == "frame":
            return _frame(self.columns, values)
        dtype = np.dtype(self.dtype)
        if dtype.kind in "biuf":
            return values.astype(dtype) if _fits(x, dtype) else values
        frame = _frame(self.columns, values)
        array = frame.to_numpy(dtype=object)
        return array if dtype.kind == "O" else array.astype(dtype)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain JSON values."""
        for column in self.columns:
            try:
                json.dumps([column.key, column.categories])
            except TypeError:
                raise InputError(
                    f"column {column.name!r} has categories that cannot be saved, such as "
                    f"{(column.categories or (column.key,))[0]!r}: turn them into strings before fitting"
                ) from None
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

    def _check_width(self, width: int, argument: str) -> None:
        if width != len(self.columns):
            raise InputError(f"{argument} has {width} columns where {len(self.columns)} are expected")

    def _finite(self, encoded: NDArray[np.float64], argument: str) -> Tensor:
        bad = np.isinf(encoded).any(axis=0)
        if bad.any():
            names = [self.names[j] for j in np.flatnonzero(bad)]
            raise InputError(f"{argument} has infinite values in {names}: replace them by NaN or a finite number")
        return torch.from_numpy(encoded)


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
    if not X.columns.is_unique:
        raise InputError(f"X has duplicate columns: {sorted(set(X.columns[X.columns.duplicated()]))}")


def _column(key: Any, values: pd.Series[Any]) -> Column:
    """What a column of the fitted table looks like."""
    dtype = values.dtype
    key = key.item() if isinstance(key, np.generic) else key
    if isinstance(dtype, pd.CategoricalDtype):
        return Column(key, "category", tuple(dtype.categories.tolist()), bool(dtype.ordered))
    if pd.api.types.is_bool_dtype(dtype) or pd.api.types.is_numeric_dtype(dtype):
        if pd.api.types.is_complex_dtype(dtype):
            raise InputError(f"column {key!r} is complex: pass real numbers")
        if pd.api.types.is_integer_dtype(dtype) and len(values) and values.abs().max() > _EXACT:
            raise InputError(f"column {key!r} has integers above 2**53: if they are identifiers, drop them")
        return Column(key, str(dtype))
    if pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype):
        missing = values.isna()
        gaps = values[missing].iloc[:1].tolist()
        gap = "nan" if not gaps else {type(None): "none", type(pd.NA): "na"}.get(type(gaps[0]), "nan")
        present = values[~missing]
        if pd.api.types.is_object_dtype(dtype) and pd.api.types.infer_dtype(present) in (
            "integer",
            "floating",
            "mixed-integer-float",
        ):
            return Column(key, "object", gap=gap)
        unique = pd.unique(present).tolist()
        with contextlib.suppress(TypeError):  # of several types: in the order met
            unique = sorted(unique)
        return Column(key, str(dtype), tuple(unique), gap=gap)
    raise InputError(f"column {key!r} has dtype {dtype}: turn it into numbers or strings first")


def _encode(column: Column, values: pd.Series[Any], argument: str) -> NDArray[np.float64]:
    if column.categories is None:
        try:
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):
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
    numbers = pd.to_numeric(values, errors="coerce")
    return values[numbers.isna() & values.notna()].iloc[0] if (numbers.isna() & values.notna()).any() else ""


def _frame(columns: Sequence[Column], values: NDArray[np.float64]) -> pd.DataFrame:
    if all(column.dtype == "float64" for column in columns):
        return pd.DataFrame(values, columns=[column.key for column in columns])
    return pd.DataFrame({column.key: _decode(column, values[:, j]) for j, column in enumerate(columns)})


def _decode(column: Column, values: NDArray[np.float64]) -> Any:
    gaps = np.isnan(values)
    if column.categories is not None:
        codes = np.where(gaps, -1, values).astype(np.int64)
        if column.dtype == "category":
            return pd.Categorical.from_codes(
                cast("Sequence[int]", codes), categories=pd.Index(column.categories), ordered=column.ordered
            )
        table = np.empty(len(column.categories) + 1, dtype=object)
        table[:-1] = column.categories
        table[-1] = _GAPS[column.gap]()
        return pd.Series(table[codes], dtype=cast(Any, column.dtype))
    dtype = pd.api.types.pandas_dtype(column.dtype)
    if pd.api.types.is_object_dtype(dtype):
        boxed = values.astype(object)
        boxed[gaps] = _GAPS[column.gap]()
        return boxed
    if isinstance(dtype, np.dtype):
        return values.astype(dtype) if _fits(values, dtype) else values
    if gaps.all() or (values[~gaps] == np.floor(values[~gaps])).all() or "loat" in column.dtype:
        return pd.Series(pd.array(np.where(gaps, 0, values), dtype="Float64")).mask(gaps).astype(cast(Any, dtype))
    return pd.Series(values, dtype="Float64")


_GAPS: dict[str, Callable[[], Any]] = {"none": lambda: None, "nan": lambda: np.nan, "na": lambda: pd.NA}


def _fits(values: Any, dtype: np.dtype[Any]) -> bool:
    """Whether float64 values survive the way back to the user's dtype (a mean of integers would not)."""
    if dtype.kind == "f":
        return True
    as_tensor = torch.as_tensor(values)
    whole = bool((as_tensor == as_tensor.floor()).all())  # False where there is a NaN
    return whole and (dtype.kind != "b" or bool(((as_tensor == 0) | (as_tensor == 1)).all()))
