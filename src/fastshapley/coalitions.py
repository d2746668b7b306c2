"""Coalitions: drawing them at random and listing them all.

A coalition is a boolean vector over players. Every function here is a pure function of its arguments and
of the generator that is passed in.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def kernel_sizes(players: int) -> Tensor:
    """The Shapley kernel's distribution over sizes: entry k - 1 is the probability of size k, 0 < k < players.

    >>> kernel_sizes(4)
    tensor([0.3636, 0.2727, 0.3636], dtype=torch.float64)
    """
    if players < 2:
        raise ValueError(f"players is {players}: the Shapley kernel needs at least 2 players")
    k = torch.arange(1, players, dtype=torch.float64)
    weight = 1 / (k * (players - k))
    return weight / weight.sum()


@lru_cache(maxsize=256)
def curvature(players: int) -> float:
    """The factor alpha = 1 / (2 H) with H the harmonic number of ``players - 1``.

    For values that sum to grand minus null, the expected loss under the Shapley kernel is a constant plus
    alpha times the squared distance to the exact Shapley values; a difference of two losses divided by
    alpha is a difference of two squared errors.

    >>> curvature(3)
    0.3333333333333333
    """
    if players < 2:
        raise ValueError(f"players is {players}: the Shapley kernel needs at least 2 players")
    return 1 / (2 * math.fsum(1 / k for k in range(1, players)))


def pair_count(players: int) -> int:
    """Return the number of pairs of a coalition and its complement, without the empty and the full one.

    >>> pair_count(3)
    3
    """
    return (1 << players - 1) - 1


def subsets(sizes: Tensor, players: int, generator: torch.Generator) -> Tensor:
    """One uniformly random coalition of each given size.

    ``sizes`` is an integer tensor of any shape; the result has one more axis, of length ``players``.
    """
    # a random order of the players each: sorting is what costs here, and numpy sorts whole numbers fastest, so each
    # player's number is the end of a random one
    bits = (players - 1).bit_length()
    keys = torch.empty(
        sizes.numel(), players, dtype=torch.int32 if bits < 8 else torch.int64, device=generator.device
    ).random_(generator=generator)
    keys.bitwise_right_shift_(bits).bitwise_left_shift_(bits)
    keys += torch.arange(players, dtype=keys.dtype, device=keys.device)
    if keys.device.type == "cpu":
        keys.numpy().sort(1)
    else:
        keys = keys.sort(1).values
    order = keys.bitwise_and_((1 << bits) - 1)
    return (order < sizes.reshape(-1, 1)).reshape(*sizes.shape, players)


def sample_kernel(
    rows: int, coalitions: int, players: int, generator: torch.Generator, *, paired: bool = True
) -> Tensor:
    """Coalitions from the Shapley kernel, boolean (rows, coalitions, players).

    With ``paired`` the second half of the coalitions of a row are the complements of the first half, in
    the same order, and ``coalitions`` must be even.

    >>> sample_kernel(1, 4, 3, torch.Generator().manual_seed(0)).sum(1)
    tensor([[2, 2, 2]])
    """
    if paired and coalitions % 2:
        raise ValueError(f"coalitions is {coalitions}: paired sampling needs an even number")
    draws = coalitions // 2 if paired else coalitions
    weights = kernel_sizes(players).to(generator.device)
    sizes = 1 + torch.multinomial(weights, rows * draws, replacement=True, generator=generator)
    s = subsets(sizes.reshape(rows, draws), players, generator)
    return torch.cat([s, ~s], dim=1) if paired else s


def sample_pairs(rows: int, coalitions: int, players: int, generator: torch.Generator) -> Tensor:
    """The first of each of so many pairs, boolean (rows, coalitions // 2, players), every size as likely.

    By `pair_weights` they stand for the Shapley kernel's. That draws half its coalitions where nearly all players
    are on one side, and they tell little of what sets the players apart.
    """
    sizes = torch.randint(1, players, (rows, coalitions // 2), generator=generator, device=generator.device)
    return subsets(sizes, players, generator)


def pair_weights(s: Tensor) -> Tensor:
    """How likely coalitions (..., players) are under the Shapley kernel, relative to every size being as likely."""
    players = s.shape[-1]
    weights = (players - 1) * kernel_sizes(players).float().to(s.device)
    return weights[s.sum(-1) - 1]


def sample_uniform_sizes(rows: int, coalitions: int, players: int, generator: torch.Generator) -> Tensor:
    """Coalitions whose size is uniform on 0..players, empty and full included: (rows, coalitions, players)."""
    sizes = torch.randint(players + 1, (rows, coalitions), generator=generator, device=generator.device)
    return subsets(sizes, players, generator)


def sample_all_alike(rows: int, coalitions: int, players: int, generator: torch.Generator) -> Tensor:
    """Coalitions all equally likely, most of them of nearly half the players: (rows, coalitions, players)."""
    half = torch.rand(rows, coalitions, players, generator=generator, device=generator.device)
    return half < 0.5


def enumerate_coalitions(players: int, start: int = 0, stop: int | None = None) -> Tensor:
    """Coalitions number ``start`` to ``stop`` of all ``2 ** players``, boolean (stop - start, players).

    Player i is in coalition number c where bit i of c is set.

    >>> enumerate_coalitions(2).int().tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    codes = torch.arange(start, 1 << players if stop is None else stop)
    return (codes[:, None] >> torch.arange(players)) & 1 == 1
