"""Tests of the choice of a sampler by the energy score of its rows: the right distribution is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sampler_problems import donors_of, fitted, normal_table
from torch import Tensor

from fastshapley.training.run import Clock
from fastshapley.value_functions.sampler_choice import choose_sampler
from fastshapley.value_functions.samplers import ConditionalSampler, CopulaSampler, GivenSampler, MarginalSampler

COVARIANCE = 0.8 * torch.ones(4, 4, dtype=torch.float64) + 0.2 * torch.eye(4, dtype=torch.float64)
DONORS = donors_of(normal_table(COVARIANCE, 1000))
ROWS = torch.from_numpy(normal_table(COVARIANCE, 300, seed=1).to_numpy(copy=True))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chosen(*samplers: ConditionalSampler, seed: int = 0) -> tuple[int, ...]:
    return choose_sampler(samplers, ROWS, generator(seed), Clock()).numbers


def shifted(by: float) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """The true conditional distribution, shifted by a number of standard deviations of a column."""
    precision = torch.linalg.inv(COVARIANCE)
    means = 10.0 * torch.arange(1, 5, dtype=torch.float64)

    def sample(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        hidden = (~s).double()
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        own = hidden[:, :, None] * precision * hidden[:, None] + torch.diag_embed(1 - hidden)
        pull = -(precision * hidden[:, :, None] * s[:, None].double()) @ ((x - means) * s)[..., None]
        expected = torch.linalg.solve(own, pull)[..., 0]
        root = torch.linalg.cholesky(torch.linalg.inv(own))
        return means + expected + by + (root @ noise[..., None])[..., 0]

    return sample


def given(by: float) -> ConditionalSampler:
    sampler: ConditionalSampler = fitted(GivenSampler(shifted(by)), DONORS)
    return sampler


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_sampler_of_the_true_distribution_is_chosen(place: int) -> None:
    samplers = [fitted(MarginalSampler(), DONORS), given(1.5)]
    samplers.insert(place, fitted(CopulaSampler(), DONORS))
    assert chosen(*samplers) == (place,)


def test_two_samplers_that_err_in_opposite_directions_share_the_draws() -> None:
    found = chosen(fitted(MarginalSampler(), DONORS), given(0.4), given(-0.4))
    assert sorted(found) == [1, 2]


def test_samplers_that_cannot_be_told_apart_share_the_draws() -> None:
    """Two standard errors are exceeded by chance in one of 44 cases, so in three or more of 20 in one of 90."""
    samplers = given(0.0), given(0.0)
    shared = [len(chosen(*samplers, seed=seed)) == 2 for seed in range(20)]
    assert sum(shared) >= 18


def test_a_single_sampler_needs_no_comparison() -> None:
    assert choose_sampler([fitted(MarginalSampler(), DONORS)], ROWS[:0], generator(), Clock()).numbers == (0,)


def test_a_sampler_that_is_too_slow_is_left_out() -> None:
    """The clock of the test says how slow it is."""
    now = [0.0]

    def slow(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        now[0] += 0.1 * len(x)
        return shifted(0.0)(x, s, generator)

    def own() -> ConditionalSampler:
        sampler: ConditionalSampler = fitted(GivenSampler(slow), DONORS)
        return sampler

    clock = Clock(now=lambda: now[0])
    fast = fitted(MarginalSampler(), DONORS)
    found = choose_sampler([own(), fast, given(1.5)], ROWS, generator(), clock, slowest=0.01)
    assert found.kept == (1, 2)
    assert 0 not in found.numbers
    assert choose_sampler([own(), fast], ROWS, generator(), clock, slowest=1.0).kept == (0, 1)
    assert choose_sampler([own(), own()], ROWS, generator(), clock, slowest=0.01).kept == (0,)


def test_few_rows_are_compared_if_there_is_no_time() -> None:
    calls = []

    def own(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        calls.append(len(x))
        return x

    samplers = fitted(GivenSampler(own), DONORS), fitted(MarginalSampler(), DONORS)
    choose_sampler(samplers, ROWS, generator(), Clock(0.0))
    few = sum(calls)
    calls.clear()
    assert choose_sampler(samplers, ROWS, generator(), Clock()).pace > 0
    assert 0 < few < sum(calls) / 10


def test_the_choice_follows_from_the_seed() -> None:
    samplers = given(0.0), fitted(CopulaSampler(), DONORS)
    assert chosen(*samplers, seed=3) == chosen(*samplers, seed=3)
