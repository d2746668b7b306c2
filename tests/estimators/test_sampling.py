"""Tests of what all sampling estimators have in common. Each estimator also has a test module of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from estimator_checks import Counted, assert_within_errors, errors, numbered
from games import GAMES, Additive, KnownGame, Moebius
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, kernel, memory, permutation
from fastshapley.value_functions import ValueFunction, grand_values, null_values

Estimator = Callable[..., Estimate]
ESTIMATORS: dict[str, Estimator] = {
    "unpaired": partial(kernel, paired=False),
    "paired": kernel,
    "leverage": partial(kernel, sampling="leverage"),
    "orders": partial(permutation, antithetic=False),
    "antithetic": permutation,
}
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def smallest_budget(estimator: Estimator, game: KnownGame) -> int:
    """Return the smallest budget, as the error message states it."""
    with pytest.raises(InputError) as caught:
        estimator(game, game.rows(1), budget=1)
    message = rf"budget is 1: the .* needs at least (\d+) evaluations for {game.players} players"
    found = re.fullmatch(message, str(caught.value))
    assert found, caught.value
    return int(found[1])


def unit_cost(name: str, players: int) -> int:
    costs = {"unpaired": 1, "paired": 2, "leverage": 2, "orders": players - 1, "antithetic": 2 * (players - 1)}
    return costs[name]


def limit_rows_per_block(monkeypatch: pytest.MonkeyPatch, rows: int, game: ValueFunction, budget: int) -> None:
    """Lower the limit of memory so that a block has ``rows`` rows."""
    monkeypatch.setattr(memory, "BLOCK_BYTES", rows * budget * (16 * game.players + 32 * game.outputs))


@every_estimator
@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
def test_estimates_lie_within_their_standard_errors(name: str, game: KnownGame) -> None:
    x = game.rows(4)
    estimate = ESTIMATORS[name](game, x, budget=4000, random_state=0)
    assert_within_errors(game, x, estimate)
    assert estimate.stderr.max() < 0.25 * np.abs(estimate.values).max()


@every_estimator
def test_errors_fall_with_the_square_root_of_the_budget(name: str) -> None:
    """Errors follow theory, show no bias at the larger budget, and agree with the standard errors.

    The variance of a regression on m draws goes as 1 / (m - players), that of a mean of m draws as 1 / m.
    The error of leverage sampling falls faster, since fewer and fewer coalitions remain unseen. Tolerances are 3
    standard errors, with rows as the unit.
    """
    players = 14 if name == "leverage" else 8
    game = Moebius.random(players, terms=30, seed=1)
    x = torch.ones(400, 30, dtype=torch.float64)
    unit = unit_cost(name, players)
    counts = [budget // unit for budget in (500, 4000)]
    estimates = [ESTIMATORS[name](game, x, budget=2 + unit * count, random_state=0) for count in counts]
    squared = [errors(game, x, estimate).square().sum((1, 2)) for estimate in estimates]
    relative = [float(q.std() / q.mean()) / len(q) ** 0.5 for q in squared]
    ratio = float(squared[0].mean() / squared[1].mean())
    loss = players if name in ("unpaired", "paired", "leverage") else 0
    expected = (counts[1] - loss) / (counts[0] - loss)
    margin = 3 * (relative[0] ** 2 + relative[1] ** 2) ** 0.5
    assert ratio / expected - 1 > -margin
    assert name == "leverage" or ratio / expected - 1 < margin
    stated = float(np.square(estimates[1].stderr).sum((1, 2)).mean())
    assert abs(float(squared[1].mean()) / stated - 1) < 3 * relative[1]


@every_estimator
@pytest.mark.parametrize("order", [3, 8])
def test_intervals_cover_the_exact_values_at_the_nominal_rate(name: str, order: int) -> None:
    """The coverage of 95 % intervals is within 3 standard errors, with rows as the unit."""
    game = Moebius.random(8, outputs=2, order=order, terms=30, seed=2)
    x = game.rows(1000)
    # Leverage sampling gets fewer than all 256 coalitions, the others enough draws for their mean to be normal.
    budget = 200 if name == "leverage" else 4000
    estimate = ESTIMATORS[name](game, x, budget=budget, random_state=0)
    covered = (errors(game, x, estimate).abs().numpy() <= 1.96 * estimate.stderr).mean((1, 2))
    assert abs(covered.mean() - 0.95) < 3 * covered.std() / len(x) ** 0.5  # Values of a row are dependent.


@every_estimator
@pytest.mark.parametrize("budget", [None, 500])
def test_values_sum_to_grand_minus_null_at_every_budget(name: str, budget: int | None) -> None:
    game = Moebius.random(9, outputs=2)
    x = game.rows(20)
    budget = budget or smallest_budget(ESTIMATORS[name], game)
    estimate = ESTIMATORS[name](game, x, budget=budget, random_state=0)
    total = grand_values(game, x) - null_values(game, x)
    np.testing.assert_allclose(estimate.values.sum(1), total, rtol=1e-12, atol=1e-12)


@every_estimator
@pytest.mark.parametrize("tol", [None, 0.05])
@pytest.mark.parametrize("more", [0, 1, 5, 260])
def test_evaluations_are_counted_and_within_the_budget(name: str, more: int, tol: float | None) -> None:
    game = Moebius.random(6)
    budget = smallest_budget(ESTIMATORS[name], game) + more
    counted = Counted(game, rows=10)
    estimate = ESTIMATORS[name](counted, numbered(game.rows(10)), budget=budget, tol=tol, random_state=0)
    assert estimate.evaluations.tolist() == counted.count.tolist()
    assert estimate.evaluations.max() <= budget
    if tol is None:
        most = min(budget, 2**6) if name == "leverage" else budget
        assert estimate.evaluations.min() > most - unit_cost(name, 6)  # One more unit would exceed the budget.


@every_estimator
@pytest.mark.parametrize("players", [2, 3, 4, 7, 12])
def test_the_smallest_budget_suffices_and_a_smaller_one_is_an_error(name: str, players: int) -> None:
    game = Moebius.random(players)
    smallest = smallest_budget(ESTIMATORS[name], game)
    estimate = ESTIMATORS[name](game, game.rows(3), budget=smallest, random_state=0)
    assert estimate.evaluations.tolist() == [smallest] * 3
    assert np.isfinite(estimate.values).all()
    assert np.isfinite(estimate.stderr).all()
    with pytest.raises(InputError, match=f"at least {smallest} "):
        ESTIMATORS[name](game, game.rows(3), budget=smallest - 1)


def half_additive(players: int) -> tuple[Moebius, Tensor]:
    """Return six additive rows, which every estimator solves immediately, and six rows with interactions."""
    game = Moebius.random(players, terms=30, seed=4)
    x = game.rows(12)
    x[:6, game.members.sum(1) > 1] = 0
    return game, x


@every_estimator
def test_rows_stop_as_soon_as_they_reach_the_tolerance(name: str) -> None:
    game, x = half_additive(10)
    tol, budget = 0.03, 60_000
    counted = Counted(game, len(x))
    estimate = ESTIMATORS[name](counted, numbered(x), budget=budget, tol=tol, random_state=0)
    spread = np.ptp(estimate.values, axis=(1, 2))
    assert estimate.converged.all()
    assert (estimate.stderr.max((1, 2)) <= tol * spread).all()
    assert_within_errors(game, x, estimate)
    assert len(set(estimate.evaluations[:6])) == 1
    assert (estimate.evaluations[6:] > estimate.evaluations[0]).all()
    assert (estimate.evaluations < budget).all()
    assert estimate.evaluations.tolist() == counted.count.tolist()  # A converged row is not evaluated again.
    short = ESTIMATORS[name](game, x, budget=100, tol=tol, random_state=0)
    assert short.converged.tolist() == [True] * 6 + [False] * 6
    assert not ESTIMATORS[name](game, x, budget=100, random_state=0).converged.any()


@every_estimator
def test_a_history_does_not_change_when_rows_stop(name: str) -> None:
    """A few evaluations may agree by chance, so convergence is not checked at the budgets of a history."""
    game, x = half_additive(10)
    smallest = smallest_budget(ESTIMATORS[name], game)
    run = partial(ESTIMATORS[name], game, x, budget=900, tol=0.03, random_state=0)
    plain, kept = run(), run(history=[smallest, 900])
    assert kept.evaluations[:6].tolist() == plain.evaluations[:6].tolist()
    np.testing.assert_array_equal(kept.history[-1], kept.values)


@every_estimator
def test_a_history_has_increasing_budgets_and_ends_with_the_result(name: str) -> None:
    game = Moebius.random(7, outputs=2)
    x = game.rows(5)
    smallest = smallest_budget(ESTIMATORS[name], game)
    estimate = ESTIMATORS[name](game, x, budget=701, history=True, random_state=0)
    assert estimate.budgets[0] == smallest
    assert estimate.budgets[-1] == 701
    assert (np.diff(estimate.budgets) > 0).all()
    assert estimate.history.shape == (len(estimate.budgets), 5, 7, 2)
    np.testing.assert_array_equal(estimate.history[-1], estimate.values)
    total = grand_values(game, x) - null_values(game, x)
    np.testing.assert_allclose(estimate.history.sum(2), total.expand(len(estimate.budgets), -1, -1), atol=1e-12)
    none = ESTIMATORS[name](game, x, budget=701, random_state=0)
    assert none.budgets.shape == none.history.shape == (0,)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "leverage"])
def test_history_equals_the_results_of_smaller_budgets(name: str) -> None:
    """A run continues a shorter run that used the same earlier budgets."""
    game = Moebius.random(7, outputs=2)
    run = partial(ESTIMATORS[name], game, game.rows(5), random_state=0)
    whole = run(budget=700, history=[600, 100, 250])
    assert whole.budgets.tolist() == [100, 250, 600]
    np.testing.assert_array_equal(whole.history[0], run(budget=100).values)
    np.testing.assert_array_equal(whole.history[1], run(budget=250, history=[100]).values)
    np.testing.assert_array_equal(whole.history[2], run(budget=600, history=[100, 250]).values)


@every_estimator
def test_same_seed_same_estimate_and_global_generators_untouched(name: str) -> None:
    game = Moebius.random(6)
    x = game.rows(3)
    before, numpy_before = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    first, again, other, fresh = (
        ESTIMATORS[name](game, x, budget=62, random_state=seed) for seed in (0, 0, 1, None)
    )
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_array_equal(first.stderr, again.stderr)
    assert not np.array_equal(first.values, other.values)
    assert not np.array_equal(first.values, fresh.values)
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(np.random.get_state()) == numpy_before  # noqa: NPY002


@every_estimator
@pytest.mark.parametrize("tol", [None, 0.05])
def test_rows_are_estimated_in_blocks(name: str, tol: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Moebius.random(9, outputs=2, terms=30)
    x = game.rows(11)
    x[4] = x[0]
    counted = Counted(game, len(x))
    budget = 300 if name == "leverage" else 1602  # 300 of 512 coalitions, or 100 pairs of orders.
    limit_rows_per_block(monkeypatch, 3, game, budget)
    run = partial(ESTIMATORS[name], counted, numbered(x), budget=budget, history=[150, budget])
    estimate = run(tol=tol, random_state=0)
    # Rows that converge stop after about 30 draws, where standard errors are uncertain themselves. Student's t with
    # 20 degrees of freedom exceeds 7 once in a million.
    assert_within_errors(game, x, estimate, most=4.5 if tol is None else 7)
    assert estimate.evaluations.tolist() == counted.count.tolist()
    assert estimate.history.shape == (2, 11, 9, 2)
    np.testing.assert_array_equal(estimate.history[-1], estimate.values)
    assert not np.array_equal(estimate.values[4], estimate.values[0])  # The same row gets other coalitions.


@every_estimator
def test_rows_that_are_not_finite_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Moebius.random(9)
    limit_rows_per_block(monkeypatch, 5, game, 400)
    counted = Counted(game, 12, broken={6: 2, 8: 2})  # After null and grand.
    with pytest.raises(InputError, match=r"not finite for 2 rows, numbers \[6, 8\]"):
        ESTIMATORS[name](counted, numbered(game.rows(12)), budget=400, random_state=0)


@every_estimator
def test_rows_that_are_not_finite_are_named_after_others_have_converged(name: str) -> None:
    game, x = half_additive(10)
    counted = Counted(game, 12, broken={7: 200, 11: 200})
    with pytest.raises(InputError, match=r"not finite for 2 rows, numbers \[7, 11\]"):
        ESTIMATORS[name](counted, numbered(x), budget=900, tol=0.001, random_state=0)
    assert counted.count[:6].max() < 200


@every_estimator
def test_rows_whose_grand_is_not_finite_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Moebius.random(9)
    limit_rows_per_block(monkeypatch, 5, game, 400)
    counted = Counted(game, 12, broken={6: 1, 8: 1})
    with pytest.raises(InputError, match=r"not finite for 2 rows, numbers \[6, 8\]"):
        ESTIMATORS[name](counted, numbered(game.rows(12)), budget=400, random_state=0)


@every_estimator
def test_a_single_player_gets_the_whole_total(name: str) -> None:
    game = Additive(1, outputs=2)
    x = game.rows(3)
    estimate = ESTIMATORS[name](game, x, budget=2, history=True)
    np.testing.assert_allclose(estimate.values, game.shapley(x))
    assert not estimate.stderr.any()
    assert estimate.evaluations.tolist() == [2, 2, 2]
    assert estimate.converged.all()
    assert estimate.history.shape == (1, 3, 1, 2)
    with pytest.raises(InputError, match="at least 2 evaluations for 1 players"):
        ESTIMATORS[name](game, x, budget=1)


@every_estimator
def test_two_players_are_exact_from_one_pair(name: str) -> None:
    game = Moebius.random(2, outputs=2, terms=6)
    x = game.rows(50)
    estimate = ESTIMATORS[name](game, x, budget=200, random_state=0)
    assert_within_errors(game, x, estimate)
    if name in ("paired", "leverage", "antithetic"):  # There is only one pair.
        np.testing.assert_allclose(estimate.values, game.shapley(x), atol=1e-8)
        assert estimate.stderr.max() < 1e-8


@every_estimator
def test_the_default_budget_is_64_evaluations_per_player(name: str) -> None:
    game = Moebius.random(6)
    estimate = ESTIMATORS[name](game, game.rows(2), random_state=0)
    most = 2**6 if name == "leverage" else 64 * 6 + 2
    assert most - unit_cost(name, 6) < estimate.evaluations.min() <= estimate.evaluations.max() <= most


@every_estimator
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol": 0.0}, "tol is 0.0: it must lie between 0 and 1"),
        ({"tol": 1.0}, "tol is 1.0"),
        ({"tol": -0.5}, "tol is -0.5"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"history": []}, r"history is \[\]: give budgets from \d+ to 100"),
        ({"history": [2, 100]}, r"history is \[2, 100\]"),
        ({"history": [101]}, r"history is \[101\]"),
    ],
)
def test_bad_arguments_raise(name: str, options: dict[str, Any], message: str) -> None:
    game = Additive(6)
    with pytest.raises(InputError, match=message):
        ESTIMATORS[name](game, game.rows(1), budget=100, **options)
