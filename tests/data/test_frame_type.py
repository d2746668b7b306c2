"""Tests of FrameType: the model gets tables of the library, the types and the categories that X had."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from problems import people

from fastshapley.data.frame_type import FrameType
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.support.frames import as_pandas

NAN = float("nan")
CITIES = ["Bern", "Basel", "Thun"]
POLARS: dict[str, pl.Series] = {
    **{name: pl.Series([1, 0, None], dtype=getattr(pl, name)) for name in ("Int8", "UInt32", "Int64", "Float32")},
    "Float16": pl.Series([1.5, None], dtype=pl.Float16),
    "floats with NaN": pl.Series([1.1, NAN]),
    "booleans": pl.Series([True, False]),
    "booleans with gaps": pl.Series([True, None, False]),
    "strings with gaps": pl.Series(["b", None, "a"]),
    "strings, all gaps": pl.Series([None, None], dtype=pl.String),
    "gaps without a type": pl.Series([None, None]),
    "Enum": pl.Series(["Basel", None], dtype=pl.Enum(CITIES)),
    "Categorical": pl.Series(["b", None, "a"], dtype=pl.Categorical),
}
ARROW: dict[str, pa.Array] = {
    **{str(kind): pa.array([1, 0, None], kind) for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.float64())},
    "halffloat": pa.array(np.array([1.5, 2], np.float16)),
    "floats with NaN": pa.array([1.1, NAN]),
    "booleans with gaps": pa.array([True, None, False]),
    **{str(kind): pa.array(["b", None], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    "gaps without a type": pa.nulls(2),
    "dictionary": pa.array(["b", None, "a"]).dictionary_encode(),
    "dictionary of integers": pa.array([30, None, 10]).dictionary_encode(),
    "dictionary, ordered": pa.array(pd.Categorical(["low"], categories=["low", "high"], ordered=True)),
}


def saved(schema: TableSchema) -> TableSchema:
    """The schema after it was saved and loaded."""
    return TableSchema.from_dict(json.loads(json.dumps(schema.to_dict())))


def round_trip(X: Any) -> Any:
    schema = saved(TableSchema.of(X))
    return schema.decode(schema.encode(X))


@pytest.mark.parametrize("values", POLARS.values(), ids=POLARS.keys())
def test_a_column_of_polars_keeps_its_values_gaps_and_type(values: pl.Series) -> None:
    frame = pl.DataFrame({"before": np.ones(len(values)), "column": values})
    back = round_trip(frame)
    assert back.schema == frame.schema
    assert back.equals(frame, null_equal=True)


@pytest.mark.parametrize("values", ARROW.values(), ids=ARROW.keys())
def test_a_column_of_arrow_keeps_its_values_gaps_and_type(values: pa.Array) -> None:
    table = pa.table({"before": np.ones(len(values)), "column": values})
    back = round_trip(table)
    assert back.schema == table.schema
    assert repr(back["column"].to_pylist()) == repr(table["column"].to_pylist())  # NaN is not equal to itself.
    assert back["column"].null_count == table["column"].null_count


def test_decimals_become_floats() -> None:
    assert round_trip(pl.DataFrame({"a": [Decimal("1.25"), None]}))["a"].to_list() == [1.25, None]
    assert round_trip(pa.table({"a": [Decimal("1.25"), None]}))["a"].to_pylist() == [1.25, None]


@pytest.mark.parametrize("table", [pl.DataFrame({"a": [1, 2]}), pa.table({"a": [1, 2]})], ids=["polars", "pyarrow"])
def test_integers_with_a_mean_become_floats_and_gaps_stay_integers(table: Any) -> None:
    schema = TableSchema.of(table)
    assert as_pandas(schema.decode(torch.tensor([[1.5], [NAN]]).double()))["a"].dtype == "float64"
    gaps = schema.decode(torch.tensor([[1.0], [NAN]]).double())
    assert type(gaps) is type(table)
    assert gaps.schema == table.schema


def test_tables_of_all_libraries_have_the_same_codes_whatever_the_order_of_their_columns() -> None:
    frame = people(rows=40)[0].assign(city=lambda f: f["city"].astype(str))
    tables = [
        frame,
        pl.DataFrame(
            {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame}
        ),
        pa.Table.from_pandas(frame),
    ]
    encoded = [TableSchema.of(fitted).encode(given) for given in tables for fitted in tables]
    back = [TableSchema.of(frame).encode(given.select(frame.columns.tolist()[::-1])) for given in tables[1:]]
    for found in (*encoded, *back, TableSchema.of(tables[1]).encode(frame[frame.columns[::-1]])):
        torch.testing.assert_close(found, encoded[0], rtol=0, atol=0, equal_nan=True)


def test_names_that_are_numbers_in_pandas_are_found_by_their_text() -> None:
    schema = TableSchema.of(pd.DataFrame({0: [1.0], 1: [2.0]}))
    assert schema.encode(pl.DataFrame({"1": [2.0], "0": [1.0]})).tolist() == [[1.0, 2.0]]
    assert list(schema.decode(torch.tensor([[1.0, 2.0]]).double()).columns) == [0, 1]


def test_the_file_names_the_library_and_older_files_mean_pandas() -> None:
    schema = TableSchema.of(pl.DataFrame({"a": [1], "b": ["x"]}))
    state = schema.to_dict()
    assert state["frame"] == {"library": "polars", "types": ("Int64", "String")}
    assert saved(schema) == schema
    del state["frame"]
    assert "frame" not in TableSchema.of(pd.DataFrame({"a": [1]})).to_dict()
    assert isinstance(TableSchema.from_dict(state).decode(torch.zeros(1, 2).double()), pd.DataFrame)


def test_processes_must_have_the_same_types_but_for_columns_of_gaps() -> None:
    parts = [TableSchema.of(pl.DataFrame({"a": values})) for values in (["x"], [None], [1.0])]
    assert parts[1].agreed([parts[1], parts[0]]).frame.types == ("String",)
    with pytest.raises(InputError, match="'a' of X has other types in other processes: Float64, Int64"):
        FrameType.merged([FrameType("polars", ("Int64",)), FrameType("polars", ("Float64",))], ["a"])
    with pytest.raises(InputError, match="of another type there"):
        parts[0].agreed([parts[0], TableSchema.of(pd.DataFrame({"a": ["x"]}))])


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = TableSchema.of(pl.DataFrame({"a": [1]}))
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"fitted to a polars table.*pip install polars"):
        schema.decode(torch.zeros(1, 1).double())


def test_tables_like_those_of_pandas_keep_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    class DataFrame(pd.DataFrame):
        """What narwhals and this package need of a table of modin."""

        def _to_pandas(self) -> pd.DataFrame:
            return pd.DataFrame(self)

    module: Any = ModuleType("modin.pandas")
    module.DataFrame = DataFrame
    schema = TableSchema("frame", TableSchema.of(pd.DataFrame({"a": [1, 2]})).columns, frame=FrameType("modin"))
    monkeypatch.setitem(sys.modules, "modin", ModuleType("modin"))
    monkeypatch.setitem(sys.modules, "modin.pandas", module)
    assert type(saved(schema).decode(torch.zeros(1, 1).double())) is DataFrame
