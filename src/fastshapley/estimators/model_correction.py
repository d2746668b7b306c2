"""Correction of a surrogate's values towards those of the model.

The difference between the model and the surrogate is a game of its own. Its Shapley values are estimated from a few
calls of the model per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.estimators import memory
from fastshapley.estimators.residuals import residuals
from fastshapley.objective import normalize
from fastshapley.value_functions.surrogate import Surrogate

NEIGHBOUR_SHARE = 32  # One background row in this many counts as near.
_TIE = 1e-6  # Random distances below this break ties, and columns that vary less are constant.


class SurrogateErrorGame:
    """The game v(x, s) of the model's output minus the surrogate's grand value, where only s is known of a row.

    Both are called with the row's players in s and with the other players of a background row. That row is one of
    the nearest in the columns of s, so that the two parts are likely to occur together.

    Parameters
    ----------
    model : callable
        Returns the model's outputs after the link, (n, outputs), for encoded rows.
    surrogate : Surrogate
        The surrogate of the model.
    background : Tensor of shape (m, columns)
        Encoded rows from which the unknown players are taken.
    discrete : sequence of bool
        Which columns hold categories.
    generator : torch.Generator
        Where the randomness comes from.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        surrogate: Surrogate,
        background: Tensor,
        discrete: Sequence[bool],
        generator: torch.Generator,
    ) -> None:
        self.model, self.surrogate, self.background, self.generator = model, surrogate, background, generator
        self.players, self.outputs = surrogate.players, surrogate.outputs
        self.neighbours = max(1, len(background) // NEIGHBOUR_SHARE)
        self.discrete = torch.tensor(discrete, device=background.device)
        centred = torch.nan_to_num(background - background.nanmean(0))
        deviation = centred.square().mean(0).sqrt()
        self.deviation = torch.where(self.discrete | (deviation <= _TIE), 1.0, deviation)
        self.null = self.grand(background).mean(0)

    def grand(self, x: Tensor) -> Tensor:
        """Return the model's output minus the surrogate's for whole rows, (n, outputs)."""
        return self.model(x) - self.surrogate.grand(x).double()

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs), each from one background row."""
        rows = max(1, memory.ENTRIES_PER_BLOCK // (len(self.background) * max(s.shape[1], x.shape[1])))
        parts = zip(x.split(rows), s.split(rows), strict=True)
        return torch.cat([self._evaluate(a, b) for a, b in parts])

    def _evaluate(self, x: Tensor, s: Tensor) -> Tensor:
        known = self.surrogate.partition_.mask(s)  # (n, m, columns)
        distance = known.to(x) @ self._distances(x).transpose(1, 2)
        distance += _TIE * torch.rand(distance.shape, generator=self.generator, device=x.device)
        nearest = distance.topk(self.neighbours, dim=2, largest=False).indices
        pick = torch.randint(self.neighbours, (*s.shape[:2], 1), generator=self.generator, device=x.device)
        chosen = self.background[nearest.gather(2, pick)[..., 0]]
        mixed = torch.where(known, x[:, None], chosen)
        return self.grand(mixed.flatten(0, 1)).unflatten(0, s.shape[:2])

    def _distances(self, x: Tensor) -> Tensor:
        """Return the distance of each row to each background row by column, (n, background, columns).

        It is the squared difference in standard deviations; for categories and missing values, 1 if they differ.
        """
        difference = x[:, None] - self.background
        distance = torch.where(self.discrete, (difference != 0).to(x), (difference / self.deviation).square())
        one_missing = x.isnan()[:, None] ^ self.background.isnan()
        return torch.where(difference.isnan(), one_missing.to(x), distance)


def correct_to_model(
    game: SurrogateErrorGame, x: Tensor, values: Tensor, total: Tensor, calls: int
) -> tuple[Tensor, Tensor]:
    """Add to a surrogate's values what they miss of the model's.

    The difference is first shared evenly. The deviation of its own Shapley values from that is estimated from
    ``calls`` calls of the model per row, and shrunk by the share of it that is noise.

    Parameters
    ----------
    game : SurrogateErrorGame
        The difference between the model and the surrogate.
    x : Tensor of shape (n, columns)
        The encoded rows.
    values : Tensor of shape (n, players, outputs)
        The values of the surrogate's game.
    total : Tensor of shape (n, outputs)
        What the corrected values sum to.
    calls : int
        The number of model calls per row, at least two per player.

    Returns
    -------
    values : Tensor of shape (n, players, outputs)
        The corrected values.
    variance : Tensor of shape (n, players, outputs)
        The variance that the correction adds to each value.

    Raises
    ------
    InputError
        If there are fewer than two calls per player.
    """
    players = game.players
    if calls < 2 * players:
        raise InputError(f"calls is {calls}: correcting {players} players takes at least {2 * players} per row")
    difference = game.grand(x) - game.null
    even = (difference / players)[:, None].expand(values.shape)
    if players == 1:
        return normalize(values, total), torch.zeros_like(values)
    found = residuals(game, x, even, calls // 2, game.generator, noisy=True)
    squares, noise = (part.sum((0, 1)) for part in (found.error.square(), found.variance))
    signal = (1 - noise / squares.clamp(min=1e-300)).clamp(min=0)
    return normalize(values + even + signal * found.error, total), signal * found.variance
