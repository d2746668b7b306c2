from __future__ import annotations

import numpy as np
import pytest
import torch
from games import GAMES, Additive, KnownGame, Moebius
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, kernel
from fastshapley.value_functions import ValueFunction, grand_values, null_values


class Counted:
    """Counts the coalitions that each row is evaluated on; the first column of x numbers the rows."""

    def __init__(self, game: ValueFunction, rows: int) -> None:
        self.game, self.players, self.outputs = game, game.players, game.outputs
        self.count = torch.zeros(rows, dtype=torch.long)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        self.count[x[:, 0].long()] += s.shape[1]
        return self.game(x[:, 1:], s)


def numbered(x: Tensor) -> Tensor:
    return torch.cat([torch.arange(len(x))[:, None], x], dim=1)


def errors(game: KnownGame, x: Tensor, estimate: Estimate) -> Tensor:
    return torch.from_numpy(estimate.values) - game.shapley(x)


@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
def test_estimates_lie_within_their_standard_errors(game: KnownGame) -> None:
    x = game.rows(4)
    estimate = kernel(game, x, budget=4000, random_state=0)
    # no exact game but the additive, which is right up to rounding, has standard errors near zero
    assert (errors(game, x, estimate).abs().numpy() <= 4.5 * estimate.stderr + 1e-5).all()
    assert estimate.stderr.max() < 0.25 * np.abs(estimate.values).max()


@pytest.mark.parametrize("budget", [None, 500])
def test_efficiency_holds_whatever_the_budget(budget: int | None) -> None:
    game = Moebius.random(9, outputs=2)
    x = game.rows(20)
    estimate = kernel(game, x, budget=budget or 2 + 4 * game.players, random_state=0)
    total = grand_values(game, x) - null_values(game, x)
    np.testing.assert_allclose(estimate.values.sum(1), total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("players", [2, 4, 30])
def test_games_without_higher_interactions_are_solved_exactly(players: int) -> None:
    """A pair cancels all interactions of two players: additive games, and these, leave no residual."""
    game = Moebius.random(players, outputs=2, order=2, terms=40)
    x = game.rows(5)
    estimate = kernel(game, x, budget=20 * players, random_state=0)
    rounding = 1e-5 * float(game.shapley(x).abs().max())  # sums are in float32
    np.testing.assert_allclose(estimate.values, game.shapley(x), atol=rounding)
    assert estimate.stderr.max() < rounding


@pytest.mark.parametrize("order", [3, 8])
def test_error_falls_with_the_root_of_the_budget(order: int) -> None:
    """The variance of a regression on p pairs goes as 1 / (p - players); no bias may show at the larger budget."""
    game = Moebius.random(8, order=order, terms=30, seed=1)
    x = torch.ones(600, 30, dtype=torch.float64)
    pairs, squared = (128, 2048), []
    for p in pairs:
        estimate = kernel(game, x, budget=2 + 2 * p, random_state=0)
        squared.append(errors(game, x, estimate).square().sum((1, 2)))
    ratio = float(squared[0].mean() / squared[1].mean())
    relative = [float(q.std() / q.mean()) / len(q) ** 0.5 for q in squared]
    expected = (pairs[1] - game.players) / (pairs[0] - game.players)
    assert abs(ratio / expected - 1) < 3 * (relative[0] ** 2 + relative[1] ** 2) ** 0.5


@pytest.mark.parametrize("order", [3, 8])
def test_standard_errors_cover_the_truth_at_the_nominal_rate(order: int) -> None:
    game = Moebius.random(8, outputs=2, order=order, terms=30, seed=2)
    rows = 1000
    x = game.rows(rows)
    estimate = kernel(game, x, budget=1000, random_state=0)
    covered = errors(game, x, estimate).abs().numpy() <= 1.96 * estimate.stderr
    binomial = (0.95 * 0.05 / rows) ** 0.5
    assert np.abs(covered.mean(0) - 0.95).max() < 3 * binomial


def test_standard_errors_are_honest_at_small_budgets() -> None:
    """With three pairs a player the jackknife errs on the safe side."""
    game = Moebius.random(12, terms=40, seed=3)
    rows = 1000
    x = game.rows(rows)
    estimate = kernel(game, x, budget=2 + 2 * 3 * game.players, random_state=0)
    covered = errors(game, x, estimate).abs().numpy() <= 1.96 * estimate.stderr
    assert covered.mean() > 0.95 - 3 * (0.95 * 0.05 / rows) ** 0.5


def test_rows_stop_as_soon_as_they_reach_the_tolerance() -> None:
    game = Moebius.random(6, terms=30, seed=4)
    x = game.rows(12)
    x[:6, game.members.sum(1) > 1] = 0  # additive rows are solved by the first round
    tol, budget = 0.02, 20_000
    estimate = kernel(game, x, budget=budget, tol=tol, random_state=0)
    spread = np.ptp(estimate.values, axis=(1, 2))
    assert estimate.converged.all()
    assert (estimate.stderr.max((1, 2)) <= tol * spread).all()
    assert len(set(estimate.evaluations[:6])) == 1
    assert (estimate.evaluations[6:] > estimate.evaluations[0]).all()
    assert (estimate.evaluations < budget).all()
    short = kernel(game, x, budget=200, tol=tol, random_state=0)
    assert short.converged.tolist() == [True] * 6 + [False] * 6


@pytest.mark.parametrize("tol", [None, 0.05])
@pytest.mark.parametrize("budget", [26, 27, 301])
def test_evaluations_are_counted_and_within_the_budget(budget: int, tol: float | None) -> None:
    game = Moebius.random(6)
    counted = Counted(game, rows=10)
    estimate = kernel(counted, numbered(game.rows(10)), budget=budget, tol=tol, random_state=0)
    assert estimate.evaluations.tolist() == counted.count.tolist()
    assert estimate.evaluations.max() <= budget
    if tol is None:
        assert estimate.evaluations.min() >= budget - 1  # pairs


def test_rows_are_worked_on_in_blocks() -> None:
    game = Additive(4, outputs=60)
    x = game.rows(100)
    estimate = kernel(game, x, budget=1000, random_state=0)  # more than is kept at once
    np.testing.assert_allclose(estimate.values, game.shapley(x), atol=1e-5)


def test_same_seed_same_estimate_and_global_generators_untouched() -> None:
    game = Moebius.random(6)
    x = game.rows(3)
    before, numpy_before = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    first, again, other = (kernel(game, x, budget=100, random_state=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_array_equal(first.stderr, again.stderr)
    assert not np.array_equal(first.values, other.values)
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(np.random.get_state()) == numpy_before  # noqa: NPY002


def test_one_player_gets_everything() -> None:
    game = Additive(1, outputs=2)
    x = game.rows(3)
    estimate = kernel(game, x, budget=2)
    np.testing.assert_allclose(estimate.values, game.shapley(x))
    assert not estimate.stderr.any()
    assert estimate.evaluations.tolist() == [2, 2, 2]
    assert estimate.converged.all()


@pytest.mark.parametrize(
    ("budget", "tol", "message"),
    [
        (25, None, "budget is 25: .* at least 26 for 6 players"),
        (100, 0.0, "tol is 0.0"),
        (100, 1.5, "tol is 1.5"),
        (100, float("nan"), "tol is nan"),
    ],
)
def test_bad_arguments(budget: int, tol: float | None, message: str) -> None:
    game = Additive(6)
    with pytest.raises(InputError, match=message):
        kernel(game, game.rows(1), budget=budget, tol=tol)
