"""Tests of the donors of components. The fits are tested with each family of distributions."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastshapley.value_functions.samplers.mixture import ComponentDonors


def test_one_component_takes_the_donors_as_they_are_numbered() -> None:
    numbers = torch.tensor([[3, 1, 2]])
    donors, component = ComponentDonors(torch.ones(4, 1)).chosen(torch.ones(1, 1), numbers)
    assert torch.equal(donors, numbers)
    assert not component.any()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(2, 5), st.integers(20, 60), st.integers(0, 2**32 - 1))
def test_donors_are_chosen_by_the_shares_and_their_membership(components: int, donors: int, seed: int) -> None:
    """All numbers once: each donor is chosen in proportion to shares times membership, to within one number."""
    generator = torch.Generator().manual_seed(seed)
    many = 2000
    membership = torch.rand(donors, components, generator=generator, dtype=torch.float64).softmax(1)
    shares = torch.rand(1, components, generator=generator, dtype=torch.float64)
    shares /= shares.sum()
    # Numbers are places between 0 and the number of donors: more donors than there are make a finer grid.
    fine = ComponentDonors(membership.repeat_interleave(many // donors, 0))
    numbers = torch.arange(fine.count)[None]
    chosen, component = fine.chosen(shares, numbers)
    found = torch.zeros(donors, components, dtype=torch.float64)
    found.index_put_((chosen[0] // (many // donors), component[0]), torch.ones(1).double(), accumulate=True)
    expected = shares * membership / membership.sum(0)
    assert float((found / fine.count - expected).abs().max()) < 2 / fine.count + 1e-9


def test_a_component_without_probability_is_never_chosen() -> None:
    membership = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    shares = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    donors, component = ComponentDonors(membership).chosen(shares, torch.arange(4).expand(2, -1))
    assert donors.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert component.tolist() == [[0] * 4, [1] * 4]
