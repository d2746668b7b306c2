"""Tests of the text that is displayed for the rows of a table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fastshapley.data.display import display_data
from fastshapley.data.table_schema import TableSchema
from fastshapley.players import Features, Groups, Partition

FRAME = pd.DataFrame({"age": [39.0, 50], "job": ["clerk", None], "old": [True, False]})


def test_a_table_of_numbers_has_no_display_text() -> None:
    schema = TableSchema.of(FRAME[["age"]])
    x = schema.encode(FRAME[["age"]]).numpy()
    data, display = display_data(x, schema.columns, Features().bind(schema.names))
    assert data is x
    assert display is None


def test_players_without_columns_have_no_data_and_no_display_text() -> None:
    schema = TableSchema.of(FRAME)
    assert display_data(schema.encode(FRAME).numpy(), schema.columns, Partition(("a", "b"), ())) == (None, None)


def test_categories_booleans_and_gaps_are_displayed_as_words() -> None:
    schema = TableSchema.of(FRAME)
    data, display = display_data(schema.encode(FRAME).numpy(), schema.columns, Features().bind(schema.names))
    assert data is not None
    assert display is not None
    np.testing.assert_array_equal(data, [[39, 0, 1], [50, np.nan, 0]])
    assert display.tolist() == [[39.0, "clerk", "True"], [50.0, "missing", "False"]]


def test_a_group_is_shown_by_its_columns() -> None:
    schema = TableSchema.of(FRAME)
    players = Groups({"work": ["age", "job"]}).bind(schema.names)
    _, display = display_data(schema.encode(FRAME).numpy(), schema.columns, players)
    assert display is not None
    assert display[:, 0].tolist() == ["age=39, job=clerk", "age=50, job=missing"]


def test_one_hot_columns_are_shown_by_the_names_of_the_columns_that_are_one() -> None:
    schema = TableSchema.of(np.zeros((1, 5)))
    players = Groups({"flags": [0, 1, 2, 3, 4]}).bind(schema.names)
    x = np.array([[0.0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]])
    data, display = display_data(x, schema.columns, players)
    assert data is not None
    assert display is not None
    assert data[:, 0].tolist() == [1, 0, 0]
    assert display[:, 0].tolist() == ["x1", "none", "x0, x1, x2, ..."]


def test_an_empty_table_has_empty_display_data() -> None:
    schema = TableSchema.of(FRAME)
    data, display = display_data(np.empty((0, 3)), schema.columns, Features().bind(schema.names))
    assert data is not None
    assert display is not None
    assert data.shape == display.shape == (0, 3)
