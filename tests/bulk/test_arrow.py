"""Tests of encoding Arrow columns as data frames are encoded, and of the columns that hold the values."""

from __future__ import annotations

import logging
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

from fastshapley.bulk.arrow import csv_reading, encode, value_columns, value_names  # noqa: E402

NAN = float("nan")


def same(frame: pd.DataFrame, schema: TableSchema, columns: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Check that columns are encoded like the frame and that unseen values are reported for the same columns."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="fastshapley"):
        expected = schema.encode(frame)
    unseen: set[str] = set()
    found = encode(schema, columns, "it", unseen)
    assert found.dtype == torch.float64
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert unseen == {name for name in schema.names if any(f"{name!r}" in text for text in caplog.messages)}


def columns_of(frame: pd.DataFrame) -> list[Any]:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return [table[name] for name in table.column_names]


KINDS: dict[str, Any] = {
    **{dtype: np.array([1, 0, 7], dtype) for dtype in ("int8", "int64", "uint8", "uint64")},
    **{dtype: np.array([1.1, NAN, -3.0], dtype) for dtype in ("float16", "float32", "float64")},
    "largest integers": np.array([2**53 - 1, 1 - 2**53]),
    "bool": np.array([True, False]),
    "Int64 with gaps": pd.array([1, None, 3], "Int64"),
    "UInt8": pd.array([1, 255], "UInt8"),
    "Float32 with gaps": pd.array([1.5, None], "Float32"),
    "boolean with gaps": pd.array([True, None, False], "boolean"),
    "category with gaps": pd.Categorical(["b", None, "a"]),
    "category with an unused value": pd.Categorical(["b"], categories=["a", "b", "c"]),
    "category, ordered": pd.Categorical(["low", "high"], categories=["low", "high"], ordered=True),
    "category of integers": pd.Categorical([30, 10, None]),
    "category of int8": pd.Categorical([3, 1], categories=np.array([3, 1], "int8")),
    "category of floats": pd.Categorical([0.5, None]),
    "category of booleans": pd.Categorical([True, None, False]),
    "category, all gaps": pd.Categorical([None, None]),
    "str with gaps": pd.Series(["b", None], dtype="str"),
    "string with gaps": pd.Series(["b", pd.NA], dtype="string"),
    "strings and None": pd.Series(["b", None, "a", ""], dtype=object),
    "object, all gaps": pd.Series([None, None], dtype=object),
    "object integers": pd.Series([1, None, 3], dtype=object),
    "object booleans": pd.Series([True, None, False], dtype=object),
    "no rows": pd.Series([], dtype="float64"),
}


@pytest.mark.parametrize("values", KINDS.values(), ids=KINDS.keys())
def test_an_arrow_column_is_encoded_like_a_frame_column(values: Any, caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"before": np.ones(len(values)), "column": values})
    same(frame, TableSchema.of(frame), columns_of(frame), caplog)


words = st.sampled_from(["a", "b", "NA", "", "ä", "1"])
values_of_kinds = st.one_of(
    st.lists(st.none() | st.integers(-(2**53) + 1, 2**53 - 1)).map(lambda v: pd.array(v, "Int64")),
    st.lists(st.floats(allow_infinity=False, allow_subnormal=False)).map(lambda v: np.array(v, float)),
    st.lists(st.booleans()).map(lambda v: np.array(v, bool)),
    st.lists(st.none() | st.booleans()).map(lambda v: pd.array(v, "boolean")),
    st.lists(st.none() | words).map(lambda v: pd.Series(v, dtype=object)),
    st.lists(st.none() | words).map(lambda v: pd.Series(v, dtype="str")),
    st.lists(st.none() | words).map(pd.Categorical),
    st.lists(st.none() | st.integers(-3, 3)).map(lambda v: pd.Categorical(pd.array(v, "Int64"))),
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(fitted=values_of_kinds, later=values_of_kinds)
def test_any_arrow_column_is_encoded_like_a_frame_column_or_refused_like_it(fitted: Any, later: Any) -> None:
    """The later column may be of another kind than the fitted one. Unknown categories become gaps."""
    schema = TableSchema.of(pd.DataFrame({"column": fitted}))
    frame = pd.DataFrame({"column": later})
    try:
        expected = schema.encode(frame)
    except InputError:
        with pytest.raises(InputError, match="'column'"):
            encode(schema, columns_of(frame), "it", set())
        return
    unseen: set[str] = set()
    found = encode(schema, columns_of(frame), "it", unseen)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    present = pd.Series(later).notna().to_numpy()
    assert unseen == ({"column"} if schema.categorical and np.isnan(found.numpy()[present]).any() else set())


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary", "chunked"])
@pytest.mark.parametrize("dtype", ["object", "str", "category"])
def test_text_is_encoded_alike_in_all_arrow_types(dtype: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    schema = TableSchema.of(pd.DataFrame({"job": pd.Series(["chef", None, "nurse"], dtype=dtype)}))
    values = ["nurse", None, "chef", "pilot"]
    column = {
        "string": lambda: pa.array(values, pa.string()),
        "large_string": lambda: pa.array(values, pa.large_string()),
        "string_view": lambda: pa.array(values, pa.string_view()),
        "dictionary": lambda: pa.array(values).dictionary_encode(),
        "chunked": lambda: pa.chunked_array([values[:1], values[1:]]),
    }[kind]()
    same(pd.DataFrame({"job": pd.Series(values, dtype=object)}), schema, [column], caplog)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint32", "uint64", "float64", "bool_", "dictionary"])
def test_integer_categories_are_encoded_alike_in_all_arrow_types(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema = TableSchema.of(pd.DataFrame({"zone": pd.Categorical([3, 1, None, 0])}))
    values = [1, None, 0] if kind == "bool_" else [3, None, 1, 7]
    plain = pa.array(values, pa.int64())
    column = plain.dictionary_encode() if kind == "dictionary" else plain.cast(getattr(pa, kind)())
    same(pd.DataFrame({"zone": pd.Series(values, dtype=object)}), schema, [column], caplog)


@pytest.mark.parametrize("values", [["a", None, "z"], [1, None, 7], [2.5, None], [True]], ids=str)
def test_a_column_matches_only_the_categories_of_its_own_type(
    values: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The fitted categories have several types, but an Arrow column has one."""
    schema = TableSchema.of(pd.DataFrame({"any": pd.Series(["a", 1, None, 2.5], dtype=object)}))
    same(pd.DataFrame({"any": pd.Series(values, dtype=object)}), schema, [pa.array(values)], caplog)


def test_nan_and_null_are_gaps_also_in_columns_of_only_gaps(caplog: pytest.LogCaptureFixture) -> None:
    schema = TableSchema.of(pd.DataFrame({"age": [1.0, 2], "job": ["chef", "nurse"]}))
    columns = [pa.array([NAN, None, 3.0]), pa.array([None, None, None])]
    same(pd.DataFrame({"age": [NAN, None, 3], "job": [None, None, None]}), schema, columns, caplog)
    assert encode(schema, [columns[1], columns[1]], "it", set()).isnan().all()


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["12", "old"]),
        pa.array(["12", "old"]).dictionary_encode(),
        pa.array([datetime(2020, 1, 1)]),
        pa.array([date(2020, 1, 1)]),
        pa.array([time(12)]),
        pa.array([timedelta(1)]),
        pa.array([b"abc"]),
        pa.array([[1.0]]),
        pa.array([{"a": 1}]),
        pa.array([1.0, float("inf")]),
        pa.array([2**53 + 1]),
        pa.array([2**64 - 1], pa.uint64()),
    ],
    ids=lambda values: str(values.type),
)
def test_values_that_are_not_finite_numbers_are_refused_with_the_column_name(values: Any) -> None:
    schema = TableSchema.of(pd.DataFrame({"pay": [1.5, 2], "age": [1, 2]}))
    columns = [pa.array(np.ones(len(values))), values]
    with pytest.raises(InputError, match=r"(?s)rows\.csv.*'age'|'age'.*rows\.csv"):
        encode(schema, columns, "rows.csv", set())


def test_decimals_are_numbers() -> None:
    schema = TableSchema.of(pd.DataFrame({"age": [1.5, 2]}))
    found = encode(schema, [pa.array([Decimal("1.25"), None])], "it", set())
    np.testing.assert_array_equal(found.numpy(), [[1.25], [NAN]])


# Which columns are the features


# Types for reading CSV, which does not store types


def test_a_feature_is_read_from_csv_with_its_type_at_fit() -> None:
    frame = pd.DataFrame(
        {
            "float": [1.5, 2.5],
            "int": [1, 2],
            "bool": [True, False],
            "text": ["a", "NA"],
            "zone": pd.Categorical([1, 2]),
            "long": pd.Categorical([1, 2**60]),
            "half": pd.Categorical([0.5, 2]),
            "truth": pd.Series([True, None], dtype=object),
            "mixed": pd.Series(["a", 1], dtype=object),
            "empty": pd.Series([None, None], dtype=object),
        }
    )
    found = csv_reading(TableSchema.of(frame), frame.columns.tolist(), [("id", pa.int32())])
    kinds = {
        "float": "double",
        "int": "double",
        "bool": "bool",
        "text": "string",
        "zone": "double",
        "long": "int64",
    }
    kinds |= {"half": "double", "truth": "bool", "mixed": "string", "empty": "string", "id": "int32"}
    assert {name: str(kind) for name, kind in found.types.items()} == kinds
    assert "NA" not in found.gaps["text"]
    assert "NA" in found.gaps["mixed"]
    assert found.gaps["id"] == ("",)


# Columns of values


def test_names_of_value_columns_are_unique_and_omit_a_single_output() -> None:
    names = value_names(["age", "a job"], ["no", "yes"])
    assert len(set(names)) == len(names) == 8
    assert names[:3] == ["shap_age_no", "shap_age_yes", "shap_a job_no"]
    assert value_names(["age"], ["yes"]) == ["shap_age", "base_value", "prediction"]


@pytest.mark.parametrize("rows", [0, 1, 4096, 10_000])
def test_value_columns_are_in_the_order_of_their_names(rows: int) -> None:
    """The order is by player, then by output, for any number of rows."""

    def explain(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = x[:, :, None] * torch.tensor([100.0, 1])
        return values, torch.tensor([3.0, 1]).expand(len(x), -1), values.sum(1)

    x = torch.arange(rows, dtype=torch.float64)[:, None] + torch.tensor([0.0, 0.5])
    found = value_columns(explain, x, 8)
    assert {str(column.type) for column in found} == {"float"}
    expected = [100 * x[:, 0], x[:, 0], 100 * x[:, 1], x[:, 1], 3 + 0 * x[:, 0], 1 + 0 * x[:, 0]]
    expected += [100 * x.sum(1), x.sum(1)]
    for column, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(column.to_numpy(), wanted.float().numpy())
