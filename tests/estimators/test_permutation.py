"""The permutation estimator on games whose Shapley values are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from estimator_checks import assert_within_errors, errors
from games import Additive, Glove, Moebius

from fastshapley.estimators import memory, permutation


@pytest.mark.parametrize("antithetic", [False, True])
def test_additive_games_are_solved_exactly_by_any_order(antithetic: bool) -> None:
    game = Additive(7, outputs=2)
    x = game.rows(3)
    estimate = permutation(game, x, budget=2 + 4 * 6, antithetic=antithetic, random_state=0)
    np.testing.assert_allclose(estimate.values, game.shapley(x), atol=1e-12)
    assert estimate.stderr.max() < 1e-12


def test_an_order_and_its_reverse_cancel_interactions_of_two_players() -> None:
    """Each of two players comes first in one of the two orders."""
    game = Moebius.random(8, outputs=2, order=2, terms=30)
    x = game.rows(3)
    both = permutation(game, x, budget=2 + 4 * 7, random_state=0)
    np.testing.assert_allclose(both.values, game.shapley(x), atol=1e-12)
    assert both.stderr.max() < 1e-12
    assert permutation(game, x, budget=2 + 4 * 7, antithetic=False, random_state=0).stderr.max() > 0.1


def test_standard_errors_are_those_of_the_contributions() -> None:
    """The left glove adds the price unless it comes first, so its contribution is a Bernoulli variable."""
    game = Glove(4)
    x = torch.ones(1, 1, dtype=torch.float64)
    orders = 400
    estimate = permutation(game, x, budget=2 + 3 * orders, antithetic=False, random_state=0)
    share = estimate.values[0, 0, 0]
    assert share * orders == pytest.approx(round(share * orders))
    assert estimate.stderr[0, 0, 0] == pytest.approx((share * (1 - share) / (orders - 1)) ** 0.5)
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / orders) ** 0.5


def test_reversed_orders_reduce_the_error_where_interactions_are_of_low_order() -> None:
    """The mean gain in squared error is above 5 standard errors, with rows as the unit."""
    game = Moebius.random(8, order=3, terms=30, seed=1)
    x = game.rows(400)
    budget = 2 + 14 * 20
    squared = [
        errors(game, x, permutation(game, x, budget=budget, antithetic=antithetic, random_state=0))
        .square()
        .sum((1, 2))
        for antithetic in (True, False)
    ]
    gain = squared[1] - squared[0]
    assert gain.mean() > 5 * gain.std() / len(gain) ** 0.5


@pytest.mark.parametrize("antithetic", [False, True])
def test_orders_are_evaluated_in_chunks(antithetic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Moebius.random(6, outputs=2)
    x = game.rows(7)
    budget = 2 + 10 * 150
    whole = permutation(game, x, budget=budget, antithetic=antithetic, random_state=0)
    monkeypatch.setattr(memory, "EVALUATIONS_PER_CALL", 250)
    parts = permutation(game, x, budget=budget, antithetic=antithetic, random_state=0)
    assert_within_errors(game, x, parts)
    assert parts.evaluations.tolist() == whole.evaluations.tolist()
    # The relative standard error of a variance from 150 units is about sqrt((2 + kurtosis) / 150).
    seen = whole.stderr > 1e-12
    np.testing.assert_allclose(parts.stderr[seen], whole.stderr[seen], rtol=0.6)


def test_a_large_offset_does_not_change_the_values() -> None:
    game = Moebius.random(5, terms=12)

    class Shifted(Moebius):
        def __call__(self, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            return super().__call__(x, s) + 1e6

    x = game.rows(4)
    near, far = (
        permutation(g, x, budget=500, random_state=0) for g in (game, Shifted(game.members, game.dividends))
    )
    np.testing.assert_allclose(far.values, near.values, atol=1e-8)
    np.testing.assert_allclose(far.stderr, near.stderr, atol=1e-8)
