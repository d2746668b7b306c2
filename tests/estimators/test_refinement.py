"""Refinement of a prior's values, on games whose Shapley values are known."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from games import Moebius
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.estimators import kernel
from fastshapley.estimators.refinement import Prior, RefinementOptions, allocate, refine
from fastshapley.estimators.residuals import residuals

PLAYERS, ROWS = 10, 200


@pytest.fixture(scope="module")
def game() -> Moebius:
    return Moebius.random(PLAYERS, outputs=2, seed=3)


@pytest.fixture(scope="module")
def x(game: Moebius) -> Tensor:
    return game.rows(ROWS)


@pytest.fixture(scope="module")
def prior(game: Moebius, x: Tensor) -> Prior:
    """Values with errors of a tenth of their size in half of the rows, and of three times that in the others."""
    truth = game.shapley(x)
    generator = torch.Generator().manual_seed(0)
    size = 0.1 * float(truth.square().mean().sqrt()) * torch.tensor([1.0, 3.0]).repeat(ROWS // 2)[:, None, None]
    noise = size * torch.randn(truth.shape, generator=generator, dtype=truth.dtype)
    values = truth + noise - noise.mean(1, keepdim=True)
    rest = residuals(game, x, truth, 1 << PLAYERS, generator)
    return Prior(values, (size.square()).expand(truth.shape).double(), rest.noise, rest.profile)


def squared(values: np.ndarray | Tensor, truth: Tensor) -> float:
    return float(np.square(np.asarray(values) - truth.numpy()).sum((1, 2)).mean())


def test_the_error_falls_with_the_budget_to_zero(game: Moebius, x: Tensor, prior: Prior) -> None:
    truth = game.shapley(x)
    errors = [squared(prior.values, truth)]
    for budget in (20, 40, 80, 160, 320):
        errors.append(
            squared(refine(game, x, prior, RefinementOptions(budget=budget, random_state=0)).values, truth)
        )
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    whole = refine(game, x, prior, RefinementOptions(budget=16 << PLAYERS, random_state=0))
    np.testing.assert_allclose(whole.values, truth, atol=1e-9)
    assert whole.stderr.max() == 0
    assert (whole.evaluations == 1 << PLAYERS).all()


@pytest.mark.parametrize("budget", [44, 82, 162])
def test_errors_are_smaller_than_without_a_prior(budget: int, game: Moebius, x: Tensor, prior: Prior) -> None:
    truth = game.shapley(x)
    refined = refine(game, x, prior, RefinementOptions(budget=budget, random_state=0))
    alone = kernel(game, x, budget=budget, sampling="leverage", random_state=0)
    assert squared(refined.values, truth) < squared(alone.values, truth)
    assert refined.evaluations.mean() <= budget


def test_values_still_sum_to_grand_minus_null(game: Moebius, x: Tensor, prior: Prior) -> None:
    refined = refine(game, x, prior, RefinementOptions(budget=30, random_state=0))
    np.testing.assert_allclose(refined.values.sum(1), prior.values.sum(1).numpy(), atol=1e-9)


def test_standard_errors_are_of_the_size_of_the_errors(game: Moebius, x: Tensor, prior: Prior) -> None:
    """Their mean squares agree within a factor of 1.5: one number per row stands for the noise of all pairs."""
    truth = game.shapley(x).numpy()
    for budget in (24, 64, 200):
        refined = refine(game, x, prior, RefinementOptions(budget=budget, random_state=0))
        ratio = np.square(refined.values - truth).mean() / np.square(refined.stderr).mean()
        assert 0.67 < ratio < 1.5


def test_rows_with_larger_errors_get_more_pairs(game: Moebius, x: Tensor, prior: Prior) -> None:
    pairs = allocate(prior, 40, (1 << PLAYERS - 1) - 1)
    assert 36 <= float(pairs.double().mean()) <= 40
    assert pairs[1::2].double().mean() > 1.5 * pairs[::2].double().mean()
    assert pairs.min() >= 10


def test_rows_with_equal_errors_get_equally_many_pairs(game: Moebius) -> None:
    ones = torch.ones(8, PLAYERS, 2, dtype=torch.float64)
    pairs = allocate(Prior(ones, ones, ones[:, 0], ones[0, : PLAYERS // 2, 0]), 25, 511)
    assert pairs.unique().numel() == 1
    assert 20 <= int(pairs[0]) <= 25


def test_a_row_stops_when_it_is_within_the_tolerance(game: Moebius, x: Tensor, prior: Prior) -> None:
    refined = refine(game, x, prior, RefinementOptions(tol=0.02, random_state=0))
    spread = np.ptp(refined.values, axis=(1, 2))
    assert refined.converged.all()
    assert (refined.stderr.max((1, 2)) <= 0.02 * spread).all()
    assert len(set(refined.evaluations.tolist())) > 2
    loose = refine(game, x, prior, RefinementOptions(tol=0.9, random_state=0))
    assert (loose.evaluations == 2).all()  # The prior is within the tolerance.
    np.testing.assert_array_equal(loose.values, prior.values.numpy())


def test_a_budget_limits_what_a_tolerance_spends(game: Moebius, x: Tensor, prior: Prior) -> None:
    refined = refine(game, x, prior, RefinementOptions(tol=1e-6, budget=50, random_state=0))
    assert refined.evaluations.max() <= 50
    assert not refined.converged.any()


def test_the_same_seed_gives_the_same_bytes(game: Moebius, x: Tensor, prior: Prior) -> None:
    first, again, other = (
        refine(game, x, prior, RefinementOptions(budget=30, random_state=seed)).values for seed in (0, 0, 1)
    )
    assert first.tobytes() == again.tobytes() != other.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "budget and tol are both None"),
        ({"budget": 3}, "budget is 3: a row takes at least 4 evaluations"),
        ({"tol": 2.0}, "tol is 2.0: it must lie between 0 and 1"),
        ({"budget": float("inf")}, "budget is inf: pass a finite number"),
        ({"tol": "small"}, "tol is 'small': pass a finite number"),
    ],
)
def test_bad_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RefinementOptions(**options)


def test_no_rows_give_an_empty_estimate(game: Moebius, x: Tensor, prior: Prior) -> None:
    nobody = torch.zeros(0, dtype=torch.long)
    assert refine(game, x[nobody], prior[nobody], RefinementOptions(budget=10)).values.shape == (0, PLAYERS, 2)
