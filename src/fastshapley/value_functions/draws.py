"""How many rows an evaluation of the conditional game draws, and which donors they come from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastshapley.data.players import Partition

MOST_COALITIONS = 1 << 62  # More coalitions make no difference, and floats cannot hold all numbers of them.
MOST_DRAWS = 128  # draws of one evaluation
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # Its multiples are spread evenly, modulo 1.


def draws_by_size(players: int, coalitions: int, draws: int) -> tuple[int, ...]:
    """Return the draws of an evaluation for each size of coalition, from 0 to all players.

    Each size has the same weight in a Shapley value. Where it has few coalitions, each of them matters more, and
    gets more draws.

    Parameters
    ----------
    players : int
        The number of players.
    coalitions : int
        The number of coalitions that are evaluated for a row.
    draws : int
        The smallest number of draws.

    Examples
    --------
    >>> draws_by_size(4, 16, 2)
    (0, 3, 2, 3, 1)
    """
    each = coalitions / max(1, players - 1)
    inner = [
        min(MOST_DRAWS, max(draws, math.ceil(draws * each / min(MOST_COALITIONS, math.comb(players, size)))))
        for size in range(1, players)
    ]
    return (0, *inner, 1) if players > 1 else (0, 1)


class DonorNumbers:
    """Which donors an evaluation draws from: evenly spaced ones, from a start between 0 and 1.

    Parameters
    ----------
    donors : int
        The number of donors.
    players : Partition
        The players.
    like : Tensor of shape (n, columns)
        Some encoded rows.
    seed : int
        The seed of the starts that follow from what is known.
    """

    def __init__(self, donors: int, players: Partition, like: Tensor, seed: int) -> None:
        self.donors, self.players = donors, players
        generator = torch.Generator().manual_seed(seed)
        odd = torch.randint(-(1 << 62), 1 << 62, (2, like.shape[1]), generator=generator) * 2 + 1
        self.multipliers = odd.to(like.device)  # A row is hashed with them.

    def spaced(self, start: Tensor, draws: int) -> Tensor:
        """Return the numbers of evenly spaced donors, (n, draws), for starts (n,)."""
        steps = torch.arange(draws, device=start.device, dtype=torch.float64)
        return ((start[:, None] + steps) / draws * self.donors).long().clamp(max=self.donors - 1)

    def random_starts(self, n: int, m: int, generator: torch.Generator) -> Tensor:
        """Return random starts for m coalitions of n rows, (n * m,).

        The coalitions of a row take donors that are spread evenly, whose noise partly cancels in the row's values.
        """
        device = generator.device
        first = torch.rand(n, 1, generator=generator, device=device, dtype=torch.float64)
        return ((first + GOLDEN_RATIO * torch.arange(m, device=device)) % 1).flatten()

    def known_starts(self, x: Tensor, s: Tensor) -> Tensor:
        """Return starts (n,) that follow from what is known of rows (n, columns) in coalitions (n, players)."""
        known = self.players.mask(s)
        bits = x.contiguous().view(torch.int64)
        mixed = ((bits ^ (bits >> 29)) * self.multipliers[0] + self.multipliers[1]) * known
        total = mixed.sum(1)
        total = (total ^ (total >> 31)) * self.multipliers[0, 0]
        return ((total >> 11) & ((1 << 52) - 1)).double() / (1 << 52)
