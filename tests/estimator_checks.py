"""What the tests of every estimator use."""

from __future__ import annotations

import torch
from games import KnownGame
from torch import Tensor

from fastshapley.estimators import Estimate
from fastshapley.value_functions import ValueFunction


class Counted:
    """Counts the coalitions that each row is evaluated on; the first column of x numbers the rows.

    Rows in ``broken`` give NaN after so many of them.
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
    return torch.cat([torch.arange(len(x))[:, None], x], dim=1)


def errors(game: KnownGame, x: Tensor, estimate: Estimate) -> Tensor:
    return torch.from_numpy(estimate.values) - game.shapley(x)


def assert_within_errors(game: KnownGame, x: Tensor, estimate: Estimate, most: float = 4.5) -> None:
    """4.5 standard errors: one in 150,000; some games have errors of rounding only."""
    assert (errors(game, x, estimate).abs().numpy() <= most * estimate.stderr + 1e-8).all()
