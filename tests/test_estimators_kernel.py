from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from games import Additive, Moebius
from test_estimators_base import Counted, errors, numbered

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.errors import InputError
from fastshapley.estimators import exact, kernel


@pytest.mark.parametrize("players", [2, 4, 30])
@pytest.mark.parametrize("sampling", ["kernel", "leverage"])
def test_games_without_higher_interactions_are_solved_exactly(players: int, sampling: Any) -> None:
    """A pair cancels all interactions of two players: additive games, and these, leave no residual."""
    game = Moebius.random(players, outputs=2, order=2, terms=40)
    x = game.rows(5)
    estimate = kernel(game, x, budget=20 * players, sampling=sampling, random_state=0)
    rounding = 1e-8 * float(game.shapley(x).abs().max())
    np.testing.assert_allclose(estimate.values, game.shapley(x), atol=rounding)
    assert estimate.stderr.max() < rounding


def test_additive_games_are_solved_exactly_without_pairs() -> None:
    game = Additive(12, outputs=2)
    x = game.rows(5)
    estimate = kernel(game, x, budget=200, paired=False, random_state=0)
    np.testing.assert_allclose(estimate.values, game.shapley(x), atol=1e-8)
    assert estimate.stderr.max() < 1e-8


@pytest.mark.parametrize("sampling", ["kernel", "leverage"])
def test_standard_errors_are_honest_at_small_budgets(sampling: Any) -> None:
    """With three pairs a player the jackknife errs on the safe side."""
    game = Moebius.random(12, terms=40, seed=3)
    rows = 1000
    x = game.rows(rows)
    estimate = kernel(game, x, budget=2 + 2 * 3 * game.players, sampling=sampling, random_state=0)
    covered = errors(game, x, estimate).abs().numpy() <= 1.96 * estimate.stderr
    assert covered.mean() > 0.95 - 3 * (0.95 * 0.05 / rows) ** 0.5


@pytest.mark.parametrize("players", range(2, 11))
@pytest.mark.parametrize("more", [0, 3, 1000])
def test_leverage_sampling_of_all_coalitions_is_exact(players: int, more: int) -> None:
    game = Moebius.random(players, outputs=2, terms=30)
    x = game.rows(4)
    counted = Counted(game, len(x))
    estimate = kernel(counted, numbered(x), budget=2**players + more, sampling="leverage", random_state=0)
    np.testing.assert_allclose(estimate.values, exact(game, x).values, atol=1e-8)
    assert not estimate.stderr.any()
    assert estimate.evaluations.tolist() == [2**players] * 4
    assert counted.count.tolist() == [2**players] * 4


@pytest.mark.parametrize("stops", [[], [100, 130, 131, 180, 300, 301, 450]])
def test_leverage_sampling_takes_no_coalition_twice_where_a_size_is_exhausted(stops: list[int]) -> None:
    """However the budget is split: 450 evaluations of nine players leave out some of the middle sizes only."""
    seen: list[torch.Tensor] = []

    class Recorded(Moebius):
        def __call__(self, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            seen.append(s[0])
            return super().__call__(x, s)

    game = Moebius.random(9, terms=30)
    recorded = Recorded(game.members, game.dividends)
    kernel(recorded, game.rows(1), budget=450, sampling="leverage", history=stops or False, random_state=0)
    drawn = torch.cat(seen)
    assert len(drawn.unique(dim=0)) == len(drawn) == 450
    sizes = torch.bincount(drawn.sum(1))
    every = torch.bincount(enumerate_coalitions(9).sum(1))
    assert sizes[[0, 1, 2, 3, 6, 7, 8, 9]].tolist() == every[[0, 1, 2, 3, 6, 7, 8, 9]].tolist()


@pytest.mark.parametrize(("players", "budget"), [(10, 400), (20, 600), (40, 1200)])
def test_leverage_sampling_beats_the_kernel_on_a_nonlinear_game(players: int, budget: int) -> None:
    weight = torch.randn(players, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class Network:
        outputs = 1

        def __init__(self) -> None:
            self.players = players

        def __call__(self, x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            return torch.tanh((x[:, None] * s) @ weight).sum(-1, keepdim=True)

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(150, players, generator=generator, dtype=torch.float64)
    game = Network()
    # the reference is independent of both, so that its own error adds the same to each
    truth = kernel(game, x, budget=10 * budget, random_state=2).values
    squared = [
        np.square(kernel(game, x, budget=budget, sampling=sampling, random_state=0).values - truth).sum((1, 2))
        for sampling in ("leverage", "kernel")
    ]
    gain = squared[1] - squared[0]
    assert gain.mean() > 5 * gain.std() / len(gain) ** 0.5


def test_bad_arguments() -> None:
    game = Additive(6)
    for options, message in [
        ({"sampling": "halton"}, "sampling is 'halton': use 'kernel' or 'leverage'"),
        ({"sampling": "leverage", "paired": False}, "sampling='leverage' draws pairs: use it with paired=True"),
        ({"budget": 25}, "budget is 25: the paired kernel estimator needs at least 26 evaluations for 6 players"),
        ({"budget": 25, "paired": False}, "the kernel estimator needs at least 26"),
    ]:
        with pytest.raises(InputError, match=message):
            kernel(game, game.rows(1), **options)  # type: ignore[arg-type]
