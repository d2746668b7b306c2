"""Tests of a single table column; whole tables are tested in test_table_schema.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fastshapley.data.column import Column, survives
from fastshapley.errors import InputError


def column(values: Any, dtype: Any = None) -> Column:
    return Column.of("c", pd.Series(values, dtype=dtype))


def test_text_has_categories_and_numbers_have_none() -> None:
    assert column([1.5, 2.5]).categories is None
    assert column(["b", "a", "b"]).categories == ("a", "b")
    assert column([True, False]).discrete
    assert column([1, 2]).integral
    assert not column([1.0, 2.0]).integral


def test_the_error_for_a_column_of_dates_names_the_column() -> None:
    with pytest.raises(InputError, match="column 'c' has dtype datetime64"):
        column(pd.to_datetime(["2020-01-01"]))


def test_unknown_categories_and_gaps_have_no_code() -> None:
    codes, unknown = column(["b", "a"]).codes(pd.Series(["a", "z", None], dtype=object))
    np.testing.assert_array_equal(codes, [0, np.nan, np.nan])
    assert unknown.tolist() == ["z"]


def test_the_error_for_text_among_numbers_names_the_argument() -> None:
    with pytest.raises(InputError, match="X_val has values in column 'c' that are not numbers, such as 'old'"):
        column([1.0, 2.0]).encode(pd.Series([1.0, "old"], dtype=object), "X_val")


@pytest.mark.parametrize(
    ("parts", "categories"),
    [
        ([["b"], ["a"]], ("a", "b")),
        ([["b"], [None]], ("b",)),
        ([[True, False], [True, None]], (False, True)),
    ],
    ids=["text", "only gaps", "booleans with gaps"],
)
def test_merged_columns_have_the_union_of_the_categories(parts: list[list[Any]], categories: Any) -> None:
    columns = [column(part, None if part == [True, False] else object) for part in parts]
    assert Column.merged(columns).categories == categories


def test_merged_number_columns_have_a_common_dtype() -> None:
    assert Column.merged([column([1]), column([1.5])]).dtype == "float64"


def test_merging_numbers_and_text_is_refused() -> None:
    with pytest.raises(InputError, match="holds numbers in one part of the rows, and text in another"):
        Column.merged([column([1.0]), column(["a"])])


@pytest.mark.parametrize(
    ("values", "dtype", "fits"),
    [
        ([1.0, 2.0], "int64", True),
        ([1.5], "int64", False),
        ([np.nan], "int64", False),
        ([300.0], "uint8", False),
        ([0.0, 1.0], "bool", True),
        ([2.0], "bool", False),
        ([1e300], "float32", False),
        ([0.1], "float32", True),
    ],
    ids=str,
)
def test_survives_reports_whether_values_fit_a_dtype(values: list[float], dtype: str, fits: bool) -> None:
    assert survives(np.array(values), np.dtype(dtype)) is fits
