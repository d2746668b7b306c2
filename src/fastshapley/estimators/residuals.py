"""How far given values are from the Shapley values, found from what they leave unexplained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastshapley.coalitions import curvature, pair_count
from fastshapley.estimators.kernel import draw_pairs
from fastshapley.value_functions.protocol import ValueFunction

_EVALUATIONS = 1 << 16  # coalitions times rows in one part
_LEAST = 0.01  # of what pairs leave unexplained, that is noise
_ENOUGH = 4  # pairs of a size, to tell what they have in common


@dataclass(frozen=True)
class Residuals:
    """What pairs of coalitions say of values of some rows.

    error: the exact values less the given ones, (n, players, outputs), right on average.
    variance: of that estimate, of the same shape; zero where all pairs were evaluated.
    noise: the variance of what exact values leave unexplained of a pair, (n, outputs), within its size and by the
        Shapley kernel.
    profile: that by size, from one player to half of them, as a share of it, (players // 2,).
    """

    error: Tensor
    variance: Tensor
    noise: Tensor
    profile: Tensor

    def squared_error(self) -> Tensor:
        """The squared distance of each row's values to the exact ones, (n,), right on average, if not positive."""
        return (self.error.square() - self.variance).sum((1, 2))


def residuals(
    value_function: ValueFunction,
    x: Tensor,
    phi: Tensor,
    pairs: int,
    generator: torch.Generator,
    *,
    noisy: bool = False,
) -> Residuals:
    """Hold the values ``phi`` (n, players, outputs), which sum to grand minus null, against so many pairs a row.

    With z = 2s - 1, and u the difference of the game's values at s and at its complement, the mean over the Shapley
    kernel of (z - mean(z)) (u - z . phi) is four times the `curvature` times what phi is short of the exact values.
    No truth is needed, and no matrix is solved. Pairs are drawn by leverage, at least two of each size, within
    which the variance is found. Of a game that is ``noisy``, which gives another value each time, even all pairs
    leave some variance.
    """
    players = value_function.players
    pairs = min(max(pairs, players), pair_count(players))
    slope = 4 * curvature(players)
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, _EVALUATIONS // (2 * pairs))):
        drawn = draw_pairs(value_function, x[rows], pairs, generator, rows)
        z = drawn.z.double()
        rest = drawn.u - z @ phi[rows]
        z = z - z.mean(2, keepdim=True)
        error, variance = torch.zeros_like(phi[rows]), torch.zeros_like(phi[rows])
        by_size, linear = [], []
        for size, (draws, share, population) in enumerate(drawn.strata, start=1):
            count = len(draws)
            a, r = z[:, draws].transpose(1, 2), rest[:, draws]
            if count >= _ENOUGH and 2 * size != players:
                # what is the same for all pairs of a size tells nothing of its players: this makes a covariance
                r = (r - r.mean(1, keepdim=True)) * (1 - 1 / population) * count / (count - 1)
            left = 1 / count - (0 if noisy else 1 / population)
            mean = a @ r / count
            spread = (a.square() @ r.square() / count - mean.square()).clamp(min=0) * count / max(1, count - 1)
            error += share * mean / slope
            variance += (share / slope) ** 2 * left * spread
            by_size.append(share * spread.mean(1))
            inner = (players - 2) / (players - 1) ** 2  # of the mean's square, which the spread is without
            linear.append(share * (4 * size * (players - size)) ** 2 / players**3 * inner)
        # what the error of phi itself adds to them is no noise
        squared = (error.square() - variance).sum(1).clamp(min=0)
        added = torch.tensor(linear).to(squared)[:, None] * squared[:, None]
        spreads = torch.stack(by_size, dim=1)
        parts.append((error, variance, (spreads - added).maximum(_LEAST * spreads)))
    error, variance, unexplained = (torch.cat(column) for column in zip(*parts, strict=True))
    noise, shares = unexplained.sum(1), torch.tensor([share for _, share, _ in drawn.strata]).to(unexplained)
    profile = unexplained.mean((0, 2)) / shares / noise.mean().clamp(min=1e-300)
    return Residuals(error, variance, noise, profile)
