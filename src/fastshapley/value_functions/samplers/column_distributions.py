"""Distributions of the entries of a row, as a network describes them."""

from __future__ import annotations

import torch
from torch import Tensor

from fastshapley.value_functions.column_scores import FEW_VALUES, ColumnScores

LARGEST_STRETCH = 1.5  # largest logarithm of the factor by which a donor's score is stretched
IMPOSSIBLE = -1e9  # logit of a value that does not exist


class ColumnDistributions:
    """What the outputs of a `NetworkSampler` mean: a probability for each of few values, or a normal score.

    Parameters
    ----------
    scores : ColumnScores
        The scores of the columns. A column with ties and at most ``FEW_VALUES`` values has a probability for each
        of them. Any other column has the mean of its score, and the logarithm of the deviation.

    Attributes
    ----------
    few, others : Tensor
        The numbers of the columns of few values, and of the others.
    levels : Tensor of shape (columns of few values, most)
        The values of the columns of few values, in the order of their scores, with NaN after the last one.
    outputs : int
        The number of outputs of the network.
    """

    def __init__(self, scores: ColumnScores) -> None:
        self._scores = scores
        is_few = scores.steps & (scores.counts >= 1) & (scores.counts <= FEW_VALUES)
        self.few, self.others = is_few.nonzero()[:, 0], (~is_few).nonzero()[:, 0]
        counts = scores.counts[self.few]
        most = int(counts.max()) if len(counts) else 0
        missing = torch.arange(most, device=counts.device) >= counts[:, None]
        order = scores.scores[self.few, :most].masked_fill(missing, torch.inf).argsort(dim=1, stable=True)
        self.levels = scores.values[self.few, :most].gather(1, order).masked_fill(missing, torch.nan)
        self._level_scores = scores.scores[self.few, :most].gather(1, order).masked_fill(missing, 0).nan_to_num()
        self._position = order.argsort(dim=1)
        self._last = counts - 1
        self.outputs = 2 * len(self.others) + self.levels.numel()

    def place(self, x: Tensor) -> Tensor:
        """Return which level each entry of rows (n, columns) is, (n, columns of few values)."""
        return self._position.gather(1, self._scores.index(x)[:, self.few].T).T

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the logarithm of the deviation of the other columns' scores."""
        mean, deviation = outputs[..., : 2 * len(self.others)].double().chunk(2, dim=-1)
        return mean, 2 * torch.tanh(deviation / 2)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits of the levels, (..., columns of few values, most)."""
        logits = outputs[..., 2 * len(self.others) :].unflatten(-1, self.levels.shape)
        return logits.masked_fill(self.levels.isnan(), IMPOSSIBLE)

    def loss(self, outputs: Tensor, scores: Tensor, place: Tensor, hidden: Tensor) -> Tensor:
        """Return minus the log-likelihood of hidden entries, up to a constant.

        Parameters
        ----------
        outputs : Tensor of shape (n, m, outputs)
            The network's outputs for m coalitions per row.
        scores : Tensor of shape (n, columns)
            The scores of the entries. Those that are NaN do not count.
        place : Tensor of shape (n, columns of few values)
            The levels of the entries.
        hidden : Tensor of shape (n, m, columns)
            Which entries are hidden.

        Returns
        -------
        Tensor of shape (2,)
            The sum over entries, and their number.
        """
        hidden = hidden & ~scores.isnan()[:, None]
        mean, deviation = self.moments(outputs)
        y = scores.nan_to_num()[:, None, self.others]
        total = ((((y - mean) / deviation.exp()).square() / 2 + deviation) * hidden[..., self.others]).sum()
        if len(self.few):
            likely = self.logits(outputs).log_softmax(-1)
            places = place[:, None, :, None].expand(*likely.shape[:-1], 1)
            total = total - (likely.gather(-1, places)[..., 0] * hidden[..., self.few]).sum()
        return torch.stack([total, hidden.sum().to(total)])

    def moved_scores(self, row: Tensor, donor: Tensor, scores: Tensor) -> Tensor:
        """Shift and stretch the scores of donors from the distribution expected of donors to that of the row.

        Parameters
        ----------
        row : Tensor of shape (n, 1, outputs)
            The network's outputs for the rows.
        donor : Tensor of shape (n, draws, outputs)
            The network's outputs for the donors.
        scores : Tensor of shape (n, draws, columns)
            The donors' scores.

        Returns
        -------
        Tensor of shape (n, draws, columns)
            The new scores; those of columns of few values stay as they are.
        """
        mean, deviation = self.moments(row)
        donor_mean, donor_deviation = self.moments(donor)
        stretch = (deviation - donor_deviation).clamp(-LARGEST_STRETCH, LARGEST_STRETCH).exp()
        moved = mean + stretch * (scores[..., self.others] - donor_mean)
        return scores.index_copy(-1, self.others, moved)

    def expected_scores(self, row: Tensor) -> Tensor:
        """Return the scores that are expected of a row, (n, 1, columns); ``row`` is as for `moved_scores`."""
        mean = self.moments(row)[0]
        expected = mean.new_zeros(*mean.shape[:-1], len(self.others) + len(self.few))
        expected[..., self.others] = mean
        if len(self.few):
            expected[..., self.few] = (self.logits(row).softmax(-1) * self._level_scores).sum(-1).to(mean)
        return expected

    def moved_levels(self, row: Tensor, donor: Tensor, place: Tensor, rank: Tensor) -> Tensor:
        """Return the levels that have the rank in the row's distribution that donors have in theirs.

        Parameters
        ----------
        row, donor : Tensor
            As for `moved_scores`.
        place : Tensor of shape (n, draws, columns of few values)
            The donors' levels.
        rank : Tensor of shape (n, draws, columns of few values)
            Numbers from 0 to 1: where a donor is within the probability of its level.

        Returns
        -------
        Tensor of shape (n, draws, columns of few values)
            Levels.
        """
        ends = self.logits(donor).softmax(-1).cumsum(-1)
        high = ends.gather(-1, place[..., None])[..., 0]
        low = torch.where(place > 0, ends.gather(-1, (place - 1).clamp(min=0)[..., None])[..., 0], 0.0)
        share = torch.lerp(low, high, rank.to(low))
        bounds = self.logits(row).softmax(-1).cumsum(-1)
        return (bounds < share[..., None]).sum(-1).minimum(self._last)

    def values(self, level: Tensor) -> Tensor:
        """Return the values of levels (..., columns of few values)."""
        return self._of_levels(self.levels, level)

    def scores(self, level: Tensor) -> Tensor:
        """Return the scores of levels (..., columns of few values)."""
        return self._of_levels(self._level_scores, level)

    def _of_levels(self, table: Tensor, level: Tensor) -> Tensor:
        first = torch.arange(len(self.few), device=level.device) * table.shape[1]
        return table.flatten()[first + level]
