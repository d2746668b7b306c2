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
from fastshapley.value_functions.game_choice import (
    HeldOut,
    SampleMeans,
    SizePlan,
    SizeScore,
    compare_games,
    knots,
)

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
    """Two noisy samples of a game that is off by an error."""
    source = generator(seed)

    def sample(x: Tensor, s: Tensor, starts: Tensor) -> SampleMeans:
        mean = truth(x, s[:, None])
        mean = mean + by * torch.randn(mean.shape, generator=source, dtype=torch.float64)
        noises = noise * torch.randn(len(x), 2, 1, generator=source, dtype=torch.float64)
        return SampleMeans(mean + noises)

    return sample


def test_an_exact_sampler_has_all_of_the_weight_where_the_surrogate_is_far_off() -> None:
    scores = compare_games(wrong(20.0, 1), [sampler(0.0, 2)], held_out(), generator())
    assert [score.size for score in scores] == list(knots(PLAYERS))
    assert all(score.weight > 0.95 for score in scores)
    assert all(score.chosen < 0.5 * score.surrogate for score in scores)


def test_an_exact_surrogate_has_all_of_the_weight_where_samples_are_far_off() -> None:
    scores = compare_games(wrong(0.0, 1), [sampler(20.0, 2)], held_out(), generator())
    assert all(score.weight < 0.05 for score in scores)


def test_equally_good_games_share_the_weight_and_their_mean_is_better_than_both() -> None:
    """The sizes have one weight, so the standard error of it is that of all of them together, below 0.05."""
    scores = compare_games(wrong(6.0, 1), [sampler(6.0, 2)], held_out(2000), generator())
    for score in scores:
        assert score.weight == pytest.approx(0.5, abs=0.15)
        assert score.chosen < min(score.surrogate, *score.sampled)


def test_sampling_noise_has_no_part_in_the_scores() -> None:
    """The MSEv of the exact game is the variance of the hidden columns, whatever the noise of its samples."""
    rows = held_out(2000)
    for score in compare_games(wrong(1.0, 1), [sampler(0.0, 2, noise=10.0)], rows, generator()):
        hidden = (PLAYERS - score.size) / PLAYERS  # of the squared weights, on average over coalitions
        assert score.sampled[0] == pytest.approx(hidden, abs=0.1)  # five standard errors, that of one is 0.02


@pytest.mark.parametrize("usual", [0, 1])
def test_a_sampler_with_a_clearly_lower_score_is_chosen_and_else_the_usual_one(usual: int) -> None:
    def chosen(*errors: float) -> set[int]:
        samplers = [sampler(error, seed) for seed, error in enumerate(errors, 2)]
        scores = compare_games(wrong(20.0, 1), samplers, held_out(), generator(), usual=usual)
        return {score.sampler for score in scores}

    assert chosen(8.0, 0.0) == {1}
    assert chosen(0.0, 8.0) == {0}
    assert chosen(0.0, 0.0) == {usual}


def test_with_few_rows_the_sampled_game_has_most_of_the_weight_at_large_coalitions() -> None:
    """Ten rows say little, and a priori the sampled game is right for the grand coalition."""
    *_, last = compare_games(wrong(1.0, 1), [sampler(1.0, 2)], held_out(10), generator())
    assert last.size == PLAYERS - 1
    assert last.weight > 0.8


def test_the_doubt_is_the_distance_to_the_truth_where_errors_are_unrelated() -> None:
    """Two games with unrelated errors of variance v: their mean has v / 2. The tolerance is a third of that."""
    variance = float(WEIGHT.square().sum())
    scores = compare_games(wrong(6.0, 1), [sampler(6.0, 2)], held_out(4000), generator())
    mean = sum(score.doubts[0] for score in scores) / len(scores)
    assert mean == pytest.approx(18 / variance, rel=1 / 3)


def test_few_rows_to_learn_from_add_to_the_doubt() -> None:
    many, few = (
        compare_games(wrong(1.0, 1), [sampler(1.0, 2)], held_out(learnt_from=rows), generator())
        for rows in (10**9, 100)
    )
    for a, b in zip(many, few, strict=True):
        assert b.doubts[0] - a.doubts[0] == pytest.approx(b.chosen * b.size / 100, rel=1e-3)


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

    def sample(x: Tensor, s: Tensor, starts: Tensor) -> SampleMeans:
        return SampleMeans(torch.ones(len(x), 2, 1, dtype=torch.float64))

    for score in compare_games(same, [sample], constant, generator()):
        assert (score.surrogate, score.chosen, score.doubts) == (0, 0, (0.0,))


def test_a_control_has_the_multiple_that_takes_most_of_the_noise_off() -> None:
    """Outputs are 0.4 times the controls plus noise of their own. Least squares is right to 5 standard errors."""
    controls = torch.randn(4000, 2, 1, generator=generator(1), dtype=torch.float64)
    own = 0.3 * torch.randn(4000, 2, 1, generator=generator(2), dtype=torch.float64)
    row = torch.randn(4000, 1, 1, generator=generator(3), dtype=torch.float64)

    def multiple(outputs: Tensor, controls: Tensor | None) -> float:
        return SampleMeans(outputs, controls).control()

    assert multiple(row + 0.4 * controls + own, controls) == pytest.approx(0.4, abs=5 * 0.3 / 4000**0.5)
    assert multiple(row + own, controls) == 0
    assert multiple(row - controls, controls) == 0
    assert multiple(row + 0.4 * controls, None) == 0
    assert multiple(torch.ones(5, 2, 1), torch.zeros(5, 2, 1)) == 0
    assert multiple(row + 3 * controls, controls) == 1


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 200))
def test_knots_are_sizes_between_none_and_all(players: int) -> None:
    found = knots(players)
    assert list(found) == sorted(set(found))
    assert all(0 < size < players for size in found)
    assert players < 2 or {1, players - 1} <= set(found)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(-2, 2)), min_size=1, max_size=5), st.integers(10, 1000))
def test_weights_have_the_highest_posterior_density(sizes: list[tuple[float, float]], rows: int) -> None:
    """Changing the weight of any size does not lower the MSEv plus the penalty of the random walk."""
    games = [fixed_games(apart, along) for apart, along in sizes]
    places = [(k + 1) / (len(games) + 1) for k in range(len(games))]
    found = game_choice._smooth_weights(games, places, rows)
    noise = sum(each.noise for each in games) / len(games)
    pull = noise * (len(games) + 1) / (game_choice.SPREAD**2 * min(len(games[0].missed), 2 * rows))

    def penalised(weights: list[float]) -> float:
        fit = sum(w * w * g.apart - 2 * w * g.along for w, g in zip(weights, games, strict=True))
        steps = zip([*weights[1:], 1.0], weights, strict=True)
        return fit + pull * sum((a - b) ** 2 for a, b in steps)

    best = penalised(found)
    for k in range(len(found)):
        for step in (-0.05, 0.05):
            other = [*found]
            other[k] = min(1.0, max(0.0, other[k] + step))
            assert penalised(other) >= best - 1e-4 * (1 + pull)


def fixed_games(apart: float, along: float) -> game_choice._Games:
    """Two games that are a constant step apart, for four coalitions."""
    step = apart**0.5
    missed = torch.full((4, 1), along / step, dtype=torch.float64)
    means = SampleMeans(torch.full((4, 2, 1), step, dtype=torch.float64))
    return game_choice._Games(missed, torch.zeros(4, 1), means, torch.tensor(1.0, dtype=torch.float64))


def score(size: int, weight: float, number: int = 0) -> SizeScore:
    return SizeScore(size, 1.0, (1.0,), 1.0, 0.1, (0.0,), number, weight)


def test_a_plan_interpolates_weights_and_takes_the_nearest_sampler() -> None:
    plan = SizePlan.of([score(1, 0.0, 0), score(3, 1.0, 1), score(5, 0.5, 2)], 6)
    assert plan.weights == pytest.approx([0, 0, 0.5, 1, 0.75, 0.5, 1])
    assert plan.samplers == (0, 0, 0, 1, 1, 2, 2)


def test_without_scores_the_surrogate_is_alone_except_for_the_grand_coalition() -> None:
    assert SizePlan.of((), 4).weights == (0, 0, 0, 0, 1)


def test_a_score_is_restored_from_its_dictionary() -> None:
    assert SizeScore.from_dict(asdict(score(3, 0.25))) == score(3, 0.25)


def test_outputs_of_different_size_count_equally_unless_they_are_probabilities() -> None:
    """The second output is a thousand times as large, and only its surrogate is good."""
    rows = held_out()
    both = HeldOut(rows.x, torch.cat([rows.y, 1000 * rows.y], dim=1), PLAYERS, 10**6, 10**9)
    bad, good = wrong(20.0, 1), wrong(0.0, 1)

    def surrogate(x: Tensor, s: Tensor) -> Tensor:
        return torch.cat([bad(x, s), 1000 * good(x, s)], dim=2)

    def sampled(x: Tensor, s: Tensor, starts: Tensor) -> SampleMeans:
        first, second = sampler(0.0, 2)(x, s, starts), sampler(20.0, 3)(x, s, starts)
        return SampleMeans(torch.cat([first.outputs, 1000 * second.outputs], dim=2))

    apart = compare_games(surrogate, [sampled], both, generator())
    together = compare_games(surrogate, [sampled], both, generator(), together=True)
    assert all(0.2 < score.weight < 0.8 for score in apart[:-1])
    assert all(score.weight < 0.2 for score in together[:-1])
    assert all(len(score.doubts) == 2 for score in apart)
