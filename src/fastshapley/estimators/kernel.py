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
from fastshapley.estimators.regression import Stratum, draw_weights, solve_pairs, solve_with_errors
from fastshapley.estimators.sampling import Block, Estimate, estimate_by_sampling
from fastshapley.value_functions.protocol import ValueFunction, evaluate, total_values

_EVALUATIONS = 1 << 16  # coalitions times rows in one evaluation


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
    """Shapley values of each row of ``x`` from at most ``budget`` evaluations, null and grand included.

    budget: by default 64 evaluations a player.
    tol: a row stops as soon as its largest standard error is below ``tol`` times the range of its values.
    paired: each coalition comes with its complement.
    sampling: coalitions from the Shapley kernel, or by leverage scores: as many of each size, none twice where a
        size is nearly exhausted, and weighted (pairs only). With all coalitions in the budget that is exact.
    history: also keep the values at some budgets on the way, or at the given ones.
    """
    players = value_function.players
    most = pair_count(players)  # pairs that there are
    if sampling not in ("kernel", "leverage"):
        raise InputError(f"sampling is {sampling!r}: use 'kernel' or 'leverage'")
    if sampling == "leverage" and not paired:
        raise InputError("sampling='leverage' draws pairs: use it with paired=True")

    def start(block: Block, generator: torch.Generator, units: int) -> _Regression:
        if sampling == "leverage":
            return _Regression(block, _Leverage(players, units, generator), paired=True)
        return _Regression(block, _Kernel(players, generator), paired=paired)

    return estimate_by_sampling(
        f"the {'paired ' if paired else ''}kernel estimator",
        value_function,
        x,
        start,
        unit=2 if paired else 1,
        fewest=4 * players if not paired else min(2 * players, most) if sampling == "leverage" else 2 * players,
        most=most if sampling == "leverage" else math.inf,
        budget=budget,
        tol=tol,
        history=history,
        random_state=random_state,
        progress=progress,
    )


@dataclass(frozen=True)
class Pairs:
    """Pairs of a coalition s and its complement, as many of each row.

    z: 2s - 1, (n, pairs, players). u: v(s) - v(1 - s), (n, pairs, outputs). weight: (pairs,), of mean one.
    strata: within which they were drawn uniformly.
    """

    z: Tensor
    u: Tensor
    weight: Tensor
    strata: list[Stratum]


def draw_pairs(
    value_function: ValueFunction, x: Tensor, pairs: int, generator: torch.Generator, numbers: Tensor | None = None
) -> Pairs:
    """So many pairs of each row by leverage; from the Shapley kernel where they are fewer than the sizes."""
    players = value_function.players
    sizes = players // 2
    design = _Leverage(players, pairs, generator) if pairs >= sizes else _Kernel(players, generator)
    s = design.draw(torch.arange(len(x), device=x.device), pairs)
    u = _differences(value_function, x, s, numbers)
    strata = design.strata(x.device)
    return Pairs(2 * s.to(torch.int8) - 1, u, draw_weights(strata, pairs, x.device), strata)


def sampling_variance(players: int, pairs: int, profile: Sequence[float]) -> float:
    """The variance of a value from so many pairs of `draw_pairs`, if that of what pairs leave unexplained is one.

    ``profile`` is how it depends on the size, from one player to half of them. It falls to zero with all pairs.
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
    """Values (n, players, outputs) from so many pairs a row, by leverage, and what they sum to, (n, outputs).

    The bare estimate, without standard errors; with all pairs that there are it is exact.
    """
    pairs = min(pairs, pair_count(value_function.players))
    values, totals = [], []
    for part in x.split(max(1, _EVALUATIONS // (2 * pairs))):
        total = total_values(value_function, part)
        drawn = draw_pairs(value_function, part, pairs, generator)
        values.append(solve_pairs(drawn.z, drawn.u, total, drawn.weight))
        totals.append(total)
    return torch.cat(values), torch.cat(totals)


def _differences(value_function: ValueFunction, x: Tensor, s: Tensor, numbers: Tensor | None = None) -> Tensor:
    v = evaluate(value_function, x, torch.cat([s, ~s], dim=1), numbers)
    return v[:, : s.shape[1]] - v[:, s.shape[1] :]


class _Kernel:
    """Independent coalitions from the Shapley kernel: one stratum, never exhausted."""

    def __init__(self, players: int, generator: torch.Generator) -> None:
        self.players, self.generator, self.count = players, generator, 0

    def draw(self, rows: Tensor, units: int) -> Tensor:
        self.count += units
        return sample_kernel(len(rows), units, self.players, self.generator, paired=False)

    def strata(self, device: torch.device) -> list[Stratum]:
        return [(torch.arange(self.count, device=device), 1.0, math.inf)]


@dataclass
class _Size:
    """The pairs of one size and its complement: how many there are, their share of the kernel, what is drawn."""

    size: int
    population: int
    share: float
    rate: int  # of draws: by leverage, every size is as likely
    listed: Tensor | None = None  # all of them, where draws may come near to exhausting them
    order: Tensor | None = None  # (rows, population): in which order a row takes the listed ones
    drawn: int = 0


def _sizes(players: int) -> list[_Size]:
    probability = kernel_sizes(players)
    sizes = []
    for k in range(1, players // 2 + 1):
        middle = 2 * k == players
        population = math.comb(players, k) // (2 if middle else 1)
        share = float(probability[k - 1]) * (1 if middle else 2)
        sizes.append(_Size(k, population, share, 1 if middle else 2))
    return sizes


def _plan(sizes: Sequence[_Size], units: int) -> list[int]:
    """How many pairs of each size: in proportion to their rates, at least two if that can be, at most all."""
    least = 2 if units >= 2 * len(sizes) else 1
    counts = [min(least, size.population) for size in sizes]
    open_sizes = {i for i, size in enumerate(sizes) if counts[i] < size.population}
    left = units - sum(counts)
    while left > 0 and open_sizes:
        rate = left / sum(sizes[i].rate for i in open_sizes)
        grants = {i: min(int(rate * sizes[i].rate), sizes[i].population - counts[i]) for i in open_sizes}
        if not any(grants.values()):
            for i in sorted(open_sizes, key=lambda i: -sizes[i].rate)[:left]:
                counts[i] += 1
            break
        for i, grant in grants.items():
            counts[i] += grant
        left = units - sum(counts)
        open_sizes = {i for i in open_sizes if counts[i] < sizes[i].population}
    return counts


class _Leverage:
    """Pairs stratified by size, as many of each; without replacement where a size is small."""

    def __init__(self, players: int, units: int, generator: torch.Generator) -> None:
        self.players, self.generator = players, generator
        self.sizes = _sizes(players)
        for size, most in zip(self.sizes, _plan(self.sizes, units), strict=True):
            if size.population <= 2 * most:
                size.listed = self._list(size)
        self.numbers: list[int] = []  # the stratum of each draw

    def draw(self, rows: Tensor, units: int) -> Tensor:
        """The next pairs of each row, (rows, units, players); ``rows`` are positions in the block's first rows."""
        drawn = sum(size.drawn for size in self.sizes)
        more = [
            max(0, want - size.drawn)
            for want, size in zip(_plan(self.sizes, drawn + units), self.sizes, strict=True)
        ]
        while sum(more) > units:  # rounding may have given a size one too many before
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
        """The last ``count`` of those drawn, from the list."""
        if size.order is None:
            device = self.generator.device
            keys = torch.rand(int(rows.max()) + 1, size.population, generator=self.generator, device=device)
            size.order = keys.argsort(1)
        return listed[size.order[rows, size.drawn - count : size.drawn]]

    def _list(self, size: _Size) -> Tensor:
        """All coalitions of a size, (population, players); of the middle size, one of each pair."""
        chosen = itertools.combinations(range(self.players), size.size)
        members = torch.tensor(list(itertools.islice(chosen, size.population)))
        s = torch.zeros(len(members), self.players, dtype=torch.bool)
        return s.scatter_(1, members, True).to(self.generator.device)


class _Regression:
    """Rows and their coalitions so far; meets `Sampler`."""

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
        size = max(1, _EVALUATIONS // (2 * units))
        game = self.block.value_function
        for x, c, null, numbers in zip(
            self.block.x.split(size),
            s.split(size),
            self.block.null.split(size),
            self.block.numbers.split(size),
            strict=True,
        ):
            pieces = c.split(_EVALUATIONS // 2, dim=1)
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
