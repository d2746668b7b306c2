"""The sampler that ignores what is known."""

from __future__ import annotations

from torch import Tensor

from fastshapley.value_functions.column_scores import ColumnScores
from fastshapley.value_functions.samplers.conditional_sampler import (
    ConditionalSampler,
    Donors,
    Draws,
    ScoredDonors,
    leading_output,
)


class MarginalSampler(ConditionalSampler):
    """Hidden entries are those of a donor, whatever is known."""

    kind = "marginal"
    centred = True

    def _prepare(self, donors: Donors, seed: int) -> None:
        super()._prepare(donors, seed)
        scale = ColumnScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)
        scored = ScoredDonors.of(donors.rows, scale, seed)
        self._slopes, self._surprise = scored.slopes(donors.outputs), scored.expected - scored.expected.mean(0)

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        return Draws(self.donors.rows[numbers], self._surprise[numbers])
