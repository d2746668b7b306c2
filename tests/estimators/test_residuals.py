"""Tests of the estimated errors of given values, on games whose Shapley values are known."""

from __future__ import annotations

import pytest
import torch
from games import GAMES, KnownGame, Moebius
from torch import Tensor

from fastshapley.estimators.residuals import residuals


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def off(truth: Tensor, size: float = 0.3, seed: int = 1) -> Tensor:
    """Return wrong values that still sum to grand minus null."""
    noise = size * torch.randn(truth.shape, generator=generator(seed), dtype=truth.dtype)
    return truth + noise - noise.mean(1, keepdim=True)


@pytest.mark.parametrize(
    "game", [g for g in GAMES.values() if g.players > 1], ids=[n for n, g in GAMES.items() if g.players > 1]
)
def test_all_pairs_give_the_exact_error(game: KnownGame) -> None:
    x = game.rows(4)
    truth = game.shapley(x)
    phi = off(truth)
    found = residuals(game, x, phi, 1 << game.players, generator())
    torch.testing.assert_close(found.error, truth - phi, rtol=1e-9, atol=1e-9)
    assert found.variance.max() == 0
    torch.testing.assert_close(found.squared_error(), (truth - phi).square().sum((1, 2)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pairs", [10, 20, 40, 200])
def test_few_pairs_give_unbiased_errors_and_their_variance(pairs: int) -> None:
    """Over 1500 repetitions of one row, means are within 4.5 standard errors and variances within a tenth."""
    game = Moebius.random(10, outputs=2, seed=3)
    x = game.rows(1)
    truth = game.shapley(x)
    phi = off(truth)
    many = 1500
    found = residuals(game, x.expand(many, -1), phi.expand(many, -1, -1), pairs, generator(5))
    exact = (truth - phi)[0]
    mean, spread = found.error.mean(0), found.error.std(0)
    assert ((mean - exact).abs() < 4.5 * spread / many**0.5).all()
    claimed = found.variance.mean(0).mean()
    assert float(claimed) == pytest.approx(float(spread.square().mean()), rel=0.1)
    squared = found.squared_error()
    assert abs(float(squared.mean() - exact.square().sum())) < 4 * float(squared.std()) / many**0.5


def test_the_noise_does_not_contain_the_error_of_the_values() -> None:
    """The noise of wrong values is within a tenth of that of the exact values."""
    game = Moebius.random(9, outputs=1, seed=2)
    x = game.rows(50)
    truth = game.shapley(x)
    right, wrong = (residuals(game, x, phi, 64, generator()) for phi in (truth, off(truth)))
    assert float(right.noise.mean()) == pytest.approx(float(wrong.noise.mean()), rel=0.1)
    assert right.squared_error().mean() < wrong.squared_error().mean()
