"""Tests of the choice between games by their MSEv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastshapley.value_functions import game_choice
from fastshapley.value_functions.game_choice import HeldOut, Mix, SizePlan, SizeScore, compare_games, knots

PLAYERS = 6
WEIGHT = torch.arange(1.0, PLAYERS + 1, dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def held_out(rows: int = 400, learnt_from: int = 10**9) -> HeldOut:
    """Independent normal columns and a linear model: the truth is the sum over known columns."""
    x = torch.randn(rows, PLAYERS, generator=generator(), dtype=torch.float64)
    return HeldOut(x, (x @ WEIGHT)[:, None], PLAYERS, 10**6, learnt_from)


def truth(x: Tensor, s: Tensor) -> Tensor:
    """E[f | x_s], (n, m, 1)."""
    return ((x[:, None] * s) @ WEIGHT)[..., None]


def wrong(by: float, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The truth plus an error of a standard deviation that depends on nothing else."""

    def expectation(x: Tensor, s: Tensor) -> Tensor:
        right = truth(x, s)
        return right + by * torch.randn(right.shape, generator=generator(seed), dtype=torch.float64)

    return expectation


def sampler(by: float, seed: int, noise: float = 0.5) -> game_choice.SampledOutputs:
    """Two noisy samples of a game that is off by an error; the surrogate's outputs are zero on drawn rows."""
    source = generator(seed)

    def sample(x: Tensor, s: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        mean = truth(x, s[:, None])
        mean = mean + by * torch.randn(mean.shape, generator=source, dtype=torch.float64)
        both = mean + noise * torch.randn(len(x), 2, 1, generator=source, dtype=torch.float64)
        return both, torch.zeros_like(both)

    return sample


def test_an_exact_sampler_has_all_of_the_weight_where_the_surrogate_is_far_off() -> None:
    scores = compare_games(wrong(20.0, 1), [sampler(0.0, 2)], held_out(), generator(), linear=False)
    assert [score.size for score in scores] == list(knots(PLAYERS))
    assert all(score.mix.sampled > 0.95 for score in scores)
    assert all(score.chosen < 0.5 * score.surrogate for score in scores)


def test_an_exact_surrogate_has_all_of_the_weight_where_samples_are_far_off() -> None:
    scores = compare_games(wrong(0.0, 1), [sampler(20.0, 2)], held_out(), generator())
    assert all(score.mix.sampled + score.mix.corrected < 0.05 for score in scores)


def test_equally_good_games_share_the_weight_and_their_mean_is_better_than_both() -> None:
    """The sizes have one weight, so the standard error of it is that of all of them together, below 0.05."""
    scores = compare_games(wrong(6.0, 1), [sampler(6.0, 2)], held_out(2000), generator(), linear=False)
    for score in scores:
        assert score.mix.sampled == pytest.approx(0.5, abs=0.15)
        assert score.chosen < min(score.surrogate, *score.sampled)


def test_sampling_noise_has_no_part_in_the_scores() -> None:
    """The MSEv of the exact game is the variance of the hidden columns, whatever the noise of its samples."""
    rows = held_out(2000)
    for score in compare_games(wrong(1.0, 1), [sampler(0.0, 2, noise=10.0)], rows, generator()):
        hidden = (PLAYERS - score.size) / PLAYERS  # of the squared weights, on average over coalitions
        assert score.sampled[0] == pytest.approx(hidden, abs=0.1)  # five standard errors, that of one is 0.02


def test_the_better_of_two_samplers_is_chosen() -> None:
    scores = compare_games(wrong(20.0, 1), [sampler(8.0, 2), sampler(0.0, 3)], held_out(), generator())
    assert {score.sampler for score in scores} == {1}


def test_the_corrected_game_has_no_weight_behind_a_link() -> None:
    scores = compare_games(wrong(5.0, 1), [sampler(1.0, 2)], held_out(), generator(), linear=False)
    assert all(score.mix.corrected == 0 for score in scores)


def test_the_doubt_is_the_distance_to_the_truth_where_errors_are_unrelated() -> None:
    """Two games with unrelated errors of variance v: their mean has v / 2. The tolerance is a third of that."""
    variance = float(WEIGHT.square().sum())
    scores = compare_games(wrong(6.0, 1), [sampler(6.0, 2)], held_out(4000), generator())
    mean = sum(score.doubt for score in scores) / len(scores)
    assert mean == pytest.approx(18 / variance, rel=1 / 3)


def test_few_rows_to_learn_from_add_to_the_doubt() -> None:
    many, few = (
        compare_games(wrong(1.0, 1), [sampler(1.0, 2)], held_out(learnt_from=rows), generator())
        for rows in (10**9, 100)
    )
    for a, b in zip(many, few, strict=True):
        assert b.doubt - a.doubt == pytest.approx(b.chosen * b.size / 100, rel=1e-3)


def test_nothing_is_compared_with_too_few_coalitions_or_without_samplers() -> None:
    rows = held_out()
    few = HeldOut(rows.x, rows.y, PLAYERS, game_choice.FEWEST - 1, 100)
    assert compare_games(wrong(1.0, 1), [sampler(1.0, 2)], few, generator()) == ()
    assert compare_games(wrong(1.0, 1), [], rows, generator()) == ()


def test_a_constant_model_is_no_problem() -> None:
    rows = held_out(50)
    constant = HeldOut(rows.x, torch.ones_like(rows.y), PLAYERS, 1000, 100)

    def same(x: Tensor, s: Tensor) -> Tensor:
        return torch.ones(*s.shape[:2], 1, dtype=torch.float64)

    def sample(x: Tensor, s: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        ones = torch.ones(len(x), 2, 1, dtype=torch.float64)
        return ones, ones

    for score in compare_games(same, [sample], constant, generator()):
        assert (score.surrogate, score.chosen, score.doubt) == (0, 0, 0)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 200))
def test_knots_are_sizes_between_none_and_all(players: int) -> None:
    found = knots(players)
    assert list(found) == sorted(set(found))
    assert all(0 < size < players for size in found)
    assert players < 2 or {1, players - 1} <= set(found)


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 100))
def test_a_mix_is_the_weighted_mean_of_its_games(sampled: float, corrected: float, seed: int) -> None:
    g, f, imitated = torch.randn(3, 5, 2, generator=generator(seed), dtype=torch.float64)
    games = (1 - sampled - corrected) * g + sampled * f + corrected * (g + f - imitated)
    torch.testing.assert_close(Mix(sampled, corrected)(g, f, imitated), games)


def score(size: int, sampled: float, corrected: float, number: int = 0) -> SizeScore:
    return SizeScore(size, 1.0, (1.0,), 1.0, 0.1, 0.0, number, Mix(sampled, corrected))


def test_a_plan_interpolates_weights_and_takes_the_nearest_sampler() -> None:
    plan = SizePlan.of([score(1, 0.0, 0.2, 0), score(3, 1.0, 0.0, 1), score(5, 0.5, 0.5, 2)], 6)
    assert [mix.sampled for mix in plan.mixes] == pytest.approx([0, 0, 0.5, 1, 0.75, 0.5, 0.5])
    assert [mix.corrected for mix in plan.mixes] == pytest.approx([0.2, 0.2, 0.1, 0, 0.25, 0.5, 0.5])
    assert plan.samplers == (0, 0, 0, 1, 1, 2, 2)


def test_without_scores_the_surrogate_is_alone() -> None:
    assert not any(mix.draws for mix in SizePlan.of((), 4).mixes)


def test_a_score_is_restored_from_its_dictionary() -> None:
    assert SizeScore.from_dict(asdict(score(3, 0.25, 0.5))) == score(3, 0.25, 0.5)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 1000))
def test_weights_are_the_best_of_the_simplex(seed: int) -> None:
    """A fine grid of weights has nothing better."""
    source = generator(seed)
    root = torch.randn(2, 2, generator=source, dtype=torch.float64)
    gram, along = root @ root.T, torch.randn(2, generator=source, dtype=torch.float64)
    found = game_choice._within_simplex(gram, along)
    assert (found >= 0).all()
    assert found.sum() <= 1 + 1e-12
    axis = torch.linspace(0, 1, 41, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    grid = grid[grid.sum(1) <= 1]
    values = torch.einsum("gi,ij,gj->g", grid, gram, grid) - 2 * grid @ along
    assert found @ gram @ found - 2 * along @ found <= values.min() + 1e-9
