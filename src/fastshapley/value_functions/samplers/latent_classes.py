"""Latent classes: mixtures in whose components all columns are independent, and the levels that columns have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fastshapley.value_functions.column_scores import FEW_VALUES, ColumnScores
from fastshapley.value_functions.samplers.mixture import Mixture

BINS = 8  # levels of a column of numbers
PRIOR_ROWS = 1.0  # rows of the whole table that are added to each class
LEAST_PROBABILITY = 1e-9  # of a level in a class


class ColumnLevels:
    """Columns as a few levels each: the values of a column of few values, or bins with equal shares of the rows.

    The last level of each column is a gap.

    Parameters
    ----------
    scores : ColumnScores
        The scores of the columns.

    Attributes
    ----------
    few : Tensor of shape (columns,)
        Which columns have few values.
    width : int
        The number of levels of all columns.
    """

    def __init__(self, scores: ColumnScores) -> None:
        self._scores = scores
        self.few = scores.steps & (scores.counts <= FEW_VALUES)
        self._counts = torch.where(self.few, scores.counts, BINS) + 1
        self._starts = self._counts.cumsum(0) - self._counts
        self.width = int(self._counts.sum())

    def of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return levels, and which of them say something.

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            Encoded rows.

        Returns
        -------
        levels : Tensor of shape (n, columns)
            Numbers from 0 to ``width``, different ones for each column.
        valid : Tensor of shape (n, columns)
            False for categories that the scores do not know.
        """
        scores, gaps = self._scores.encode(x), x.isnan()
        bins = (torch.special.ndtr(scores.nan_to_num()) * BINS).long().clamp(0, BINS - 1)
        levels = torch.where(self.few, self._scores.index(x), bins)
        levels = torch.where(gaps, self._counts - 1, levels)
        return self._starts + levels, gaps | ~scores.isnan()

    def indicators(self, x: Tensor) -> Tensor:
        """Return one column per level, (n, width): 1 for the levels of a row."""
        levels, valid = self.of(x)
        return torch.zeros(len(x), self.width, device=x.device).scatter_(1, levels, valid.float())


@dataclass(frozen=True)
class LatentClasses(Mixture):
    """A mixture in whose components all columns are independent.

    Rows are indicators of levels, as `ColumnLevels.indicators` returns.

    Attributes
    ----------
    shares : Tensor of shape (components,)
        The probabilities of the components.
    probabilities : Tensor of shape (components, width)
        The probability of each level.
    """

    most_entries = 1 << 18
    clearly = 0.0
    least_gain = 1e-4

    probabilities: Tensor

    @classmethod
    def of_members(cls, z: Tensor, membership: Tensor) -> LatentClasses:
        """Return the classes whose levels are as frequent as among their members.

        A row of the whole table is added to each class, so that no level that exists is impossible.
        """
        size = membership.sum(0)
        counts = membership.T @ z + PRIOR_ROWS * z.mean(0)
        probabilities = (counts / (size + PRIOR_ROWS)[:, None]).clamp(min=LEAST_PROBABILITY)
        return cls((size + 1) / (len(z) + len(size)), probabilities)

    def joint_log_density(self, z: Tensor) -> Tensor:
        """Return the log-probability of rows (n, width) and components, (n, components)."""
        return self.shares.log() + z @ self.probabilities.log().T
