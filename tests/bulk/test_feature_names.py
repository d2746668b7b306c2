"""Tests of finding the columns that an explainer needs in files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError

pytest.importorskip("pyarrow", reason="needs the bulk extra")

from fastshapley.bulk.feature_names import SavedColumns, feature_columns


def test_features_are_found_by_name_in_their_own_order() -> None:
    schema = TableSchema.of(pd.DataFrame({"b": [1.0], "a": [2.0]}))
    assert feature_columns(schema, ["id", "a", "x", "b"], None, "it") == ["b", "a"]


def test_a_missing_feature_is_named_with_a_similar_column() -> None:
    schema = TableSchema.of(pd.DataFrame({"income": [1.0], "age": [2.0]}))
    with pytest.raises(InputError, match=r"rows\.csv lacks the column 'income' \(renamed to 'incomes'\?\)"):
        feature_columns(schema, ["age", "incomes"], None, "rows.csv")


def test_features_of_an_array_are_found_by_name_or_by_position() -> None:
    schema = TableSchema.of(np.zeros((2, 3)))
    assert feature_columns(schema, ["x2", "id", "x0", "x1"], None, "it") == ["x0", "x1", "x2"]
    assert feature_columns(schema, ["a", "b", "c"], None, "it") == ["a", "b", "c"]
    assert feature_columns(schema, ["a", "id", "b", "c"], ["id"], "it") == ["a", "b", "c"]
    with pytest.raises(
        InputError, match="it has 4 columns that are not keys, but the explainer expects 3: name the keys"
    ):
        feature_columns(schema, ["a", "id", "b", "c"], None, "it")


def test_a_first_line_of_numbers_is_not_accepted_as_column_names() -> None:
    schema = TableSchema.of(np.zeros((2, 3)))
    with pytest.raises(InputError, match="its first line must hold the column names"):
        feature_columns(schema, ["0.5", "-1.25e-3", "3.0"], None, "it")
    assert feature_columns(schema, ["0", "1", "2"], None, "it") == [
        "0",
        "1",
        "2",
    ]  # pandas numbers columns like this


def test_two_columns_with_the_same_name_are_refused() -> None:
    with pytest.raises(InputError, match="it has several columns of one name"):
        feature_columns(TableSchema.of(np.zeros((2, 1))), ["a", "a"], None, "it")


@pytest.mark.parametrize("table", [np.zeros((2, 3)), pd.DataFrame({"b": [1.0], 7: ["x"]})], ids=["array", "frame"])
def test_the_columns_in_a_file_are_those_of_the_schema(table: Any) -> None:
    schema = TableSchema.of(table)
    saved = SavedColumns.from_dict(schema.to_dict())
    assert (saved.container, saved.names) == (schema.container, schema.names)
