"""Tests of the energy score: it is lowest for draws from the true conditional distribution."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from sampler_problems import donors_of
from torch import Tensor

from fastshapley.value_functions.energy_score import EnergyScore

SLOPE, SPREAD = 0.8, 0.6


def normal_rows(n: int, seed: int) -> Tensor:
    """The second column is .8 times the first one plus noise, so both have the variance 1."""
    z = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.stack([z[:, 0], SLOPE * z[:, 0] + SPREAD * z[:, 1]], dim=1)


@pytest.fixture(scope="module")
def energy() -> EnergyScore:
    return EnergyScore.of(donors_of(pd.DataFrame(normal_rows(5000, 0).numpy())))


def drawn(x: Tensor, mean: Tensor, spread: float, draws: int = 8) -> Tensor:
    """Draws of the second column of each row."""
    noise = torch.randn(len(x), draws, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return torch.stack([x[:, :1].expand(-1, draws), mean[:, None] + spread * noise], dim=2)


@pytest.mark.parametrize(("slope", "spread"), [(0.0, 1.0), (0.8, 0.3), (0.8, 1.2), (0.5, 0.6)])
def test_the_true_distribution_has_the_lowest_score(energy: EnergyScore, slope: float, spread: float) -> None:
    x = normal_rows(4000, 1)
    right = energy(x, drawn(x, SLOPE * x[:, 0], SPREAD))
    other = energy(x, drawn(x, slope * x[:, 0], spread))
    difference = other - right
    assert float(difference.mean()) > 5 * float(difference.std()) / 4000**0.5


def test_the_score_is_that_of_the_closed_form(energy: EnergyScore) -> None:
    """Two normal variables of variance v have the mean distance sqrt(4 v / pi), so the score is half of that."""
    x = normal_rows(20000, 3)
    found = energy(x, drawn(x, SLOPE * x[:, 0], SPREAD))
    expected = (SPREAD**2 / torch.pi) ** 0.5
    # 5 standard errors, and 2 % because the scale is that of 5000 rows.
    assert float(found.mean()) == pytest.approx(expected, abs=5 * float(found.std()) / 20000**0.5 + 0.02 * expected)


def test_draws_that_are_the_row_itself_have_no_distance(energy: EnergyScore) -> None:
    x = normal_rows(3, 1)
    assert energy(x, x[:, None].expand(-1, 4, -1)).tolist() == [0.0] * 3


def test_a_gap_counts_as_the_middle_of_its_column(energy: EnergyScore) -> None:
    x, middle = normal_rows(5, 1), normal_rows(5, 1)
    x[:, 1], middle[:, 1] = torch.nan, 0.0
    torch.testing.assert_close(energy(x, x[:, None].expand(-1, 4, -1)), torch.zeros(5, dtype=torch.float64))
    draws = drawn(middle, 0 * middle[:, 0], SPREAD)
    torch.testing.assert_close(energy(x, draws), energy(middle, draws), atol=0.03, rtol=0)
