"""Helpers that the tests of all estimators share."""

from __future__ import annotations

import torch
from games import KnownGame
from torch import Tensor

from fastshapley.estimators import Estimate
from fastshapley.value_functions import ValueFunction


class Counted:
    """A game that counts the coalitions evaluated for each row. The first column of x numbers the rows.

    Parameters
    ----------
    game : ValueFunction
        The game to count for.
    rows : int
        The number of rows.
    broken : dict or None
        For some row numbers, the number of coalitions after which the game returns NaN.
    """

    def __init__(self, game: ValueFunction, rows: int, broken: dict[int, int] | None = None) -> None:
        self.game, self.players, self.outputs = game, game.players, game.outputs
        self.count = torch.zeros(rows, dtype=torch.long)
        self.most = torch.tensor([(broken or {}).get(row, 1 << 40) for row in range(rows)])

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        rows = x[:, 0].long()
        self.count[rows] += s.shape[1]
        broken = self.count[rows] > self.most[rows]
        return self.game(x[:, 1:], s).masked_fill(broken[:, None, None], torch.nan)


def numbered(x: Tensor) -> Tensor:
    """Return rows with their numbers as the first column, for `Counted`."""
    return torch.cat([torch.arange(len(x))[:, None], x], dim=1)


def errors(game: KnownGame, x: Tensor, estimate: Estimate) -> Tensor:
    """Return the estimated values minus the exact ones."""
    return torch.from_numpy(estimate.values) - game.shapley(x)


def assert_within_errors(game: KnownGame, x: Tensor, estimate: Estimate, most: float = 4.5) -> None:
    """Check that errors are at most ``most`` standard errors, plus rounding.

    A normal error exceeds 4.5 standard errors once in 150,000 times.
    """
    assert (errors(game, x, estimate).abs().numpy() <= most * estimate.stderr + 1e-8).all()
