"""Tests of fit setup: which rows are held out, and which inputs are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from problems import numbers

from fastshapley.errors import InputError, TrainingError
from fastshapley.fit.settings import Settings
from fastshapley.fit.setup import FitData, check_labels, set_up


def model(rows: Any) -> Any:
    return rows[:, 0] - rows[:, 1]


def settings(**options: Any) -> Settings:
    return Settings(model, **{"random_state": 0, "progress": False, **options})


def as_set(rows: Any) -> set[tuple[float, ...]]:
    return {tuple(row) for row in rows[:].tolist()}


def test_held_out_rows_are_not_trained_on() -> None:
    found = set_up(settings(), FitData(numbers(100)))
    parts = [as_set(part) for part in (found.x, found.x_val, found.x_report)]
    assert [len(part) for part in parts] == [80, 10, 10]
    assert len(set().union(*parts)) == 100
    assert found.held_out


def test_given_validation_rows_are_held_out() -> None:
    found = set_up(settings(), FitData(numbers(50), numbers(20, seed=1)))
    assert as_set(found.x) == as_set(torch.from_numpy(numbers(50)))
    assert as_set(found.x_val) | as_set(found.x_report) == as_set(torch.from_numpy(numbers(20, seed=1)))


def test_no_rows_are_held_out_if_there_are_too_few() -> None:
    assert not set_up(settings(), FitData(numbers(4))).held_out


def test_empty_tables_are_refused() -> None:
    with pytest.raises(InputError, match="X has no rows"):
        set_up(settings(), FitData(numbers(5)[:0]))
    with pytest.raises(InputError, match="X_val has no rows"):
        set_up(settings(), FitData(numbers(5), numbers(5)[:0]))


def test_rows_passed_as_labels_are_refused() -> None:
    check_labels(numbers(20), np.zeros(20))
    check_labels(numbers(20), None)
    check_labels(pl.DataFrame(numbers(20)), pl.Series(np.zeros(20)))
    check_labels(pl.DataFrame(numbers(20)), pl.DataFrame({"y": np.zeros(20)}))
    with pytest.raises(InputError, match=r"y is a DataFrame of rows like those of X"):
        check_labels(pl.DataFrame(numbers(20)), pl.DataFrame(numbers(10)))
    with pytest.raises(InputError, match=r"y is a ndarray of rows like those of X.* X_val="):
        check_labels(numbers(20), numbers(10))


def test_a_checkpoint_for_other_rows_is_refused(tmp_path: Any) -> None:
    set_up(settings(), FitData(numbers(50), checkpoint=tmp_path))
    set_up(settings(), FitData(numbers(50), checkpoint=tmp_path))
    with pytest.raises(TrainingError, match="belongs to a run with other data"):
        set_up(settings(), FitData(numbers(50, seed=1), checkpoint=tmp_path))
