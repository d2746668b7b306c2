"""Tests of which split points become inputs."""

from __future__ import annotations

import numpy as np
import torch

from fastshapley.data.trees import Cuts
from fastshapley.networks.cut_choice import chosen_cuts
from fastshapley.training.process_group import ProcessGroup

ROWS = torch.arange(10, dtype=torch.float64)[:, None].expand(-1, 1)


def chosen(cuts: Cuts, most: int = 16, rows: torch.Tensor = ROWS, categories: int = 0) -> list[float]:
    (found,) = chosen_cuts([cuts], rows, [categories], most, ProcessGroup())
    return found


def test_few_cuts_are_all_chosen_in_increasing_order() -> None:
    assert chosen(Cuts.of([4.5, 1.5, 7.5])) == [1.5, 4.5, 7.5]


def test_the_most_used_of_equal_cuts_stands_for_all() -> None:
    assert chosen(Cuts.of([4.2, 4.5, 4.8, 6.5], [1, 3, 1, 1])) == [4.5, 6.5]


def test_a_cut_at_a_number_has_this_number_on_its_left() -> None:
    assert chosen(Cuts.of([4.0, 4.5, 3.9], [1, 2, 1])) == [3.9, 4.5]


def test_cuts_outside_of_the_rows_are_left_out() -> None:
    assert chosen(Cuts.of([-1.0, 9.0, 10.0, 8.5])) == [8.5]


def test_columns_of_two_numbers_and_of_categories_have_none() -> None:
    assert chosen(Cuts.of([0.5]), rows=(ROWS > 4).double()) == []
    assert chosen(Cuts.of([0.5]), rows=torch.full((4, 1), torch.nan, dtype=torch.float64)) == []
    assert chosen(Cuts.of([4.5]), categories=10) == []


def test_gaps_are_not_numbers() -> None:
    rows = ROWS.clone()
    rows[:2] = np.nan
    assert chosen(Cuts.of([0.5, 5.5]), rows=rows) == [5.5]
