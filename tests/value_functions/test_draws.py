"""Tests of the numbers of draws, and of the donors that they come from."""

from __future__ import annotations

import torch

from fastshapley.players import Features
from fastshapley.value_functions.draws import DonorNumbers, draws_by_size

X = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NUMBERS = DonorNumbers(100, Features().bind(list("abc")), X, seed=0)


def test_small_and_large_coalitions_have_more_draws() -> None:
    assert draws_by_size(4, 16, 2) == (0, 3, 2, 3, 1)
    many = draws_by_size(30, 1024, 4)
    assert many[1] == many[29] > many[15] == 4


def test_donors_are_spaced_evenly_and_all_of_them_are_within_the_range() -> None:
    found = NUMBERS.spaced(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), 4)
    assert found.tolist() == [[0, 25, 50, 75], [12, 37, 62, 87], [25, 50, 75, 99]]


def test_starts_follow_from_what_is_known_and_from_nothing_else() -> None:
    s = torch.tensor([True, False, True]).expand(len(X), -1)
    other = X.clone()
    other[:, 1] = 7
    starts = NUMBERS.known_starts(X, s)
    assert torch.equal(starts, NUMBERS.known_starts(other, s))
    assert len(starts.unique()) == len(X)
    assert not torch.equal(starts, NUMBERS.known_starts(X + 1, s))
    # The mean of 200 uniform numbers, with five standard errors.
    assert abs(float(starts.mean()) - 0.5) < 5 * (1 / 12 / len(X)) ** 0.5


def test_random_starts_of_a_row_are_spread_evenly() -> None:
    """Multiples of the golden ratio leave no gap of more than 3 / m."""
    starts = NUMBERS.random_starts(5, 64, torch.Generator().manual_seed(0)).unflatten(0, (5, 64))
    assert float(starts.sort(1).values.diff(dim=1).max()) < 3 / 64
    assert len(starts[:, 0].unique()) == 5


def test_thousands_of_players_have_draws_too() -> None:
    """The numbers of their coalitions exceed the largest float."""
    found = draws_by_size(2000, 1024, 4)
    assert len(found) == 2001
    assert set(found[1:-1]) == {4}
