"""Tests of what all samplers have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_problems import all_donors, donors_of, fitted, mixed_table, normal_table
from torch import Tensor

from fastshapley.players import Groups
from fastshapley.value_functions.column_scores import ColumnScores
from fastshapley.value_functions.samplers import (
    SAMPLERS,
    ConditionalSampler,
    Donors,
    GivenSampler,
    leading_output,
)
from fastshapley.value_functions.samplers.conditional_sampler import ScoredDonors

KINDS = sorted(SAMPLERS)
PLAYERS = {"features": None, "groups": Groups({"pair": ["number", "city"], "rest": ["few", "nothing", "gaps"]})}


@cache
def sampler_of(kind: str, players: str = "features") -> Any:
    return fitted(SAMPLERS[kind](), donors_of(mixed_table(), PLAYERS[players]))


def same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def test_the_names_of_samplers_are_their_kinds() -> None:
    assert KINDS == ["classes", "copula", "marginal", "network", "normal"]
    assert all(sampler.kind == kind for kind, sampler in SAMPLERS.items())


@pytest.mark.parametrize("players", sorted(PLAYERS))
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, derandomize=True, max_examples=100)
@given(data=st.data())
def test_known_entries_are_kept_gaps_stay_gaps_and_values_exist(
    kind: str, players: str, data: st.DataObject
) -> None:
    sampler = sampler_of(kind, players)
    donors: Donors = sampler.donors
    seed = data.draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    x = donors_of(mixed_table(20, seed=seed)).rows[:5]
    x[:, 7] = torch.tensor([1.0, torch.nan, 3.0, 4.0, 1e300])  # The donors have only gaps here.
    x[0, :4] = torch.nan
    mask = st.lists(st.booleans(), min_size=len(donors.players), max_size=len(donors.players))
    s = torch.tensor(data.draw(st.lists(mask, min_size=5, max_size=5)))
    numbers = torch.randint(len(donors), (5, 7), generator=generator)
    drawn = sampler(x, s, numbers)
    shown = donors.players.mask(s)[:, None].expand(-1, 7, -1)
    assert same(drawn[shown], x[:, None].expand(-1, 7, -1)[shown])
    given = donors.rows[numbers]
    if kind in ("marginal", "network"):  # The others may take another donor, which belongs to the row's component.
        assert torch.equal(drawn[~shown].isnan(), given[~shown].isnan())
    has_gaps = donors.rows.isnan().any(0)
    assert not bool(drawn[..., ~has_gaps][~shown[..., ~has_gaps]].isnan().any())
    assert bool(drawn[..., 6][~shown[..., 6]].eq(7).all())
    assert bool(drawn[..., 7][~shown[..., 7]].isnan().all())
    for name, values in {"few": {-2, -1, 0, 1, 2}, "flag": {0, 1}, "city": {0, 1, 2}, "constant": {7}}.items():
        j = donors.schema.names.index(name)
        hidden = drawn[..., j][~shown[..., j]]
        assert set(hidden[~hidden.isnan()].tolist()) <= values
    whole = drawn[..., 2][~shown[..., 2]]
    assert torch.equal(whole, whole.round())
    assert same(drawn, sampler(x, s, numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_draws_and_another_one_does_not(kind: str) -> None:
    donors = donors_of(mixed_table(100))
    s = torch.zeros(4, 8, dtype=torch.bool)
    s[:, 0] = True
    first, again, other = (
        fitted(SAMPLERS[kind](), donors, seed)(donors.rows[:4], s, all_donors(donors, 4)) for seed in (3, 3, 4)
    )
    assert same(first, again)
    assert same(first, other) == (kind == "marginal")


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_sampler_draws_the_same_rows(kind: str) -> None:
    sampler: ConditionalSampler = sampler_of(kind)
    restored = SAMPLERS[kind]()
    assert sampler.config()["kind"] == kind
    restored.restore(sampler.donors, sampler.tensors(), sampler.config(), seed=0)
    x = sampler.donors.rows[:6]
    s = torch.rand(6, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    numbers = all_donors(sampler.donors, 6)
    assert same(restored(x, s, numbers), sampler(x, s, numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_matters_to_all_but_the_marginal_sampler(kind: str) -> None:
    sampler = sampler_of(kind)
    x = sampler.donors.rows[:2].clone()
    x[:, 0] = torch.tensor([-1.5, 1.5])
    s = torch.zeros(2, 8, dtype=torch.bool)
    s[:, 0] = True
    drawn = sampler(x, s, all_donors(sampler.donors, 2))
    gain = [float(drawn[1, :, j].nanmean() - drawn[0, :, j].nanmean()) for j in (3, 4, 5)]
    assert all(each == 0 for each in gain) if kind == "marginal" else all(each > 0.25 for each in gain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame({"a": [1.0], "b": ["x"]}),
        lambda: pd.DataFrame({"a": [1.0, 1.0, 1.0], "b": list("xxx")}),
        lambda: pd.DataFrame({"a": [np.nan, np.nan], "b": list("xy")}),
        lambda: pd.DataFrame({"a": [1e300, -1e300, 1.0, 2.0], "b": list("xyxy")}),
    ],
    ids=["one row", "duplicates", "gaps", "extremes"],
)
def test_tables_at_the_limits(kind: str, make: Callable[[], pd.DataFrame]) -> None:
    donors = donors_of(make())
    sampler = fitted(SAMPLERS[kind](), donors)
    x = donors.rows[:1].expand(4, -1).clone()
    x[0, 0], x[1, 0], x[2, 0] = 1e300, -5.0, torch.nan
    s = torch.tensor([[True, False], [False, True], [True, True], [False, False]])
    drawn = sampler(x, s, all_donors(donors, 4))
    assert not bool(drawn.isinf().any())
    assert bool(sampler.draw(x, s, all_donors(donors, 4))[1].isfinite().all())
    assert torch.equal(drawn[2], x[2].expand(len(donors), -1)) or same(drawn[2], x[2].expand(len(donors), -1))
    hidden = drawn[1, :, 0]
    low, high = donors.rows[:, 0].nan_to_num().min(), donors.rows[:, 0].nan_to_num().max()
    assert bool(((hidden >= low) & (hidden <= high) | hidden.isnan()).all())
    assert torch.equal(hidden.isnan(), donors.rows[:, 0].isnan())


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_and_float32_rows(kind: str) -> None:
    sampler = sampler_of(kind)
    x, s = sampler.donors.rows[:3], torch.tensor([[True] * 4 + [False] * 4] * 3)
    numbers = all_donors(sampler.donors, 3)
    assert sampler(x[:0], s[:0], numbers[:0]).shape == (0, 200, 8)
    small = x.float()
    assert same(sampler(small, s, numbers), sampler(small.double(), s, numbers))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "network"])
def test_blocks_do_not_change_the_draws(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_of(kind)
    x, s = sampler.donors.rows[:9], torch.rand(9, 8, generator=torch.Generator().manual_seed(0)) < 0.5
    whole = sampler(x, s, all_donors(sampler.donors, 9))
    monkeypatch.setattr("fastshapley.value_functions.samplers.conditional_sampler.BLOCK_ENTRIES", 3000)
    torch.testing.assert_close(sampler(x, s, all_donors(sampler.donors, 9)), whole, equal_nan=True)


@pytest.mark.parametrize("players", sorted(PLAYERS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_control_leaves_the_rows_as_they_are_and_is_zero_where_nothing_is_drawn(kind: str, players: str) -> None:
    sampler = sampler_of(kind, players)
    x, count = sampler.donors.rows[:6], len(sampler.donors.players)
    s = torch.rand(6, count, generator=torch.Generator().manual_seed(0)) < 0.5
    s[0] = True
    numbers = all_donors(sampler.donors, 6)
    rows, control = sampler.draw(x, s, numbers)
    assert same(rows, sampler(x, s, numbers))
    assert control.shape == (6, 200, 1)
    assert bool(control.isfinite().all())
    assert not control[0].any()
    some_hidden = ~s.all(1)
    assert bool((control.flatten(1).any(1) == some_hidden).all())


@pytest.mark.parametrize("kind", KINDS)
def test_controls_are_zero_on_average_over_the_donors_and_take_off_noise(kind: str) -> None:
    """The output is linear in normal columns. The network's expectations are off by its own error only."""
    covariance = 0.6 * torch.ones(4, 4, dtype=torch.float64) + 0.4 * torch.eye(4, dtype=torch.float64)
    table = normal_table(covariance, 2000)
    weights = torch.tensor([[1.0], [-2.0], [0.5], [1.0]], dtype=torch.float64)
    outputs = torch.tensor(table.to_numpy(copy=True)) @ weights
    sampler = fitted(SAMPLERS[kind](), donors_of(table, outputs=outputs), steps=1500)
    x = sampler.donors.rows[:8]
    s = torch.tensor([[True, False, True, False], [False, False, False, True]] * 4)
    rows, control = sampler.draw(x, s, all_donors(sampler.donors, 8))
    y = rows @ weights
    spread = y.std(1)
    # The copula's normal scores have mean zero by symmetry, the others by standardisation. The donors of several
    # classes are chosen, and the mean of a choice has an error of its own.
    limit = {"network": 0.1, "classes": 5 / 2000**0.5}.get(kind, 1e-6)
    assert (control.mean(1).abs() < limit * spread).all()
    assert ((y - control).std(1) < 0.25 * spread).all()


def test_a_sampler_of_the_users_has_no_control() -> None:
    donors = donors_of(mixed_table(30))
    sampler = fitted(GivenSampler(lambda x, s, generator: x.nan_to_num(1.0)), donors)
    rows, control = sampler.draw(donors.rows[:2], torch.zeros(2, 8, dtype=torch.bool), all_donors(donors, 2))
    assert rows.shape == (2, 30, 8)
    assert control is None


def test_a_row_has_the_gap_of_a_donor_whatever_its_scores_are() -> None:
    rows = torch.tensor([[1.0], [torch.nan], [3.0]], dtype=torch.float64)
    scored = ScoredDonors.of(rows, ColumnScores.fitted(rows, rows[:, 0].nan_to_num(), [False]), seed=0)
    assert scored.expected[1] == scored.spread[1] == 0
    drawn = scored.decoded(torch.zeros(1, 3, 1, dtype=torch.float64), torch.tensor([[0, 1, 2]]))
    assert drawn.isnan().flatten().tolist() == [False, True, False]


def test_the_leading_output_is_the_first_principal_component() -> None:
    base = torch.linspace(-1, 1, 11, dtype=torch.float64)
    outputs = torch.stack([5 + 3 * base, 0.1 * base.square()], dim=1)
    found = leading_output(outputs)
    assert abs(float(torch.corrcoef(torch.stack([found, base]))[0, 1])) > 0.999
    torch.testing.assert_close(leading_output(outputs[:, :1]), 3 * base)


def test_donors_are_ordered_by_their_output() -> None:
    donors = donors_of(mixed_table(30))
    ordered = Donors.in_order(donors.rows, donors.outputs, donors.schema, donors.players)
    assert len(ordered) == 30
    assert bool((ordered.outputs[:, 0].diff() >= 0).all())
    assert torch.equal(ordered.rows[:, 0], ordered.outputs[:, 0])


def test_a_given_sampler_is_restored_with_its_function() -> None:
    donors = donors_of(mixed_table(30))
    sampler = GivenSampler(lambda x, s, generator: x.nan_to_num(1.0))
    sampler.restore(donors, {}, sampler.config(), seed=0)
    assert sampler.config() == {"kind": "given"}
    s = torch.zeros(2, 8, dtype=torch.bool)
    assert sampler(donors.rows[:2], s, all_donors(donors, 2)).shape == (2, 30, 8)


def test_scores_of_equal_neighbours_are_those_of_single_rows() -> None:
    donors = donors_of(mixed_table())
    scored = ScoredDonors.of(donors.rows, ColumnScores.fitted(donors.rows, donors.outputs[:, 0], [False] * 8), 0)
    rows = donors.rows[torch.tensor([0, 0, 1, 2, 2, 2, 1, 0])]  # with gaps, which equal each other
    assert same(scored.encoded(rows), scored.scale.encode(rows))
    assert scored.encoded(rows[:1]).shape == (1, 8)
