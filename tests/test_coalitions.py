"""Tests of the sampling and enumeration of coalitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from games import Moebius
from torch import Tensor

from fastshapley.coalitions import (
    curvature,
    enumerate_coalitions,
    kernel_sizes,
    pair_weights,
    sample_kernel,
    sample_pairs,
    sample_uniform_sizes,
    subsets,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel_probabilities(players: int) -> Tensor:
    """Return the Shapley kernel of every coalition, by its number, from the textbook formula."""
    weights = [Fraction(0)] * (1 << players)
    for number in range(1, (1 << players) - 1):
        k = number.bit_count()
        weights[number] = Fraction(players - 1, math.comb(players, k) * k * (players - k))
    total = sum(weights)
    return torch.tensor([float(w / total) for w in weights], dtype=torch.float64)


def numbers(s: Tensor) -> Tensor:
    """Return the numbers of coalitions, as `enumerate_coalitions` counts them."""
    return (s.long() << torch.arange(s.shape[-1])).sum(-1).flatten()


def chi_square_p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Return the p-value of counts under given probabilities."""
    expected = counts.sum() * probabilities
    assert expected.min() >= 5
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(counts) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


@pytest.mark.parametrize("players", [3, 9, 40])
def test_sizes_follow_the_shapley_kernel(players: int) -> None:
    sizes = sample_kernel(200, 100, players, generator(), paired=False).sum(-1)
    counts = torch.bincount(sizes.flatten(), minlength=players)[1:players]
    k = torch.arange(1, players, dtype=torch.float64)
    weight = (players - 1) / (k * (players - k))
    assert counts.sum() == 20_000
    assert chi_square_p_value(counts, weight / weight.sum()) > 1e-3
    torch.testing.assert_close(kernel_sizes(players), weight / weight.sum())


@pytest.mark.parametrize("paired", [False, True])
def test_coalitions_are_sampled_with_the_kernel_probabilities(paired: bool) -> None:
    players = 5
    s = sample_kernel(100, 200, players, generator(1), paired=paired)
    independent = s[:, :100] if paired else s
    counts = torch.bincount(numbers(independent), minlength=1 << players)
    probabilities = kernel_probabilities(players)
    assert counts[0] == counts[-1] == 0
    assert chi_square_p_value(counts[1:-1], probabilities[1:-1]) > 1e-3


def test_the_second_half_of_paired_coalitions_are_complements() -> None:
    s = sample_kernel(7, 10, 6, generator())
    assert s.shape == (7, 10, 6)
    assert torch.equal(s[:, 5:], ~s[:, :5])


@pytest.mark.parametrize("players", [2, 5, 12])
def test_pair_sizes_are_uniform_and_pair_weights_give_the_shapley_kernel(players: int) -> None:
    s = sample_pairs(200, 100, players, generator())
    assert s.shape == (200, 50, players)
    sizes = s.sum(-1)
    counts = torch.bincount(sizes.flatten(), minlength=players)[1:players]
    assert counts.sum() == 10_000
    if players > 2:
        assert chi_square_p_value(counts, torch.full((players - 1,), 1 / (players - 1))) > 1e-3
    everything = enumerate_coalitions(players)[1:-1]
    of_its_size = torch.tensor([1 / math.comb(players, int(k)) for k in everything.sum(1)])
    by_weight = pair_weights(everything) * of_its_size / (players - 1)
    torch.testing.assert_close(by_weight.double(), kernel_probabilities(players)[1:-1], rtol=1e-5, atol=1e-7)
    assert torch.equal(pair_weights(~s), pair_weights(s))


def test_an_odd_number_of_paired_coalitions_raises() -> None:
    with pytest.raises(ValueError, match="coalitions is 3"):
        sample_kernel(1, 3, 4, generator())


def test_uniform_sizes_include_the_empty_and_the_full_coalition() -> None:
    players = 6
    s = sample_uniform_sizes(100, 100, players, generator())
    counts = torch.bincount(s.sum(-1).flatten(), minlength=players + 1)
    uniform = torch.full((players + 1,), 1 / (players + 1), dtype=torch.float64)
    assert chi_square_p_value(counts, uniform) > 1e-3


@pytest.mark.parametrize("count", [100, 60_000])
def test_subsets_have_the_requested_sizes(count: int) -> None:
    sizes = torch.randint(0, 8, (2, count // 2), generator=generator())
    assert torch.equal(subsets(sizes, 7, generator()).sum(-1), sizes)


@pytest.mark.parametrize("count", [10, 30_000])
def test_samples_depend_only_on_the_generator(count: int) -> None:
    before = torch.get_rng_state()
    first, again = (sample_kernel(2, count, 5, generator(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, sample_kernel(2, count, 5, generator(4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_enumeration_lists_each_coalition_once_in_order() -> None:
    everything = enumerate_coalitions(6)
    assert torch.equal(numbers(everything), torch.arange(64))
    assert torch.equal(enumerate_coalitions(6, 10, 20), everything[10:20])


@pytest.mark.parametrize("players", [2, 3, 12, 94])
def test_curvature_is_half_the_inverse_harmonic_number(players: int) -> None:
    harmonic = sum(Fraction(1, k) for k in range(1, players))
    assert curvature(players) == pytest.approx(float(1 / (2 * harmonic)), rel=1e-14)


@pytest.mark.parametrize("players", [2, 3, 6])
def test_loss_differences_over_curvature_are_squared_error_differences(players: int) -> None:
    game = Moebius.random(players, outputs=2, seed=players)
    x = game.rows(1)
    s = enumerate_coalitions(players)
    v = game(x, s[None])[0]
    truth = game.shapley(x)[0]
    noise = torch.randn(2, players, 2, generator=generator(), dtype=torch.float64)
    estimates = truth + noise - noise.mean(1, keepdim=True)  # They still sum to grand minus null.
    residual = v - v[0] - s.double() @ estimates
    loss = torch.einsum("c,eck->e", kernel_probabilities(players), residual**2)
    error = (estimates - truth).square().sum((1, 2))
    torch.testing.assert_close((loss[1] - loss[0]) / curvature(players), error[1] - error[0])


@pytest.mark.parametrize("function", [kernel_sizes, curvature])
def test_a_single_player_raises(function: Callable[[int], object]) -> None:
    with pytest.raises(ValueError, match="players is 1"):
        function(1)


@pytest.mark.parametrize("players", [2, 127, 128, 129, 300])
def test_subsets_are_uniform_for_any_number_of_players(players: int) -> None:
    """Every player is in equally many subsets, within 5 standard errors of a binomial share."""
    draws, size = 20_000, players // 2
    s = subsets(torch.full((draws,), size), players, generator())
    assert (s.sum(1) == size).all()
    share = size / players
    assert ((s.double().mean(0) - share).abs() < 5 * (share * (1 - share) / draws) ** 0.5).all()
