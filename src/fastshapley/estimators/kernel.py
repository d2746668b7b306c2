"""KernelSHAP: Shapley values by least squares over sampled coalitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fastshapley.coalitions import curvature, kernel_sizes, pair_count, sample_kernel, subsets
from fastshapley.errors import InputError
from fastshapley.estimators import memory
from fastshapley.estimators.estimate import Estimate
from fastshapley.estimators.regression import Stratum, draw_weights, solve_pairs, solve_with_errors
from fastshapley.estimators.sampling import Block, SamplingMethod, SamplingOptions, estimate_by_sampling
from fastshapley.value_functions.base_game import shared_coalitions
from fastshapley.value_functions.protocol import ValueFunction, evaluate, total_values


def kernel(
    value_function: ValueFunction,
    x: Tensor,
    *,
    budget: int | None = None,
    tol: float | None = None,
    paired: bool = True,
    sampling: Literal["kernel", "leverage"] = "kernel",
    history: bool | Sequence[int] = False,
    random_state: int | None = None,
    progress: bool = False,
) -> Estimate:
    """Estimate the Shapley values of each row of ``x`` by weighted least squares over sampled coalitions.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    budget : int or None, default=None
        The largest number of evaluations per row, null and grand included. By default there are 64 per player.
    tol : float or None, default=None
        A row stops as soon as its largest standard error is at most ``tol`` times the range of its values.
    paired : bool, default=True
        Whether each coalition is evaluated together with its complement.
    sampling : {"kernel", "leverage"}, default="kernel"
        ``"kernel"`` draws coalitions from the Shapley kernel. ``"leverage"`` draws equally many pairs of each size,
        none of them twice where a size is nearly exhausted, and weights them; it needs ``paired=True``. With all
        coalitions in the budget it is exact.
    history : bool or sequence of int, default=False
        Whether to keep the values at intermediate budgets, or the budgets at which to keep them.
    random_state : int or None, default=None
        The seed of the coalitions.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    Estimate
        Values, standard errors, evaluations and convergence of each row.

    Raises
    ------
    InputError
        If an argument is out of range, or the budget is too small for the number of players.
    """
    if sampling not in ("kernel", "leverage"):
        raise InputError(f"sampling is {sampling!r}: use 'kernel' or 'leverage'")
    if sampling == "leverage" and not paired:
        raise InputError("sampling='leverage' draws pairs: use it with paired=True")
    method = _method(value_function.players, paired=paired, leverage=sampling == "leverage")
    options = SamplingOptions(budget, tol, history, random_state, progress)
    return estimate_by_sampling(method, value_function, x, options)


def _method(players: int, *, paired: bool, leverage: bool) -> SamplingMethod:
    """Return what the sampling driver needs to know of a variant of the estimator."""
    name = f"the {'paired ' if paired else ''}kernel estimator"
    if leverage:
        existing = pair_count(players)
        return SamplingMethod(
            name,
            unit_cost=2,
            fewest=min(2 * players, existing),
            start=lambda block, generator, units: _Regression(
                block, _Leverage(players, units, generator), paired=True
            ),
            most=existing,
        )
    return SamplingMethod(
        name,
        unit_cost=2 if paired else 1,
        fewest=2 * players if paired else 4 * players,
        start=lambda block, generator, units: _Regression(block, _Kernel(players, generator), paired=paired),
    )


@dataclass(frozen=True)
class Pairs:
    """Evaluated pairs of a coalition s and its complement, equally many for each row.

    Attributes
    ----------
    z : Tensor of shape (n, pairs, players)
        2s - 1.
    u : Tensor of shape (n, pairs, outputs)
        v(s) - v(1 - s).
    weight : Tensor of shape (pairs,)
        The weight of each pair; their mean is one.
    strata : list of Stratum
        The strata within which pairs were drawn uniformly.
    """

    z: Tensor
    u: Tensor
    weight: Tensor
    strata: list[Stratum]


def draw_pairs(
    value_function: ValueFunction, x: Tensor, pairs: int, generator: torch.Generator, numbers: Tensor | None = None
) -> Pairs:
    """Draw and evaluate pairs for each row.

    They are drawn by leverage; from the Shapley kernel if there are fewer pairs than sizes. Where a game evaluates
    the same coalitions of several rows faster, neighbouring rows share theirs.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    pairs : int
        The number of pairs per row.
    generator : torch.Generator
        Where the randomness comes from.
    numbers : Tensor of shape (n,) or None
        The numbers of the rows in the user's input, for error messages.

    Returns
    -------
    Pairs
        The pairs and the game's differences.
    """
    players = value_function.players
    sizes = players // 2
    design = _Leverage(players, pairs, generator) if pairs >= sizes else _Kernel(players, generator)
    shared = shared_coalitions(value_function)
    groups = torch.arange(-(-len(x) // shared), device=x.device)
    s = design.draw(groups, pairs).repeat_interleave(shared, dim=0)[: len(x)]
    u = _differences(value_function, x, s, numbers)
    strata = design.strata(x.device)
    return Pairs(2 * s.to(torch.int8) - 1, u, draw_weights(strata, pairs, x.device), strata)


def sampling_variance(players: int, pairs: int, profile: Sequence[float]) -> float:
    """Return the variance of a value estimated from the pairs of `draw_pairs`, for a residual variance of one.

    Parameters
    ----------
    players : int
        The number of players.
    pairs : int
        The number of pairs per row.
    profile : sequence of float
        The residual variance of pairs by size, from one player to half of them, relative to its mean.

    Returns
    -------
    float
        The variance; it is zero for all pairs.
    """
    sizes = _sizes(players)
    if pairs < len(sizes):
        total = sum(size.share * there for size, there in zip(sizes, profile, strict=True)) / pairs
    else:
        total = sum(
            size.share**2 * there * (1 / count - 1 / size.population)
            for size, count, there in zip(sizes, _plan(sizes, pairs), profile, strict=True)
        )
    return total / (4 * curvature(players)) ** 2


def leverage_values(
    value_function: ValueFunction, x: Tensor, pairs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Estimate values by leverage sampling, without standard errors. With all pairs the values are exact.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    pairs : int
        The number of pairs per row; at most all pairs are evaluated.
    generator : torch.Generator
        Where the randomness comes from.

    Returns
    -------
    values : Tensor of shape (n, players, outputs)
        The values.
    totals : Tensor of shape (n, outputs)
        What they sum to, grand minus null.
    """
    pairs = min(pairs, pair_count(value_function.players))
    values, totals = [], []
    for part in x.split(max(1, memory.EVALUATIONS_PER_CALL // (2 * pairs))):
        total = total_values(value_function, part)
        drawn = draw_pairs(value_function, part, pairs, generator)
        values.append(solve_pairs(drawn.z, drawn.u, total, drawn.weight))
        totals.append(total)
    return torch.cat(values), torch.cat(totals)


def _differences(value_function: ValueFunction, x: Tensor, s: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Return v(s) - v(1 - s), (n, pairs, outputs)."""
    v = evaluate(value_function, x, torch.cat([s, ~s], dim=1), numbers)
    return v[:, : s.shape[1]] - v[:, s.shape[1] :]


class _Kernel:
    """Draws independent coalitions from the Shapley kernel. They form one stratum, which is never exhausted."""

    def __init__(self, players: int, generator: torch.Generator) -> None:
        self.players, self.generator, self.count = players, generator, 0

    def draw(self, rows: Tensor, units: int) -> Tensor:
        self.count += units
        return sample_kernel(len(rows), units, self.players, self.generator, paired=False)

    def strata(self, device: torch.device) -> list[Stratum]:
        return [(torch.arange(self.count, device=device), 1.0, math.inf)]


@dataclass
class _Size:
    """The pairs of coalitions of one size and their complements.

    Attributes
    ----------
    size : int
        The number of players in the smaller coalition.
    population : int
        The number of such pairs.
    share : float
        Their share of the Shapley kernel.
    rate : int
        How often the size is drawn, relative to the others: every coalition size is equally likely.
    listed : Tensor of shape (population, players) or None
        All such coalitions, if the draws may come near to exhausting them.
    order : Tensor of shape (rows, population) or None
        The order in which each row takes the listed coalitions.
    drawn : int
        The number of pairs drawn so far.
    """

    size: int
    population: int
    share: float
    rate: int
    listed: Tensor | None = None
    order: Tensor | None = None
    drawn: int = 0


def _sizes(players: int) -> list[_Size]:
    """Return the sizes of pairs, from one player to half of them."""
    probability = kernel_sizes(players)
    sizes = []
    for k in range(1, players // 2 + 1):
        middle = 2 * k == players
        population = math.comb(players, k) // (2 if middle else 1)
        share = float(probability[k - 1]) * (1 if middle else 2)
        sizes.append(_Size(k, population, share, 1 if middle else 2))
    return sizes


def _plan(sizes: Sequence[_Size], units: int) -> list[int]:
    """Divide ``units`` pairs among the sizes by their rates: at least two each if possible, and at most all."""
    least = 2 if units >= 2 * len(sizes) else 1
    counts = [min(least, size.population) for size in sizes]
    open_sizes = {i for i, size in enumerate(sizes) if counts[i] < size.population}
    remaining = units - sum(counts)
    while remaining > 0 and open_sizes:
        rate = remaining / sum(sizes[i].rate for i in open_sizes)
        grants = {i: min(int(rate * sizes[i].rate), sizes[i].population - counts[i]) for i in open_sizes}
        if not any(grants.values()):
            for i in sorted(open_sizes, key=lambda i: -sizes[i].rate)[:remaining]:
                counts[i] += 1
            break
        for i, grant in grants.items():
            counts[i] += grant
        remaining = units - sum(counts)
        open_sizes = {i for i in open_sizes if counts[i] < sizes[i].population}
    return counts


class _Leverage:
    """Draws pairs stratified by size, equally many of each, without replacement where a size is small."""

    def __init__(self, players: int, units: int, generator: torch.Generator) -> None:
        self.players, self.generator = players, generator
        self.sizes = _sizes(players)
        for size, most in zip(self.sizes, _plan(self.sizes, units), strict=True):
            if size.population <= 2 * most:
                size.listed = self._list(size)
        self.numbers: list[int] = []  # The index of the size of each draw.

    def draw(self, rows: Tensor, units: int) -> Tensor:
        """Return the next pairs of each row, (rows, units, players).

        ``rows`` are the positions of the rows in the block as it was at the start.
        """
        drawn = sum(size.drawn for size in self.sizes)
        more = [
            max(0, want - size.drawn)
            for want, size in zip(_plan(self.sizes, drawn + units), self.sizes, strict=True)
        ]
        while sum(more) > units:  # Rounding may have given a size one pair too many in an earlier draw.
            more[max(range(len(more)), key=more.__getitem__)] -= 1
        parts, free = [], []
        for number, (size, count) in enumerate(zip(self.sizes, more, strict=True)):
            size.drawn += count
            if size.listed is None:
                free += [number] * count
            elif count:
                parts.append(self._take(size, size.listed, rows, count))
                self.numbers += [number] * count
        if free:
            sizes = torch.tensor([self.sizes[number].size for number in free], device=rows.device)
            parts.append(subsets(sizes.expand(len(rows), -1), self.players, self.generator))
            self.numbers += free
        return torch.cat(parts, dim=1)

    def strata(self, device: torch.device) -> list[Stratum]:
        numbers = torch.tensor(self.numbers, device=device)
        return [
            ((numbers == i).nonzero()[:, 0], size.share, size.population if size.listed is not None else math.inf)
            for i, size in enumerate(self.sizes)
            if size.drawn
        ]

    def _take(self, size: _Size, listed: Tensor, rows: Tensor, count: int) -> Tensor:
        """Return the last ``count`` of the coalitions drawn from the list, for each row."""
        if size.order is None:
            device = self.generator.device
            keys = torch.rand(int(rows.max()) + 1, size.population, generator=self.generator, device=device)
            size.order = keys.argsort(1)
        return listed[size.order[rows, size.drawn - count : size.drawn]]

    def _list(self, size: _Size) -> Tensor:
        """Return all coalitions of a size, (population, players); for the middle size, one of each pair."""
        chosen = itertools.combinations(range(self.players), size.size)
        members = torch.tensor(list(itertools.islice(chosen, size.population)))
        s = torch.zeros(len(members), self.players, dtype=torch.bool)
        return s.scatter_(1, members, True).to(self.generator.device)


class _Regression:
    """The rows of a block and their coalitions so far. It implements `Sampler`."""

    def __init__(self, block: Block, design: _Kernel | _Leverage, *, paired: bool) -> None:
        self.block, self.design, self.paired = block, design, paired
        self.rows = torch.arange(len(block.x), device=block.x.device)
        outputs = block.value_function.outputs
        self.z = block.x.new_zeros(len(block.x), 0, block.value_function.players, dtype=torch.int8)
        self.y = block.x.new_zeros(len(block.x), 0, outputs, dtype=torch.float64)

    def extend(self, units: int) -> None:
        if units == 0:
            return
        s = self.design.draw(self.rows, units)
        parts = []
        size = max(1, memory.EVALUATIONS_PER_CALL // (2 * units))
        game = self.block.value_function
        for x, c, null, numbers in zip(
            self.block.x.split(size),
            s.split(size),
            self.block.null.split(size),
            self.block.numbers.split(size),
            strict=True,
        ):
            pieces = c.split(memory.EVALUATIONS_PER_CALL // 2, dim=1)
            if self.paired:
                y = [_differences(game, x, piece, numbers) for piece in pieces]
            else:
                y = [evaluate(game, x, piece, numbers) - null[:, None] for piece in pieces]
            parts.append(torch.cat(y, dim=1))
        new = s.to(torch.int8)
        self.z = torch.cat([self.z, 2 * new - 1 if self.paired else new], dim=1)
        self.y = torch.cat([self.y, torch.cat(parts)], dim=1)

    def estimate(self) -> tuple[Tensor, Tensor]:
        strata = self.design.strata(self.z.device)
        return solve_with_errors(self.z, self.y, self.block.total, strata, paired=self.paired)

    def keep(self, rows: Tensor) -> None:
        self.block, self.rows, self.z, self.y = self.block[rows], self.rows[rows], self.z[rows], self.y[rows]
