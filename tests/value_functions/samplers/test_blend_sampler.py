"""Tests of two samplers that share the draws."""

from __future__ import annotations

import pytest
import torch
from sampler_problems import all_donors, donors_of, fitted, mixed_table, normal_table
from torch import Tensor

from fastshapley.value_functions.samplers import (
    BlendSampler,
    ConditionalSampler,
    CopulaSampler,
    GivenSampler,
    MarginalSampler,
)


def two() -> tuple[ConditionalSampler, ConditionalSampler]:
    donors = donors_of(mixed_table())
    return fitted(MarginalSampler(), donors), fitted(CopulaSampler(), donors)


def question(sampler: ConditionalSampler, draws: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    donors = sampler.donors
    s = torch.rand(50, len(donors.players), generator=generator) < 0.5
    return donors.rows[:50], s, torch.randint(len(donors), (50, draws), generator=generator)


@pytest.mark.parametrize("draws", [1, 2, 3, 8])
def test_each_donor_belongs_to_one_of_the_samplers(draws: int) -> None:
    first, second = two()
    blend = BlendSampler(first, second, (0, 1))
    x, s, numbers = question(first, draws)
    owner = torch.zeros(len(first.donors), dtype=torch.bool)
    hidden = torch.zeros(1, len(first.donors.players), dtype=torch.bool)
    every = all_donors(first.donors)
    of_first, of_second = (each(x[:1], hidden, every)[0].nan_to_num() for each in (first, second))
    found = blend(x[:1], hidden, every)[0].nan_to_num()
    owner = ~torch.isclose(found, of_first).all(1)
    torch.testing.assert_close(found, torch.where(owner[:, None], of_second, of_first))
    assert int(owner.sum()) == len(owner) // 2
    three = [each.draw(x, s, numbers) for each in (blend, first, second)]
    for given, one, other in zip(*three, strict=True):
        torch.testing.assert_close(given, torch.where(owner[numbers][..., None], other, one), equal_nan=True)
    torch.testing.assert_close(blend(x, s, numbers), three[0][0], equal_nan=True)


def test_a_sampler_without_controls_has_none_with_another_one() -> None:
    donors = donors_of(normal_table(torch.eye(3, dtype=torch.float64), 200))
    first = fitted(MarginalSampler(), donors)
    own = fitted(GivenSampler(lambda x, s, generator: torch.zeros_like(x)), donors)
    blend = BlendSampler(first, own, (0, 1))
    rows, control = blend.draw(*question(first, 4))
    assert control is None
    assert not blend.centred
    assert rows.shape == (50, 4, 3)
    assert blend.config() == {"kind": "blend", "numbers": [0, 1]}
    assert blend.tensors() == {}
