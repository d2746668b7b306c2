"""Tests of frames: tables of any library are read as pandas DataFrames, and others are refused with a reason."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fastshapley.errors import InputError
from fastshapley.support.frames import as_pandas, column_names

NAN = float("nan")
CITIES = ["Bern", "Basel"]
COLUMNS: dict[str, tuple[Any, Any]] = {
    **{
        dtype: (pl.Series([1, 0], dtype=getattr(pl, dtype)), dtype.lower()) for dtype in ("Int8", "UInt16", "Int64")
    },
    "integers with gaps": (pl.Series([1, None], dtype=pl.Int32), "Int32"),
    "integers, all gaps": (pl.Series([None, None], dtype=pl.Int32), "Int32"),
    "floats with gaps": (pl.Series([1.5, None], dtype=pl.Float32), "float32"),
    "floats with NaN": (pl.Series([1.5, NAN]), "float64"),
    "decimals": (pl.Series([Decimal("1.25"), None]), "float64"),
    "booleans": (pl.Series([True, False]), "bool"),
    "booleans with gaps": (pl.Series([True, None]), "boolean"),
    "strings with gaps": (pl.Series(["b", None]), "object"),
    "gaps without a type": (pl.Series([None, None]), "object"),
    "Enum": (pl.Series(["Bern", None], dtype=pl.Enum(CITIES)), pd.CategoricalDtype(CITIES, ordered=True)),
    "Categorical": (pl.Series(["b", "a"], dtype=pl.Categorical), pd.CategoricalDtype(["a", "b"])),
    "dictionary": (
        pa.array(["b", "a"]).dictionary_encode(),
        pd.CategoricalDtype(["b", "a"]),
    ),
    "dictionary of integers": (pa.array([3, None, 1]).dictionary_encode(), pd.CategoricalDtype([3, 1])),
    "integers of Arrow with gaps": (pa.array([1, None], pa.int8()), "Int8"),
    "booleans of Arrow with gaps": (pa.array([True, None]), "boolean"),
    "strings of Arrow": (pa.array(["b", None], pa.string_view()), "object"),
    "gaps of Arrow": (pa.nulls(2), "object"),
}


def table(values: Any) -> Any:
    """A table with one column."""
    return pl.DataFrame({"a": values}) if isinstance(values, pl.Series) else pa.table({"a": values})


@pytest.mark.parametrize(("values", "dtype"), COLUMNS.values(), ids=COLUMNS.keys())
def test_a_column_becomes_the_pandas_column_with_the_same_values(values: Any, dtype: Any) -> None:
    found = as_pandas(table(values))["a"]
    assert found.dtype == dtype
    expected = values.to_list() if isinstance(values, pl.Series) else values.to_pylist()
    assert [None if gap else value for value, gap in zip(found, found.isna(), strict=True)] == [
        None if value is None or value != value else value for value in expected
    ]


def test_the_rows_of_a_table_in_parts_follow_each_other() -> None:
    parts = [pa.table({"a": pa.array(values).dictionary_encode()}) for values in (["x", "y"], ["z", "x"])]
    assert as_pandas(pa.concat_tables(parts))["a"].tolist() == ["x", "y", "z", "x"]
    assert as_pandas(pl.DataFrame({"a": [1, 2, 3]})[1:]).index.tolist() == [0, 1]


def test_other_data_are_returned_as_they_are() -> None:
    for data in (pd.DataFrame({"a": [1]}), pd.Series([1]), np.zeros((2, 2)), [[1]], None, "text"):
        assert as_pandas(data) is data


REFUSED: dict[str, tuple[Any, str]] = {
    "LazyFrame": (pl.DataFrame({"a": [1]}).lazy(), r"Y is a polars LazyFrame.*call \.collect\(\) first"),
    "Series": (pl.Series([1]), "Y is a polars Series: pass a table"),
    "column": (pa.chunked_array([[1]]), "Y is a pyarrow ChunkedArray: pass a table"),
    "narwhals": (nw.from_native(pl.DataFrame({"a": [1]})), r"Y is a narwhals DataFrame: pass Y\.to_native\(\)"),
    "duplicates": (pa.table([[1], [2]], names=["a", "a"]), r"Y has duplicate columns: \['a'\]"),
    "lists": (pl.DataFrame({"a": [[1], [2]]}), r"column 'a' of Y has type List\(Int64\): turn it into one column"),
    "lists of Arrow": (pa.table({"a": [[1], None]}), "column 'a' of Y has type list.*one column for each part"),
    "structs": (pl.DataFrame({"a": [{"b": 1}]}), "column 'a' of Y has type Struct"),
    "dates": (pl.DataFrame({"a": [date(2020, 1, 1)]}), "column 'a' of Y has type Date: turn it into plain numbers"),
    "bytes": (pa.table({"a": [b"x"]}), "column 'a' of Y has type binary"),
    "Python objects": (
        pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}),
        "column 'a' of Y has type Object",
    ),
    "128 bits": (pl.DataFrame({"a": pl.Series([1], dtype=pl.Int128)}), "column 'a' of Y has type Int128"),
}


@pytest.mark.parametrize(("X", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_tables_that_are_not_read_are_refused_by_name(X: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_pandas(X, "Y")


def test_names_are_those_of_tables_and_of_nothing_else() -> None:
    frame = pd.DataFrame({"a": [1], "b": [2]})
    for X in (frame, pl.DataFrame({"a": [1], "b": [2]}), pa.Table.from_pandas(frame)):
        assert column_names(X) == ["a", "b"]
    for other in (pl.Series([1]), np.zeros((2, 2)), None, pa.table([[1], [2]], names=["a", "a"])):
        assert column_names(other) is None
