"""Read tables with named columns of any library as pandas DataFrames.

narwhals reads the tables: polars DataFrames, pyarrow Tables, and eager tables of other libraries that it knows.
"""

from __future__ import annotations

import contextlib
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from narwhals.exceptions import DuplicateError

from fastshapley.errors import InputError

# The types of columns of numbers. 128-bit integers are missing: pandas has no such type.
_NUMBERS = {
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    *("Float16", "Float32", "Float64", "Decimal"),
}


def read_frame(X: Any, argument: str = "X") -> nw.DataFrame[Any] | None:
    """Return a table of another library than pandas, for reading.

    Parameters
    ----------
    X : object
        What the user passed.
    argument : str
        The name of the argument that an error message shows.

    Returns
    -------
    narwhals.DataFrame or None
        None if ``X`` is a pandas DataFrame, or not a table with named columns.

    Raises
    ------
    InputError
        If ``X`` is a table that is not in memory, a single column, or a table with two columns of one name.
    """
    if isinstance(X, pd.DataFrame | pd.Series):
        return None
    if isinstance(X, nw.DataFrame | nw.LazyFrame | nw.Series):
        raise InputError(f"{argument} is a narwhals {type(X).__name__}: pass {argument}.to_native()")
    try:
        frame = nw.from_native(X, pass_through=True, allow_series=True)
        if isinstance(frame, nw.DataFrame) and frame.columns is not None:
            return frame
    except DuplicateError:
        names = pd.Index(X.column_names)
        raise InputError(
            f"{argument} has duplicate columns: {names[names.duplicated()].unique().tolist()}"
        ) from None
    if isinstance(frame, nw.LazyFrame):
        kind = f"{frame.implementation} {type(X).__name__}"
        if frame.implementation.is_polars():
            raise InputError(f"{argument} is a {kind}, which holds no rows yet: call .collect() first")
        raise InputError(f"{argument} is a {kind}, which is not in memory: pass a pandas or polars DataFrame")
    if isinstance(frame, nw.Series):
        raise InputError(f"{argument} is a {frame.implementation} {type(X).__name__}: pass a table")
    return None


def as_pandas(X: Any, argument: str = "X") -> Any:
    """Return a table of any library as a pandas DataFrame, and anything else as it is.

    Nulls become gaps, polars' Enum and Categorical columns and pyarrow's dictionaries become pandas categoricals,
    and other strings become objects.

    Parameters
    ----------
    X : object
        What the user passed.
    argument : str
        The name of the argument that an error message shows.

    Raises
    ------
    InputError
        If `read_frame` refuses ``X``, or a column holds neither numbers, booleans, strings nor categories.
    """
    frame = read_frame(X, argument)
    if frame is None:
        return X
    if frame.implementation.is_pandas_like():
        return frame.to_pandas()
    columns = {name: _as_pandas_column(frame[name], argument) for name in frame.columns}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


def column_names(X: Any) -> list[Any] | None:
    """Return the names of the columns of a table of any library; None for anything else."""
    if isinstance(X, pd.DataFrame):
        return list(X.columns)
    with contextlib.suppress(DuplicateError):
        frame = nw.from_native(X, pass_through=True, allow_series=True)
        return frame.columns if isinstance(frame, nw.DataFrame) else None
    return None


def _as_pandas_column(values: nw.Series[Any], argument: str) -> pd.Series[Any]:
    dtype = values.dtype
    name = type(dtype).__name__
    if name == "Decimal":
        values, name = values.cast(nw.Float64), "Float64"
    if name in _NUMBERS and name.startswith("Float"):
        return pd.Series(values.to_numpy())
    if name in _NUMBERS or name == "Boolean":
        return _integers_or_booleans(values)
    if name == "Enum":
        return pd.Series(pd.Categorical(_objects(values), categories=list(dtype.categories), ordered=True))  # type: ignore[attr-defined]
    if name == "Categorical":  # The categories of polars are those of all columns, those of Arrow have an order.
        arrow = values.implementation.is_pyarrow()
        return values.to_native().to_pandas() if arrow else pd.Series(pd.Categorical(_objects(values)))
    if name == "String":
        return pd.Series(_objects(values), dtype=object)
    if values.null_count() == len(values):
        return pd.Series([None] * len(values), dtype=object)
    own = getattr(values.to_native(), "dtype", None) or getattr(values.to_native(), "type", dtype)
    what = "one column for each part of it" if dtype.is_nested() else "plain numbers, strings or categories"
    raise InputError(f"column {values.name!r} of {argument} has type {own}: turn it into {what}")


def _integers_or_booleans(values: nw.Series[Any]) -> pd.Series[Any]:
    if not values.null_count():
        return pd.Series(values.to_numpy())
    missing = values.is_null().to_numpy()
    present = values.fill_null(False if isinstance(values.dtype, nw.Boolean) else 0).to_numpy()
    if present.dtype == bool:
        return pd.Series(pd.arrays.BooleanArray(present.copy(), missing.copy()))
    return pd.Series(pd.arrays.IntegerArray(present.copy(), missing.copy()))


def _objects(values: nw.Series[Any]) -> Any:
    """Return an array of texts, with None for gaps."""
    return np.asarray(values.to_numpy(), dtype=object)
