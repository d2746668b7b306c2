"""Tests of dividing rows: copies stay together, rows that are equal by chance do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import numbers
from torch import Tensor

from fastshapley.fit.held_out import different_rows, equal_by_chance, hold_out, rows_in
from fastshapley.training.run import Run


def as_set(rows: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in rows.tolist()}


def categories(rows: int, columns: int = 4, seed: int = 0) -> Tensor:
    """Dependent columns of three categories each, in which rows repeat each other by chance."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, 3, (rows, columns))
    for j in range(1, columns):
        same = generator.random(rows) < 0.4
        x[same, j] = x[same, j - 1]
    return torch.from_numpy(x).double()


@pytest.mark.parametrize("rows", [5, 64, 333])
def test_a_share_of_the_rows_is_held_out(rows: int) -> None:
    x = torch.arange(float(rows))[:, None]
    kept, held = hold_out(x, Run(0), share=0.25, most=50)
    assert isinstance(kept, Tensor)
    assert len(held) == min(50, int(0.25 * rows))
    assert sorted([*kept[:, 0].tolist(), *held[:][:, 0].tolist()]) == x[:, 0].tolist()


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(3, 60), st.integers(2, 30), st.integers(1, 5), st.booleans(), st.integers(0, 2**32 - 1))
def test_copies_of_a_row_are_held_out_together(rows: int, times: int, columns: int, tiled: bool, seed: int) -> None:
    own = torch.from_numpy(numbers(rows, max(2, columns), seed=seed))
    x = own.repeat(times, 1) if tiled else own.repeat_interleave(times, 0)
    kept, held = hold_out(x, Run(0))
    assert isinstance(kept, Tensor)
    assert isinstance(held, Tensor)
    if kept is not x:
        assert not as_set(kept) & as_set(held)
        assert len(kept) + len(held) == len(x)
    assert len(different_rows(x)) == rows


def test_some_copies_among_many_rows_are_held_out_together() -> None:
    own = torch.from_numpy(numbers(1000, 5))
    kept, held = hold_out(torch.cat([own, own[:100]]), Run(0))
    assert not as_set(kept[:]) & as_set(held[:])


@pytest.mark.parametrize("columns", [1, 2, 4, 6])
def test_rows_that_are_equal_by_chance_are_divided_at_random(columns: int) -> None:
    """If no row of a kind were in the training rows, its share could not be learnt."""
    x = categories(2000, columns)
    kept, held = hold_out(x, Run(0))
    assert equal_by_chance(x)
    assert len(as_set(kept[:]) & as_set(held[:])) > 0.8 * len(as_set(held[:]))
    assert torch.equal(different_rows(x), x)


def test_copies_of_categories_are_copies() -> None:
    """Each of 60 different rows of ten categories occurs 20 times."""
    own = torch.randint(0, 4, (60, 10), generator=torch.Generator().manual_seed(0)).double()
    assert not equal_by_chance(own.repeat_interleave(20, 0))


def test_copies_of_numbers_in_one_column_are_copies_but_few_values_are_not() -> None:
    own = torch.from_numpy(numbers(100, 1))
    assert not equal_by_chance(own.repeat(5, 1))
    assert equal_by_chance(own[:10].repeat(50, 1))


def test_gaps_and_the_sign_of_zero_do_not_make_copies_differ() -> None:
    x = torch.tensor([[0.0, torch.nan, 0.3], [1.0, 2.0, 0.1], [-0.0, torch.nan, 0.3]], dtype=torch.float64)
    assert len(different_rows(x)) == 2
    assert rows_in(x[2:], x[:2]).tolist() == [True]
    assert rows_in(x[1:2], x[:1]).tolist() == [False]


def test_equal_images_are_copies() -> None:
    images = torch.zeros(10, 1, 4, 4)
    assert not equal_by_chance(images)
    assert len(different_rows(images)) == 1
