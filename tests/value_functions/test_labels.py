"""Tests of labelling rows with the model outputs that a surrogate is trained on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from game_problems import RUN, normal_frame, problem

from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.run import Run
from fastshapley.value_functions import labels
from fastshapley.value_functions.labels import label_rows


def first_column(rows: Any) -> Any:
    return rows["a"].to_numpy(dtype=float)


def test_all_rows_are_labelled_in_order() -> None:
    task = problem(first_column, normal_frame())
    found = label_rows(task, RUN, math.inf)
    assert torch.equal(found.x[:], task.x[:])
    assert torch.equal(found.y[:, 0], task.x[:][:, 0])
    assert torch.equal(found.y_val[:, 0], found.x_val[:, 0])


def test_training_and_validation_rows_share_the_evaluation_budget() -> None:
    task = replace(problem(first_column, normal_frame()), evaluations=30)
    before = task.model.evaluations
    found = label_rows(task, RUN, math.inf)
    assert (len(found.x), len(found.x_val)) == (15, 15)
    assert task.model.evaluations - before == 30
    assert torch.equal(found.y[:, 0], found.x[:][:, 0])


def test_the_number_of_validation_rows_is_limited() -> None:
    found = label_rows(problem(first_column, normal_frame()), RUN, 12)
    assert (len(found.x), len(found.x_val)) == (60, 12)


def test_an_interrupted_labelling_resumes_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rows that are not yet labelled are evaluated."""
    monkeypatch.setattr(labels, "SAVE_SECONDS", 0.0)  # save after each row
    run = Run(seed=0, checkpoint=Checkpoint(tmp_path))
    rows_left = 60 + 10  # the model is first called with all 60 rows, to check it

    def interrupted(rows: Any) -> Any:
        nonlocal rows_left
        rows_left -= len(rows)
        if rows_left < 0:
            raise KeyboardInterrupt
        return first_column(rows)

    broken = problem(interrupted, normal_frame())
    with pytest.raises(KeyboardInterrupt):
        label_rows(broken, run, math.inf)
    whole = problem(first_column, normal_frame())
    before = whole.model.evaluations
    found = label_rows(whole, run, math.inf)
    assert whole.model.evaluations - before == 120 - 10
    assert torch.equal(found.y[:, 0], found.x[:][:, 0])
