"""The distance of given values to the Shapley values, estimated from what they leave unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastshapley.coalitions import curvature, pair_count
from fastshapley.estimators import memory
from fastshapley.estimators.kernel import Pairs, draw_pairs
from fastshapley.value_functions.protocol import ValueFunction

_SMALLEST_NOISE = 0.01  # The smallest share of the unexplained variance that is taken for noise.
_CENTRED_FROM = 4  # The number of pairs of one size from which their common part is estimated and removed.


@dataclass(frozen=True)
class Residuals:
    """What pairs of coalitions say about the values of some rows.

    Attributes
    ----------
    error : Tensor of shape (n, players, outputs)
        An unbiased estimate of the exact values minus the given ones.
    variance : Tensor of shape (n, players, outputs)
        The variance of that estimate; zero where all pairs were evaluated.
    noise : Tensor of shape (n, outputs)
        The variance of what exact values leave unexplained of a pair, within its size and by the Shapley kernel.
    profile : Tensor of shape (players // 2,)
        The same variance by size, from one player to half of them, relative to ``noise``.
    """

    error: Tensor
    variance: Tensor
    noise: Tensor
    profile: Tensor

    def squared_error(self) -> Tensor:
        """Return an unbiased estimate of each row's squared distance to the exact values, (n,).

        It may be negative.
        """
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
    """Compare values with pairs of coalitions. No exact values are needed, and no matrix is solved.

    With z = 2s - 1, and u the difference of the game's values at s and at its complement, the mean over the Shapley
    kernel of (z - mean(z)) (u - z . phi) is four times the `curvature` times the exact values minus phi. Pairs are
    drawn by leverage, at least two of each size, and their variance is estimated within each size.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    phi : Tensor of shape (n, players, outputs)
        The values to assess. They must sum to grand minus null.
    pairs : int
        The number of pairs per row; at least one per player and at most all pairs are evaluated.
    generator : torch.Generator
        Where the randomness comes from.
    noisy : bool, default=False
        Whether the game returns another value at each call. Then even all pairs leave some variance, and more pairs
        than there are mean that pairs are evaluated again.

    Returns
    -------
    Residuals
        The estimated errors and their variances.
    """
    players = value_function.players
    pairs, existing = max(pairs, players), pair_count(players)
    rounds = -(-pairs // existing) if noisy else 1
    pairs = min(pairs // rounds, existing)
    parts = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, memory.EVALUATIONS_PER_CALL // (2 * pairs))):
        drawn = [draw_pairs(value_function, x[rows], pairs, generator, rows) for _ in range(rounds)]
        parts.append(_mean([_assess(each, phi[rows], noisy=noisy) for each in drawn]))
    error, variance, unexplained = (torch.cat(column) for column in zip(*parts, strict=True))
    noise, shares = unexplained.sum(1), torch.tensor([share for _, share, _ in drawn[0].strata]).to(unexplained)
    profile = unexplained.mean((0, 2)) / shares / noise.mean().clamp(min=1e-300)
    return Residuals(error, variance, noise, profile)


def _mean(rounds: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of independent rounds. Its variance is that between rounds, the same for all players."""
    if len(rounds) == 1:
        return rounds[0]
    errors, _, unexplained = (torch.stack(column) for column in zip(*rounds, strict=True))
    between = errors.var(0).mean(1, keepdim=True) / len(rounds)
    return errors.mean(0), between.expand(errors.shape[1:]), unexplained.mean(0)


def _assess(drawn: Pairs, phi: Tensor, *, noisy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the errors of ``phi``, their variances, and the unexplained variance by size, (n, sizes, outputs)."""
    players = phi.shape[1]
    slope = 4 * curvature(players)
    z = drawn.z.double()
    rest = drawn.u - z @ phi
    z = z - z.mean(2, keepdim=True)
    error, variance = torch.zeros_like(phi), torch.zeros_like(phi)
    by_size, linear = [], []
    for size, (draws, share, population) in enumerate(drawn.strata, start=1):
        count = len(draws)
        a, r = z[:, draws].transpose(1, 2), rest[:, draws]
        if count >= _CENTRED_FROM and 2 * size != players:
            # What all pairs of a size have in common says nothing about single players. Removing it turns the mean
            # into a covariance.
            r = (r - r.mean(1, keepdim=True)) * (1 - 1 / population) * count / (count - 1)
        unseen = 1 / count - (0 if noisy else 1 / population)
        mean = a @ r / count
        deviations = (a.square() @ r.square() / count - mean.square()).clamp(min=0) * count / max(1, count - 1)
        error += share * mean / slope
        variance += (share / slope) ** 2 * unseen * deviations
        by_size.append(share * deviations.mean(1))
        inner = (players - 2) / (players - 1) ** 2  # The part of the squared mean that deviations do not contain.
        linear.append(share * (4 * size * (players - size)) ** 2 / players**3 * inner)
    # The error of phi itself adds to the unexplained variance, and is not noise.
    squared = (error.square() - variance).sum(1).clamp(min=0)
    added = torch.tensor(linear).to(squared)[:, None] * squared[:, None]
    unexplained = torch.stack(by_size, dim=1)
    return error, variance, (unexplained - added).maximum(_SMALLEST_NOISE * unexplained)
