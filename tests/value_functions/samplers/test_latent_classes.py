"""Tests of latent classes: levels of columns, and classes whose probabilities are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sampler_problems import donors_of, mixed_table
from torch import Tensor

from fastshapley.value_functions.column_scores import ColumnScores
from fastshapley.value_functions.samplers.latent_classes import BINS, ColumnLevels, LatentClasses

SHARES = torch.tensor([0.5, 0.3, 0.2])
# The probability of the first of two levels, for three classes and eight columns.
FIRST = torch.tensor([[0.95] * 8, [0.05] * 4 + [0.9] * 4, [0.9, 0.1] * 2 + [0.05] * 4])


def rows_of_classes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indicators of rows, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    member = torch.multinomial(SHARES, count, replacement=True, generator=generator)
    first = torch.rand(count, 8, generator=generator) < FIRST[member]
    return torch.stack([first, ~first], dim=2).flatten(1).float(), member


def levels_of(X: pd.DataFrame) -> tuple[ColumnLevels, Tensor]:
    donors = donors_of(X)
    return ColumnLevels(ColumnScores.fitted(donors.rows, donors.outputs[:, 0], donors.schema.discrete)), donors.rows


def test_classes_are_found_with_their_shares_and_probabilities() -> None:
    """A probability has a standard error of at most 0.5 / sqrt(members); five are allowed, and doubtful members."""
    z, member = rows_of_classes(4000, 0)
    found = LatentClasses.fitted(z[:3000], z[3000:], seed=0)
    assert len(found) >= 3  # More classes that share the members of one describe rows as well.
    three = LatentClasses.with_components(z[:3000], 3, seed=0)
    first = three.probabilities[:, ::2]
    order = torch.cdist(FIRST, first).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    error = 5 * 0.5 / (3000 * SHARES).sqrt()
    assert bool(((first[order] - FIRST).abs() < error[:, None] + 0.02).all())
    assert bool(((three.shares[order] - SHARES).abs() < 5 * 0.5 / 3000**0.5 + 0.02).all())
    agree = (three.joint_log_density(z).argmax(1) == order[member]).float().mean()
    assert float(agree) > 0.9


def test_the_log_probabilities_of_all_rows_sum_to_one() -> None:
    classes = LatentClasses(SHARES, torch.stack([FIRST, 1 - FIRST], dim=2).flatten(1))
    bits = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    every = torch.nn.functional.one_hot(bits, 2).flatten(1).float()
    assert float(classes.log_density(every).exp().sum()) == pytest.approx(1, rel=1e-5)


def test_independent_columns_need_no_second_class() -> None:
    """A second class makes new rows a little less likely, because it is fitted to chance."""
    generator = torch.Generator().manual_seed(1)
    first = torch.rand(2000, 8, generator=generator) < 0.4
    z = torch.stack([first, ~first], dim=2).flatten(1).float()
    found = LatentClasses.fitted(z[:1000], z[1000:], seed=0)
    one = LatentClasses.with_components(z[:1000], 1, seed=0)
    assert float((found.log_density(z[1000:]) - one.log_density(z[1000:])).mean()) < 0.02


def test_levels_are_values_bins_and_gaps() -> None:
    levels, x = levels_of(mixed_table(400))
    found, valid = levels.of(x)
    assert bool(valid.all())
    names = list(mixed_table(4).columns)
    assert [name for name, few in zip(names, levels.few.tolist(), strict=True) if few] == [
        "few",
        "flag",
        "city",
        "constant",
        "nothing",
    ]
    for j, name in enumerate(names):
        counts = found[:, j].unique(return_counts=True)[1]
        if name == "number":  # Each bin has the same share of the rows.
            assert counts.tolist() == [400 // BINS] * BINS
        same = (x[:, j] == x[:1, j]) | (x[:, j].isnan() & x[:1, j].isnan())
        if levels.few[j] or bool(x[0, j].isnan()):
            assert torch.equal(found[:, j] == found[0, j], same)
    assert torch.equal(levels.indicators(x).sum(1), torch.full((400,), float(x.shape[1])))
    starts = found.amin(0)
    assert bool((starts.diff() > 0).all())
    assert int(found.max()) < levels.width


def test_unknown_categories_say_nothing() -> None:
    X = pd.DataFrame({"a": list("xyxy") * 10, "b": list("ppqq") * 10, "n": np.arange(40.0)})
    donors = donors_of(X)
    rows = donors.rows[:20]
    rows[:, 0] = 0.0
    levels = ColumnLevels(ColumnScores.fitted(rows, donors.outputs[:20, 0], donors.schema.discrete))
    other = torch.tensor([[1.0, 0.0, 5.0]], dtype=torch.float64)
    assert levels.of(other)[1].tolist() == [[False, True, True]]
    assert float(levels.indicators(other).sum()) == 2
