"""Samplers that expect hidden entries by linear regression on the known ones, in each component of a mixture."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.column_scores import ColumnScale, ColumnScores, StandardScores
from fastshapley.value_functions.samplers.conditional_sampler import (
    ConditionalSampler,
    Donors,
    Draws,
    SamplerRows,
    ScoredDonors,
    leading_output,
)
from fastshapley.value_functions.samplers.mixture import ComponentDonors
from fastshapley.value_functions.samplers.normal_mixture import NormalMixture, Regressions, rows_by_set


class RegressionSampler(ConditionalSampler):
    """Hidden entries are those of a donor, shifted on a scale by the difference of the expectations.

    The rows are a mixture of normal distributions on the scale. A component is drawn given the known entries, and a
    donor that belongs to it. Within a component, expectations are linear in the known scores, so row and donor
    differ in expectation as their known scores do. If the rows are such a mixture, the draws have the exact
    conditional distribution. A gap of the row counts as hidden; one of a donor has the mean as its score, and stays
    a gap.
    """

    centred = True
    mixture: NormalMixture

    def tensors(self) -> dict[str, Tensor]:
        """Return the mixture."""
        mixture = self.mixture
        return {"shares": mixture.shares, "means": mixture.means, "covariances": mixture.covariances}

    def _prepare(self, donors: Donors, seed: int) -> None:
        super()._prepare(donors, seed)
        self._seed = seed
        self._scored = ScoredDonors.of(donors.rows, self._scale(donors), seed)
        self._slopes = self._scored.slopes(donors.outputs)

    def _learn(self, rows: SamplerRows, recipe: Recipe, run: Run) -> None:
        held_out = self._scored.scale.encode(rows.x_val).nan_to_num()
        self._finish(NormalMixture.fitted(self._scored.expected, held_out, self._seed))

    def _load(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self._finish(NormalMixture(**tensors))

    def _finish(self, mixture: NormalMixture) -> None:
        self.mixture = mixture
        self._members = ComponentDonors(mixture.joint_log_density(self._scored.expected).softmax(1))

    @staticmethod
    @abstractmethod
    def _scale(donors: Donors) -> ColumnScale:
        """Return the scale of the columns."""

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        scores = self._scored.encoded(x)
        known = self.donors.players.mask(s) & ~scores.isnan()
        z = scores.nan_to_num()
        (n, draws), columns = numbers.shape, x.shape[1]
        drawn, rows = z.new_empty(n, draws, columns), z.new_empty(n, draws, columns)
        expected = z.new_empty(n, 1, columns)
        for sets, members in rows_by_set(known, len(self.mixture) * (draws + 1) * columns):
            regressions = Regressions(self.mixture, sets)
            shares, expectations = regressions.expected(z[members])
            donors, component = self._members.chosen(shares, numbers[members])
            differences = z[members][:, :, None] - self._scored.expected[donors]
            shifts = regressions.shifts(differences.flatten(1, 2), component.flatten(1)).reshape(differences.shape)
            moved = shifts + self._scored.spread[donors]
            drawn[members], rows[members] = moved, self._scored.decoded(moved, donors)
            expected[members] = torch.einsum("snk,ksnd->snd", shares, expectations)[:, :, None]
        return Draws(rows, drawn - expected)


class CopulaSampler(RegressionSampler):
    """The Gaussian copula: normal scores are expected by linear regression on the known ones.

    Drawn numbers stay within the range of the donors.
    """

    kind = "copula"

    @staticmethod
    def _scale(donors: Donors) -> ColumnScale:
        return ColumnScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)


class NormalSampler(RegressionSampler):
    """Numbers are expected by linear regression on the known ones, as they are; categories by their normal scores.

    It is more precise than the copula for columns that are normal and highly correlated. Columns with many ties are
    treated as categories. Drawn numbers are clamped to the range of the donors, because a model extrapolates badly.
    """

    kind = "normal"

    @staticmethod
    def _scale(donors: Donors) -> ColumnScale:
        return StandardScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)
