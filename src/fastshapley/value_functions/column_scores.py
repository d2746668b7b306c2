"""Columns on a common scale, on which conditional samplers shift the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

CELLS = 1024  # cells of the table from scores back to values
LARGEST_SCORE = 4.0  # normal scores are between this number and its negative
FEW_VALUES = 32  # a column with ties and at most this many values is ordered by the model's output, like categories
TIES = 0.5  # a column with fewer distinct values than this share of its entries takes only these values
PLAIN = 0.9  # a column of numbers needs this share of distinct values to be standardised
BLOCK_ENTRIES = 1 << 22  # entries that are encoded at once: 32 MB in each intermediate array


class ColumnScale(Protocol):
    """A scale on which the entries of all columns can be compared."""

    def encode(self, x: Tensor) -> Tensor:
        """Return the scores of rows (n, columns), NaN where an entry has no score."""

    def spread(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the scores of the fitted rows (n, columns) with ties broken at random."""

    def decode(self, scores: Tensor) -> Tensor:
        """Return the values of scores (..., columns)."""


class ColumnScores:
    """Normal scores: a value's rank in its column of the fitted rows, as a quantile of the normal distribution.

    Categories, and numbers that take few values, are ordered by the mean of the model's output, so that neighbours
    have similar outputs. A value that occurs several times has several ranks; its score is the one in the middle.

    Drawn values stay within the range of the fitted rows. Columns of categories or with many ties take only values
    of the fitted rows, and columns of whole numbers take only whole numbers.

    Parameters
    ----------
    columns : sequence of _Column
        What has been learnt of each column.

    Attributes
    ----------
    values : Tensor of shape (columns, length)
        The distinct values of each column, ascending. The last one is repeated up to the length.
    scores : Tensor of shape (columns, length)
        The score of each value; NaN for a column of gaps.
    counts : Tensor of shape (columns,)
        The number of distinct values, 0 for a column of gaps.
    steps : Tensor of shape (columns,)
        Whether only the fitted values exist.
    whole : Tensor of shape (columns,)
        Whether all fitted values are whole numbers.
    plain : Tensor of shape (columns,)
        Whether the column holds numbers that are nearly all distinct.
    """

    def __init__(self, columns: Sequence[_Column]) -> None:
        length = max(2, *(len(column.values) for column in columns)) if columns else 2

        def stacked(parts: Sequence[Tensor]) -> Tensor:
            return torch.stack([torch.cat([each, each[-1:].expand(length - len(each))]) for each in parts])

        self.values = stacked([column.values for column in columns])
        self.scores = stacked([_quantiles((column.starts + column.ends) / 2) for column in columns])
        self._starts = stacked([column.starts for column in columns])
        self._ends = stacked([column.ends for column in columns])
        self._tied = stacked([column.repeated for column in columns])
        device = self.values.device
        self.counts = torch.tensor([column.count for column in columns], device=device)
        self.steps = torch.tensor([column.steps for column in columns], device=device)
        self.whole = torch.tensor([column.whole for column in columns], device=device)
        self.plain = torch.tensor([column.plain for column in columns], device=device)
        self._discrete = torch.tensor([column.discrete for column in columns], device=device)
        self._stepped, self._smooth = self.steps.nonzero()[:, 0], (~self.steps).nonzero()[:, 0]
        order = stacked([column.order for column in columns])[self._stepped]
        self._levels = self.values[self._stepped].gather(1, order)
        # The score up to which each level is drawn. The last level is drawn for all higher scores.
        self._edges = torch.special.ndtri(self._ends[self._stepped].gather(1, order))
        self._edges[torch.arange(length, device=device) >= self.counts[self._stepped, None] - 1] = torch.inf
        self._levels[self.counts[self._stepped] == 0] = torch.nan
        tables = [column.table for column in columns if not column.steps]
        self._table = torch.stack(tables) if tables else self.values.new_zeros(0, CELLS + 1)

    @classmethod
    def fitted(cls, x: Tensor, y: Tensor, discrete: Sequence[bool]) -> ColumnScores:
        """Return the scores of the columns of a table.

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            Encoded rows; NaN is a gap.
        y : Tensor of shape (n,)
            One number per row, by which categories are ordered.
        discrete : sequence of bool
            Which columns hold categories.
        """
        return cls([_Column.fitted(x[:, j], y, discrete[j]) for j in range(x.shape[1])])

    def encode(self, x: Tensor) -> Tensor:
        """Return the scores of rows.

        Numbers between two fitted values are interpolated, or take the score of the nearer one if only the fitted
        values exist. Numbers outside of the range take the score of its end.

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            Encoded rows.

        Returns
        -------
        Tensor of shape (n, columns)
            The scores. They are NaN for gaps, for categories that the fitted rows do not have, and for columns that
            held only gaps.
        """
        return torch.cat([self._encode(part) for part in _blocks(x)])

    def _encode(self, x: Tensor) -> Tensor:
        columns, before, share = self._place(x)
        low, high = (self.scores.gather(1, index) for index in (before, before + 1))
        nearest = self.values.gather(1, before + share.round().long())
        unknown = columns.isnan() | (self._discrete[:, None] & (nearest != columns))
        share = torch.where(self.steps[:, None], share.round(), share)
        return torch.lerp(low, high, share).masked_fill(unknown, torch.nan).T.contiguous()

    def _place(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return columns (columns, n), the index of the value before each entry, and the share of the way on."""
        columns = x.to(self.values).T.contiguous()
        before = torch.searchsorted(self.values, columns).clamp(1, self.values.shape[1] - 1) - 1
        low, high = self.values.gather(1, before), self.values.gather(1, before + 1)
        # Halves, because the difference of two large numbers may be infinite.
        share = (columns / 2 - low / 2) / (high / 2 - low / 2).clamp(min=torch.finfo(columns.dtype).tiny)
        share = torch.where(columns == high, 1.0, share.nan_to_num().clamp(0, 1))
        return columns, before, share

    def index(self, x: Tensor) -> Tensor:
        """Return the index in ``values`` of the fitted value nearest to each entry of rows, (n, columns)."""
        parts = [(before + share.round().long()).T for _, before, share in map(self._place, _blocks(x))]
        return torch.cat(parts).clamp(max=(self.counts - 1).clamp(min=0))

    def spread(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the scores of the fitted rows, where each entry has one of the ranks of its value at random.

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            The rows that the scores were fitted to.
        generator : torch.Generator
            The source of the random ranks.

        Returns
        -------
        Tensor of shape (n, columns)
            The scores, NaN for gaps. Values that occur once have the same score as in `encode`.
        """
        index = self.index(x).T
        uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=self.values.dtype).T
        uniform = torch.where(self._tied.gather(1, index), uniform, 0.5)
        uniform = uniform.clamp(1e-9, 1 - 1e-9)  # The first rank of a value is the last one of the value before.
        ranks = torch.lerp(self._starts.gather(1, index), self._ends.gather(1, index), uniform)
        return _quantiles(ranks).masked_fill(x.T.isnan(), torch.nan).T.contiguous()

    def decode(self, scores: Tensor) -> Tensor:
        """Return the values of scores (..., columns); NaN counts as the median."""
        scores = scores.to(self.values).nan_to_num()
        if not len(self._stepped):
            return self._between(scores)
        drawn = torch.empty_like(scores)
        drawn[..., self._smooth] = self._between(scores[..., self._smooth])
        stepped = scores[..., self._stepped]
        level = torch.searchsorted(self._edges, stepped.flatten(0, -2).T.contiguous())
        drawn[..., self._stepped] = self._levels.gather(1, level).T.reshape(stepped.shape)
        return drawn

    def _between(self, scores: Tensor) -> Tensor:
        """Return the values of scores in columns that take any value, by a table."""
        place = (scores + LARGEST_SCORE).mul(CELLS / (2 * LARGEST_SCORE)).clamp(0, CELLS)
        cell = place.floor().clamp(max=CELLS - 1)
        at = cell.long() + torch.arange(len(self._table), device=scores.device) * (CELLS + 1)
        flat = self._table.flatten()
        # Halves, because the difference of two large numbers may be infinite.
        between = torch.lerp(flat[at] / 2, flat[at + 1] / 2, place.sub_(cell)) * 2
        return torch.where(self.whole[self._smooth], between.round(), between)


class StandardScores:
    """Columns of distinct numbers less their mean, in standard deviations; normal scores for all other columns.

    Numbers outside of the range of the fitted rows count as the end of the range, both in rows and in draws: models
    extrapolate badly. Columns of whole numbers take only whole numbers.

    Parameters
    ----------
    scores : ColumnScores
        The normal scores.
    mean, deviation : Tensor of shape (columns,)
        The mean and the standard deviation of each column. Only those of plain columns are used.
    """

    def __init__(self, scores: ColumnScores, mean: Tensor, deviation: Tensor) -> None:
        self.scores, self.mean, self.deviation = scores, mean, deviation
        self.low, self.high = scores.values[:, 0], scores.values[:, -1]
        self._all_plain = bool(scores.plain.all())

    @classmethod
    def fitted(cls, x: Tensor, y: Tensor, discrete: Sequence[bool]) -> StandardScores:
        """Return the scores of the columns of a table; the parameters are those of `ColumnScores.fitted`."""
        scores = ColumnScores.fitted(x, y, discrete)
        # Numbers are divided by the largest one first, because squares of large numbers may be infinite.
        largest = x.nan_to_num().abs().amax(0).clamp(min=torch.finfo(x.dtype).tiny)
        mean = (x / largest).nanmean(0)
        variance = (x / largest - mean).square().nanmean(0)
        deviation = (variance.sqrt() * largest).clamp(min=torch.finfo(x.dtype).tiny)
        return cls(scores, mean * largest, deviation)

    def encode(self, x: Tensor) -> Tensor:
        """Return the scores of rows (n, columns), NaN where `ColumnScores.encode` gives NaN."""
        found = self._standardised(x)
        return found if self._all_plain else torch.where(self.scores.plain, found, self.scores.encode(x))

    def spread(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the scores of the fitted rows (n, columns), with ties broken at random where there are many."""
        return torch.where(self.scores.plain, self._standardised(x), self.scores.spread(x, generator))

    def decode(self, scores: Tensor) -> Tensor:
        """Return the values of scores (..., columns), which are within the range of the fitted rows."""
        numbers = (scores.nan_to_num() * self.deviation + self.mean).clamp(self.low, self.high)
        numbers = torch.where(self.scores.whole, numbers.round(), numbers)
        return numbers if self._all_plain else torch.where(self.scores.plain, numbers, self.scores.decode(scores))

    def _standardised(self, x: Tensor) -> Tensor:
        inside = x.to(self.mean).clamp(self.low, self.high)
        return (inside / 2 - self.mean / 2) / (self.deviation / 2)


@dataclass(frozen=True)
class _Column:
    """What `ColumnScores` learns of one column.

    Attributes
    ----------
    values : Tensor of shape (length,)
        The distinct values, ascending; one zero for a column of gaps.
    starts, ends : Tensor of shape (length,)
        The first and the last rank of each value, as shares from 0 to 1; NaN for a column of gaps.
    repeated : Tensor of shape (length,)
        Whether each value occurs several times.
    order : Tensor of shape (length,)
        The indices of the values in the order of their ranks.
    table : Tensor of shape (CELLS + 1,)
        The value for each score from ``-LARGEST_SCORE`` to ``LARGEST_SCORE``, in equal steps. It is not used for a
        column that takes only the fitted values.
    count : int
        The number of distinct values.
    discrete, steps, whole, plain : bool
        Whether the column holds categories; the others are described in `ColumnScores`.
    """

    values: Tensor
    starts: Tensor
    ends: Tensor
    repeated: Tensor
    order: Tensor
    table: Tensor
    count: int
    discrete: bool
    steps: bool
    whole: bool
    plain: bool

    @classmethod
    def fitted(cls, column: Tensor, y: Tensor, discrete: bool) -> _Column:
        present = ~column.isnan()
        entries = column[present]
        if not len(entries):
            gap = column.new_full((1,), torch.nan)
            never = torch.zeros(1, dtype=torch.bool, device=column.device)
            first = torch.zeros(1, dtype=torch.long, device=column.device)
            return cls(torch.zeros_like(gap), gap, gap, never, first, gap, 0, discrete, True, False, False)
        values, which, counts = entries.unique(return_inverse=True, return_counts=True)
        number, total = len(values), len(entries)
        steps = discrete or number < TIES * total or number == 1
        order = torch.arange(number, device=column.device)
        if discrete or (steps and number <= FEW_VALUES):
            sums = torch.zeros(number, dtype=y.dtype, device=y.device).index_add(0, which, y[present])
            order = (sums / counts).argsort(stable=True)
        ordered_ends = counts[order].cumsum(0).to(column) / total
        starts, ends = torch.empty_like(values), torch.empty_like(values)
        starts[order], ends[order] = ordered_ends - counts[order].to(column) / total, ordered_ends
        table = values
        if not steps:
            grid = torch.linspace(
                -LARGEST_SCORE, LARGEST_SCORE, CELLS + 1, dtype=column.dtype, device=column.device
            )
            first, last = starts + 0.5 / total, ends - 0.5 / total
            table = _interpolated(values, first, last, torch.special.ndtr(grid))
        whole = bool((values == values.round()).all())
        plain = not steps and number >= PLAIN * total
        return cls(values, starts, ends, counts > 1, order, table, number, discrete, steps, whole, plain)


def _interpolated(values: Tensor, first: Tensor, last: Tensor, ranks: Tensor) -> Tensor:
    """Return the values at some ranks, where each value has all ranks from its first to its last one."""
    knots, at_knots = torch.stack([first, last], dim=1).flatten(), values.repeat_interleave(2)
    after = torch.searchsorted(knots, ranks).clamp(1, len(knots) - 1)
    width = (knots[after] - knots[after - 1]).clamp(min=torch.finfo(knots.dtype).tiny)
    weight = ((ranks - knots[after - 1]) / width).clamp(0, 1)
    return torch.lerp(at_knots[after - 1] / 2, at_knots[after] / 2, weight) * 2


def _quantiles(ranks: Tensor) -> Tensor:
    """Return the quantiles of the normal distribution, limited to the range of scores."""
    return torch.special.ndtri(ranks).clamp(-LARGEST_SCORE, LARGEST_SCORE)


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(max(1, BLOCK_ENTRIES // max(1, x.shape[1])))
