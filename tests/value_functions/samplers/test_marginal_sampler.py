"""Tests of the marginal sampler."""

from __future__ import annotations

import torch
from sampler_problems import all_donors, donors_of, fitted, mixed_table

from fastshapley.value_functions.samplers import MarginalSampler


def test_hidden_entries_are_those_of_the_donors() -> None:
    donors = donors_of(mixed_table(50))
    s = torch.tensor([[True, False, True, False, False, True, False, False]] * 3)
    drawn = fitted(MarginalSampler(), donors)(donors.rows[:3], s, all_donors(donors, 3))
    hidden = ~s[0]
    for row in drawn:
        assert torch.equal(row[:, hidden].nan_to_num(-99), donors.rows[:, hidden].nan_to_num(-99))
    known = donors.rows[:3, None, s[0]].expand(-1, 50, -1)
    assert torch.equal(drawn[..., s[0]].nan_to_num(-99), known.nan_to_num(-99))
