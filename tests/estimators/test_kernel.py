"""The kernel estimator, and its bare variant by leverage, on games whose Shapley values are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from estimator_checks import Counted, errors, numbered
from games import Additive, Moebius
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.errors import InputError
from fastshapley.estimators import exact, kernel, memory
from fastshapley.estimators.kernel import leverage_values
from fastshapley.value_functions import ValueFunction, grand_values, null_values
from fastshapley.value_functions.base_game import GameTraits


@pytest.mark.parametrize("players", [2, 4, 30])
@pytest.mark.parametrize("sampling", ["kernel", "leverage"])
def test_games_with_interactions_of_two_players_are_solved_exactly(players: int, sampling: Any) -> None:
    """A pair cancels all interactions of two players, so these games leave no residual."""
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
    """With three pairs per player the jackknife is conservative.

    The coverage of 95 % intervals is not more than 3 standard errors too small, with rows as the unit.
    """
    game = Moebius.random(12, terms=40, seed=3)
    rows = 1000
    x = game.rows(rows)
    estimate = kernel(game, x, budget=2 + 2 * 3 * game.players, sampling=sampling, random_state=0)
    covered = (errors(game, x, estimate).abs().numpy() <= 1.96 * estimate.stderr).mean((1, 2))
    assert covered.mean() > 0.95 - 3 * covered.std() / rows**0.5


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
    """This holds however the budget is split: 450 of 512 coalitions of nine players leave out middle sizes only."""
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
def test_leverage_sampling_has_smaller_errors_than_the_kernel_on_a_nonlinear_game(
    players: int, budget: int
) -> None:
    """The mean gain in squared error is above 5 standard errors, with rows as the unit."""
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
    # The reference is independent of both, so its own error adds the same to each.
    truth = kernel(game, x, budget=10 * budget, random_state=2).values
    squared = [
        np.square(kernel(game, x, budget=budget, sampling=sampling, random_state=0).values - truth).sum((1, 2))
        for sampling in ("leverage", "kernel")
    ]
    gain = squared[1] - squared[0]
    assert gain.mean() > 5 * gain.std() / len(gain) ** 0.5


# -- The bare estimate by leverage.


def bare(game: ValueFunction, x: Tensor, pairs: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return leverage_values(game, x, pairs, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("players", range(2, 11))
@pytest.mark.parametrize("more", [0, 1000])
def test_the_bare_estimate_of_all_pairs_is_exact(players: int, more: int) -> None:
    game = Moebius.random(players, outputs=2, terms=30)
    x = game.rows(4)
    counted = Counted(game, len(x))
    values, total = bare(counted, numbered(x), 2 ** (players - 1) - 1 + more)
    # The least squares are solved in float32, with a ridge of 1e-7.
    rounding = 1e-5 * float(game.shapley(x).abs().max())
    np.testing.assert_allclose(values, exact(game, x).values, atol=rounding)
    torch.testing.assert_close(total, grand_values(game, x) - null_values(game, x))
    assert counted.count.tolist() == [2**players] * 4


def test_the_bare_estimate_has_the_mean_and_variance_of_the_kernel_estimator() -> None:
    """Many runs on one row are compared, since rows of one run share some coalitions."""
    game = Moebius.random(11, terms=30, seed=3)
    runs, pairs = 1000, 60
    x = game.rows(1).expand(runs, -1)
    truth = game.shapley(x[:1])
    ours = torch.cat([bare(game, x[:1], pairs, seed)[0] for seed in range(runs)]) - truth
    estimate = kernel(game, x, budget=2 + 2 * pairs, sampling="leverage", random_state=1)
    theirs = torch.from_numpy(estimate.values) - truth
    z = (ours.mean(0) - theirs.mean(0)) / ((ours.var(0) + theirs.var(0)) / runs).sqrt()
    assert z.abs().max() < 4.5
    squared = [error.square().sum((1, 2)) for error in (ours, theirs)]
    difference = squared[0].mean() - squared[1].mean()
    assert abs(difference) < 4 * sum(float(q.var()) / runs for q in squared) ** 0.5


@pytest.mark.parametrize(("players", "pairs"), [(12, 24), (12, 96), (40, 320)])
def test_the_bare_estimate_solves_games_of_two_player_interactions(players: int, pairs: int) -> None:
    game = Moebius.random(players, outputs=2, order=2, terms=40)
    x = game.rows(5)
    rounding = 1e-5 * float(game.shapley(x).abs().max())
    np.testing.assert_allclose(bare(game, x, pairs)[0], game.shapley(x), atol=rounding)


def test_the_bare_estimate_evaluates_rows_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Moebius.random(8, outputs=2)
    x = game.rows(11)
    monkeypatch.setattr(memory, "EVALUATIONS_PER_CALL", 1000)
    values, total = bare(game, x, 127)
    rounding = 1e-5 * float(game.shapley(x).abs().max())
    np.testing.assert_allclose(values, game.shapley(x), atol=rounding)
    assert total.shape == (11, 2)


def test_the_bare_estimate_depends_on_its_generator_only() -> None:
    game = Moebius.random(10)
    x = game.rows(3)
    before = torch.get_rng_state()
    first, again, other = (bare(game, x, 50, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


fast = settings(deadline=None, derandomize=True, max_examples=25)
games = st.builds(
    lambda players, terms, seed: Moebius.random(players, outputs=2, terms=terms, seed=seed),
    st.integers(2, 9),
    st.integers(1, 12),
    st.integers(0, 2**20),
)
part_of_all = st.floats(0.5, 1.0)  # The share of all pairs; at least two pairs per player are drawn.


def values_of(game: ValueFunction, x: Tensor, part: float) -> Tensor:
    every = 2 ** (game.players - 1) - 1
    return bare(game, x, max(int(part * every), 2 * game.players))[0]


@given(games, part_of_all)
@fast
def test_bare_values_sum_to_grand_minus_null(game: Moebius, part: float) -> None:
    x = game.rows(2)
    total = grand_values(game, x) - null_values(game, x)
    torch.testing.assert_close(values_of(game, x, part).sum(1), total)


@given(games, st.data())
@fast
def test_equal_players_get_equal_bare_values(game: Moebius, data: st.DataObject) -> None:
    """A game added to itself with two players exchanged treats both alike. All pairs are evaluated."""
    i, j = data.draw(st.lists(st.integers(0, game.players - 1), min_size=2, max_size=2, unique=True))
    exchanged = game.members.clone()
    exchanged[:, [i, j]] = game.members[:, [j, i]]
    both = Moebius(torch.cat([game.members, exchanged]), torch.cat([game.dividends, game.dividends]))
    phi = values_of(both, game.rows(2).repeat(1, 2), 1.0)
    torch.testing.assert_close(phi[:, i], phi[:, j], atol=1e-5 * float(phi.abs().max()) + 1e-9, rtol=0)


@given(games, st.data())
@fast
def test_a_player_without_interactions_gets_its_own_bare_value(game: Moebius, data: st.DataObject) -> None:
    """A player that always adds the same amount gets that amount. All pairs are evaluated."""
    i = data.draw(st.integers(0, game.players - 1))
    members = game.members.clone()
    members[:, i] = 0
    alone = torch.eye(game.players, dtype=torch.float64)[[i]]
    game = Moebius(torch.cat([alone, members]), torch.cat([torch.tensor([[2.0, -3.0]]), game.dividends]))
    phi = values_of(game, torch.ones(1, len(game.members), dtype=torch.float64), 1.0)
    expected = torch.tensor([2.0, -3.0], dtype=torch.float64)
    torch.testing.assert_close(phi[0, i], expected, atol=1e-5 * float(phi.abs().max()), rtol=0)


@given(games, st.integers(0, 2**20), st.floats(-3, 3), part_of_all)
@fast
def test_bare_values_are_linear_in_the_game(game: Moebius, seed: int, factor: float, part: float) -> None:
    """With the same coalitions the estimate is linear in the game, even if there are few of them."""
    other = Moebius.random(game.players, outputs=2, seed=seed)

    class Mixture:
        players, outputs = game.players, 2

        def __call__(self, x: Tensor, s: Tensor) -> Tensor:
            return game(x[:, : len(game.members)], s) + factor * other(x[:, len(game.members) :], s)

    x, y = game.rows(2), other.rows(2, seed=1)
    first, second = values_of(game, x, part), values_of(other, y, part)
    mixed = values_of(Mixture(), torch.cat([x, y], 1), part)
    size = float(first.abs().max() + abs(factor) * second.abs().max())
    torch.testing.assert_close(mixed, first + factor * second, atol=1e-4 * size + 1e-9, rtol=0)


def test_bad_arguments_raise() -> None:
    game = Additive(6)
    for options, message in [
        ({"sampling": "halton"}, "sampling is 'halton': use 'kernel' or 'leverage'"),
        ({"sampling": "leverage", "paired": False}, "sampling='leverage' draws pairs: use it with paired=True"),
        ({"budget": 25}, "budget is 25: the paired kernel estimator needs at least 26 evaluations for 6 players"),
        ({"budget": 25, "paired": False}, "the kernel estimator needs at least 26"),
    ]:
        with pytest.raises(InputError, match=message):
            kernel(game, game.rows(1), **options)  # type: ignore[arg-type]


class Shared(GameTraits):
    """A game that evaluates the same coalitions of three rows faster, and keeps the coalitions that it has seen."""

    shared_coalitions = 3

    def __init__(self, game: Moebius) -> None:
        self.game, self.players, self.outputs = game, game.players, game.outputs
        self.seen: list[Tensor] = []

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        if s.shape[1] > 1:
            self.seen.append(s)
        return self.game(x, s)


def test_neighbouring_rows_share_coalitions_if_the_game_asks_for_it() -> None:
    game = Moebius.random(8, order=3)
    shared, x = Shared(game), game.rows(7)
    values, _ = bare(shared, x, 40)
    (s,) = shared.seen
    assert torch.equal(s[0], s[1])
    assert torch.equal(s[0], s[2])
    assert torch.equal(s[3], s[5])
    assert not torch.equal(s[2], s[3])
    assert not torch.equal(s[5], s[6])
    exactly, _ = bare(shared, x, 1 << 7)
    torch.testing.assert_close(exactly, game.shapley(x), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(values, exactly)
