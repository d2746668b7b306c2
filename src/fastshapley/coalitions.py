"""Coalitions: random draws and enumeration.

A coalition is a boolean vector over players. Every function is a pure function of its arguments and of the
generator that is passed in.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def kernel_sizes(players: int) -> Tensor:
    """Return the Shapley kernel's distribution over coalition sizes.

    Parameters
    ----------
    players : int
        The number of players, at least 2.

    Returns
    -------
    Tensor of shape (players - 1,)
        Entry k - 1 is the probability of size k.

    Raises
    ------
    ValueError
        If there are fewer than 2 players.

    Examples
    --------
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
    """Return the factor alpha = 1 / (2 H), where H is the harmonic number of ``players - 1``.

    For values that sum to grand minus null, the expected loss under the Shapley kernel is a constant plus alpha
    times the squared distance to the exact Shapley values. So a difference of two losses divided by alpha is a
    difference of two squared errors.

    Parameters
    ----------
    players : int
        The number of players, at least 2.

    Returns
    -------
    float
        The factor.

    Raises
    ------
    ValueError
        If there are fewer than 2 players.

    Examples
    --------
    >>> curvature(3)
    0.3333333333333333
    """
    if players < 2:
        raise ValueError(f"players is {players}: the Shapley kernel needs at least 2 players")
    return 1 / (2 * math.fsum(1 / k for k in range(1, players)))


def pair_count(players: int) -> int:
    """Return the number of pairs of a coalition and its complement, without the empty and the full one.

    Examples
    --------
    >>> pair_count(3)
    3
    """
    return (1 << players - 1) - 1


def subsets(sizes: Tensor, players: int, generator: torch.Generator) -> Tensor:
    """Draw one uniformly random coalition of each given size.

    Parameters
    ----------
    sizes : Tensor of integers
        The sizes, of any shape.
    players : int
        The number of players.
    generator : torch.Generator
        Where the randomness comes from.

    Returns
    -------
    Tensor of shape (*sizes.shape, players)
        The coalitions.
    """
    # Each coalition needs a random order of the players, and sorting takes most of the time. NumPy sorts integers
    # fastest, so the random keys are integers whose last bits are the player's number.
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
    """Draw coalitions from the Shapley kernel.

    Parameters
    ----------
    rows, coalitions, players : int
        The number of rows, of coalitions per row, and of players.
    generator : torch.Generator
        Where the randomness comes from.
    paired : bool, default=True
        Whether the second half of a row's coalitions are the complements of the first half, in the same order.

    Returns
    -------
    Tensor of shape (rows, coalitions, players)
        The coalitions.

    Raises
    ------
    ValueError
        If ``paired`` is set and ``coalitions`` is odd.

    Examples
    --------
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
    """Draw the first coalition of each of ``coalitions // 2`` pairs, with all sizes equally likely.

    Weighted by `pair_weights`, they represent the Shapley kernel. The kernel itself draws half of its coalitions
    with nearly all players on one side, and these say little about differences between players.

    Parameters
    ----------
    rows, coalitions, players : int
        The number of rows, of coalitions per row (two for each pair), and of players.
    generator : torch.Generator
        Where the randomness comes from.

    Returns
    -------
    Tensor of shape (rows, coalitions // 2, players)
        The coalitions.
    """
    sizes = torch.randint(1, players, (rows, coalitions // 2), generator=generator, device=generator.device)
    return subsets(sizes, players, generator)


def pair_weights(s: Tensor) -> Tensor:
    """Return the probability of coalitions (..., players) under the Shapley kernel, relative to `sample_pairs`."""
    players = s.shape[-1]
    weights = (players - 1) * kernel_sizes(players).float().to(s.device)
    return weights[s.sum(-1) - 1]


def sample_uniform_sizes(rows: int, coalitions: int, players: int, generator: torch.Generator) -> Tensor:
    """Draw coalitions with a uniform size from 0 to ``players``, shape (rows, coalitions, players)."""
    sizes = torch.randint(players + 1, (rows, coalitions), generator=generator, device=generator.device)
    return subsets(sizes, players, generator)


def sample_all_alike(rows: int, coalitions: int, players: int, generator: torch.Generator) -> Tensor:
    """Draw coalitions that are all equally likely, shape (rows, coalitions, players)."""
    half = torch.rand(rows, coalitions, players, generator=generator, device=generator.device)
    return half < 0.5


def enumerate_coalitions(players: int, start: int = 0, stop: int | None = None) -> Tensor:
    """List the coalitions with numbers ``start`` to ``stop - 1`` of all ``2 ** players``.

    Parameters
    ----------
    players : int
        The number of players.
    start, stop : int
        The range of numbers; by default all coalitions.

    Returns
    -------
    Tensor of shape (stop - start, players)
        Player i is in coalition number c if bit i of c is set.

    Examples
    --------
    >>> enumerate_coalitions(2).int().tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    codes = torch.arange(start, 1 << players if stop is None else stop)
    return (codes[:, None] >> torch.arange(players)) & 1 == 1
