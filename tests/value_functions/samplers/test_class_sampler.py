"""Tests of the sampler of latent classes: conditional distributions that are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from sampler_problems import all_donors, donors_of, fitted, mixed_table, normal_table

from fastshapley.value_functions.samplers import ClassSampler, NetworkSampler

SHARES = np.array([0.5, 0.3, 0.2])
FIRST = np.array([[0.9] * 6, [0.1] * 3 + [0.9] * 3, [0.9, 0.1] * 3])


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    member = generator.choice(3, rows, p=SHARES)
    first = generator.random((rows, 6)) < FIRST[member]
    return pd.DataFrame({f"c{j}": pd.Categorical(np.where(first[:, j], "a", "b")) for j in range(6)})


def probability_of_first(known: dict[int, bool]) -> tuple[np.ndarray, np.ndarray]:
    """P(first) of all columns given known ones, and the probability that two columns are first together."""
    likely = SHARES * np.prod([FIRST[:, j] if first else 1 - FIRST[:, j] for j, first in known.items()], axis=0)
    likely = likely / likely.sum()
    return likely @ FIRST, np.einsum("k,ki,kj->ij", likely, FIRST, FIRST)


def test_draws_have_the_true_conditional_distribution_and_hidden_columns_stay_dependent() -> None:
    """A mean over the donors of a class has an error of at most 0.5 / sqrt(its members), and classes their own."""
    donors = donors_of(table(4000))
    sampler = fitted(ClassSampler(), donors)
    x = donors.rows[:1].clone()
    x[0] = 0.0  # the first category, "a"
    s = torch.tensor([[True, False, False, False, False, False]])
    drawn = sampler(x, s, all_donors(donors))[0] == 0
    assert bool(drawn[:, 0].all())
    single, pairs = probability_of_first({0: True})
    error = 5 * 0.5 / (4000 * SHARES.min()) ** 0.5
    np.testing.assert_allclose(drawn.double().mean(0).numpy()[1:], single[1:], atol=error)
    both = (drawn.double().T @ drawn.double() / len(drawn)).numpy()
    hidden = np.ix_([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    off = ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(both[hidden][off], pairs[hidden][off], atol=error)
    assert np.abs(pairs - np.outer(single, single))[hidden][off].max() > error  # They are dependent.


def test_expected_scores_agree_with_the_draws() -> None:
    """Controls are zero on average, up to the noise of a choice of as many donors as there are."""
    donors = donors_of(table(2000))
    sampler = fitted(ClassSampler(), donors)
    x = donors.rows[:8]
    s = torch.rand(8, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    numbers = all_donors(donors, 8)
    rows, control = sampler.draw(x, s, numbers)
    assert control is not None
    assert torch.equal(rows, sampler(x, s, numbers))
    assert bool((control.mean(1).abs() <= 5 * control.std(1) / len(donors) ** 0.5).all())


def test_it_suits_tables_with_several_columns_of_few_values() -> None:
    numbers = normal_table(torch.eye(3, dtype=torch.float64), 100)
    assert ClassSampler().suits(donors_of(table(50)))
    assert ClassSampler().suits(donors_of(mixed_table()))
    assert not ClassSampler().suits(donors_of(numbers))
    assert not ClassSampler().suits(donors_of(numbers.assign(one=numbers["x0"] > 0, constant=1.0)))
    assert NetworkSampler().suits(donors_of(numbers))
