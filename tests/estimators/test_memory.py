"""Tests of the limit on the evaluations of one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from games import Moebius
from torch import Tensor

from fastshapley.estimators import exact, kernel, memory, permutation
from fastshapley.estimators.kernel import leverage_values
from fastshapley.estimators.refinement import Prior, RefinementOptions, refine
from fastshapley.estimators.residuals import residuals
from fastshapley.value_functions import ValueFunction

LIMIT = 600  # A limit above the 254 evaluations of one row, and below those of all rows.
ROWS = 11


class Watched(Moebius):
    """A game that notes how many evaluations each call makes."""

    def __init__(self, game: Moebius) -> None:
        super().__init__(game.members, game.dividends)
        self.sizes: list[int] = []

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        self.sizes.append(s.shape[0] * s.shape[1])
        return super().__call__(x, s)


def all_pairs(game: ValueFunction, x: Tensor) -> None:
    residuals(game, x, torch.zeros(len(x), game.players, game.outputs).double(), 127, torch.Generator())


def refined(game: ValueFunction, x: Tensor) -> None:
    ones = torch.ones(len(x), game.players, game.outputs, dtype=torch.float64)
    prior = Prior(ones, ones, ones[:, 0], ones[0, : game.players // 2, 0])
    refine(game, x, prior, RefinementOptions(budget=100, random_state=0))


@pytest.mark.parametrize(
    "estimate",
    [
        exact,
        partial(kernel, budget=256, sampling="leverage", random_state=0),
        partial(kernel, budget=256, paired=False, random_state=0),
        partial(permutation, budget=256, random_state=0),
        lambda game, x: leverage_values(game, x, 127, torch.Generator()),
        all_pairs,
        refined,
    ],
    ids=["exact", "leverage", "unpaired", "permutation", "bare", "residuals", "refinement"],
)
def test_no_call_makes_more_evaluations_than_the_limit(
    estimate: Callable[[ValueFunction, Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    game = Watched(Moebius.random(8, outputs=2))
    x = game.rows(ROWS)
    estimate(game, x)
    assert max(game.sizes) > LIMIT
    game.sizes.clear()
    monkeypatch.setattr(memory, "EVALUATIONS_PER_CALL", LIMIT)
    estimate(game, x)
    assert max(game.sizes) <= LIMIT
