"""Tests of the baseline game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from game_problems import RUN, problem
from numpy.typing import NDArray

from fastshapley.errors import InputError
from fastshapley.value_functions import (
    Baseline,
)


def mixed_frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "pay": [1.0, 2.0, np.nan, 6.0],
            "age": [20, 31, 40, 50],
            "job": ["chef", "clerk", "clerk", None],
            "old": [True, False, True, True],
        }
    )


class Recorder:
    """A model that records the rows it is called with."""

    def __init__(self) -> None:
        self.seen: list[pd.DataFrame] = []

    def __call__(self, X: pd.DataFrame) -> NDArray[np.float64]:
        self.seen.append(X)
        return np.zeros(len(X))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, [3.0, 35.25, "clerk", True]),
        ({"job": "chef", "age": 30}, [3.0, 30, "chef", True]),
        (pd.DataFrame({"pay": [9.0], "age": [1], "job": ["chef"], "old": [False]}), [9.0, 1, "chef", False]),
    ],
    ids=["mean and mode", "mapping", "one row"],
)
def test_hidden_columns_take_the_baseline_values(values: Any, expected: list[Any]) -> None:
    X, model = mixed_frame(), Recorder()
    task = problem(model, X)
    game = Baseline(values).fit(task, RUN)
    game(task.x[:1], torch.zeros(1, 1, 4, dtype=torch.bool))
    assert model.seen[-1].iloc[0].tolist() == expected
    game(task.x[:1], torch.tensor([[[True, False, True, False]]]))
    assert model.seen[-1].iloc[0].tolist() == [1.0, expected[1], "chef", expected[3]]


@pytest.mark.parametrize(
    ("values", "message"),
    [({"wage": 1}, "'wage', which is not a column"), (mixed_frame(), "4 rows: pass one row")],
)
def test_values_that_do_not_fit_the_table_are_refused(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Baseline(values).fit(problem(Recorder(), mixed_frame()), RUN)
