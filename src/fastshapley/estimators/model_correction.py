"""From a surrogate's values to the model's: what the surrogate misses is a game too, of few calls of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fastshapley.coalitions import pair_count
from fastshapley.errors import InputError
from fastshapley.estimators.residuals import residuals
from fastshapley.objective import normalize
from fastshapley.value_functions.surrogate import Surrogate

_NEAR = 32  # of so many background rows one is near enough
_ENTRIES = 1 << 24  # distances at once
_TIE = 1e-6


class Shortfall:
    """v(x, s): how much the model gives beyond the surrogate's grand value, where only s is known of a row.

    Both are called with the row's players in s, and the others of a background row: one of those that are nearest
    in the columns of s, so that the two are likely to go together.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        surrogate: Surrogate,
        background: Tensor,
        discrete: Sequence[bool],
        generator: torch.Generator,
    ) -> None:
        """``model`` gives outputs (n, outputs) behind the link; ``discrete`` columns hold no numbers."""
        self.model, self.surrogate, self.background, self.generator = model, surrogate, background, generator
        self.players, self.outputs = surrogate.players, surrogate.outputs
        self.near = max(1, len(background) // _NEAR)
        self.discrete = torch.tensor(discrete, device=background.device)
        centred = torch.nan_to_num(background - background.nanmean(0))
        spread = centred.square().mean(0).sqrt()
        self.spread = torch.where(self.discrete | (spread <= _TIE), 1.0, spread)
        self.null = self.grand(background).mean(0)

    def grand(self, x: Tensor) -> Tensor:
        return self.model(x) - self.surrogate.grand(x).double()

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        rows = max(1, _ENTRIES // (len(self.background) * max(s.shape[1], x.shape[1])))
        parts = zip(x.split(rows), s.split(rows), strict=True)
        return torch.cat([self._evaluate(a, b) for a, b in parts])

    def _evaluate(self, x: Tensor, s: Tensor) -> Tensor:
        shown = self.surrogate.partition_.mask(s)  # (n, m, columns)
        distance = shown.to(x) @ self._distances(x).transpose(1, 2)
        distance += _TIE * torch.rand(distance.shape, generator=self.generator, device=x.device)
        nearest = distance.topk(self.near, dim=2, largest=False).indices
        pick = torch.randint(self.near, (*s.shape[:2], 1), generator=self.generator, device=x.device)
        chosen = self.background[nearest.gather(2, pick)[..., 0]]
        mixed = torch.where(shown, x[:, None], chosen)
        return self.grand(mixed.flatten(0, 1)).unflatten(0, s.shape[:2])

    def _distances(self, x: Tensor) -> Tensor:
        """Of each row to each background row in each column, (n, background, columns): squared, in spreads."""
        gap = x[:, None] - self.background
        other = torch.where(self.discrete, (gap != 0).to(x), (gap / self.spread).square())
        missing = x.isnan()[:, None] ^ self.background.isnan()
        return torch.where(gap.isnan(), missing.to(x), other)


def corrected(game: Shortfall, x: Tensor, values: Tensor, total: Tensor, calls: int) -> tuple[Tensor, Tensor]:
    """A surrogate's values with what they miss, which sum to ``total``, and the variance that this adds to each.

    The shortfall is first shared evenly; what its own values are beyond that is found from ``calls`` calls of the
    model a row, and is made smaller by the part of it that is noise.
    """
    players = game.players
    if calls < 2 * players:
        raise InputError(f"calls is {calls}: of {players} players, correcting takes at least {2 * players} a row")
    gap = game.grand(x) - game.null
    even = (gap / players)[:, None].expand(values.shape)
    if players == 1:
        return normalize(values, total), torch.zeros_like(values)
    pairs, most = calls // 2, pair_count(players)
    rounds = -(-pairs // most)  # of few players, all pairs again, with other background rows
    found = [residuals(game, x, even, pairs // rounds, game.generator, noisy=True) for _ in range(rounds)]
    error = torch.stack([each.error for each in found]).mean(0)
    variance = torch.stack([each.variance for each in found]).mean(0) / rounds
    squares, noise = (part.sum((0, 1)) for part in (error.square(), variance))
    share = (1 - noise / squares.clamp(min=1e-300)).clamp(min=0)
    return normalize(values + even + share * error, total), share * variance
