"""One column of a table; whole tables are tested in test_table_schema.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fastshapley.data.column import Column, survives
from fastshapley.errors import InputError


def column(values: Any, dtype: Any = None) -> Column:
    return Column.of("c", pd.Series(values, dtype=dtype))


def test_numbers_have_no_categories_and_text_has() -> None:
    assert column([1.5, 2.5]).categories is None
    assert column(["b", "a", "b"]).categories == ("a", "b")
    assert column([True, False]).discrete
    assert column([1, 2]).integral
    assert not column([1.0, 2.0]).integral


def test_a_column_of_dates_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="column 'c' has dtype datetime64"):
        column(pd.to_datetime(["2020-01-01"]))


def test_unknown_categories_and_gaps_have_no_code() -> None:
    codes, unknown = column(["b", "a"]).codes(pd.Series(["a", "z", None], dtype=object))
    np.testing.assert_array_equal(codes, [0, np.nan, np.nan])
    assert unknown.tolist() == ["z"]


def test_text_in_a_column_of_numbers_is_refused_with_the_argument() -> None:
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
def test_parts_are_merged_to_the_union_of_their_categories(parts: list[list[Any]], categories: Any) -> None:
    columns = [column(part, None if part == [True, False] else object) for part in parts]
    assert Column.merged(columns).categories == categories


def test_parts_of_numbers_have_a_common_dtype() -> None:
    assert Column.merged([column([1]), column([1.5])]).dtype == "float64"


def test_parts_of_numbers_and_of_text_are_refused() -> None:
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
def test_values_that_fit_a_dtype(values: list[float], dtype: str, fits: bool) -> None:
    assert survives(np.array(values), np.dtype(dtype)) is fits
