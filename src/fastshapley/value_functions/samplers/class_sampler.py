"""The sampler that takes hidden entries from donors of the same latent class."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.column_scores import ColumnScores
from fastshapley.value_functions.samplers.conditional_sampler import (
    ConditionalSampler,
    Donors,
    Draws,
    SamplerRows,
    ScoredDonors,
    leading_output,
)
from fastshapley.value_functions.samplers.latent_classes import ColumnLevels, LatentClasses
from fastshapley.value_functions.samplers.mixture import ComponentDonors

FEWEST_COLUMNS = 2  # columns of few values without which classes say little
MOST_INDICATORS = 1 << 22  # numbers in the largest array while classes are learnt


class ClassSampler(ConditionalSampler):
    """Hidden entries are those of a donor that belongs to the same latent class.

    Within a class, columns are nearly independent of each other. A class is drawn given the known entries, and a
    donor that belongs to it. All hidden entries come from one donor, so what they have to do with each other is
    kept. This suits categories and columns of few values. Numbers count by the eighth of the rows that they are in.
    """

    kind = "classes"
    centred = True
    classes: LatentClasses

    def suits(self, donors: Donors) -> bool:
        """Return whether there are at least two columns of few values."""
        scores = ColumnScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)
        return int((ColumnLevels(scores).few & (scores.counts > 1)).sum()) >= FEWEST_COLUMNS

    def tensors(self) -> dict[str, Tensor]:
        """Return the classes."""
        return {"shares": self.classes.shares, "probabilities": self.classes.probabilities}

    def _prepare(self, donors: Donors, seed: int) -> None:
        super()._prepare(donors, seed)
        self._seed = seed
        scale = ColumnScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)
        self._levels = ColumnLevels(scale)
        scored = ScoredDonors.of(donors.rows, scale, seed)
        self._slopes, self._scores = scored.slopes(donors.outputs), scored.expected

    def _learn(self, rows: SamplerRows, recipe: Recipe, run: Run) -> None:
        most = max(1, MOST_INDICATORS // self._levels.width)
        z, z_val = (self._levels.indicators(x[:most]) for x in (rows.x, rows.x_val))
        self._finish(LatentClasses.fitted(z, z_val, self._seed))

    def _load(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        self._finish(LatentClasses(**tensors))

    def _finish(self, classes: LatentClasses) -> None:
        self.classes = classes
        self._evidence = classes.probabilities.double().log().T.contiguous()  # (levels, classes)
        levels, valid = self._levels.of(self.donors.rows)
        membership = self._shares(levels, valid)
        self._members = ComponentDonors(membership)
        self._means = membership.T @ self._scores / membership.sum(0)[:, None]

    def _shares(self, levels: Tensor, known: Tensor) -> Tensor:
        """Return the probabilities of the classes given known levels, (n, classes)."""
        evidence = (self._evidence[levels] * known[..., None]).sum(1)
        return (self.classes.shares.double().log() + evidence).softmax(1)

    def _width(self) -> int:
        return max(super()._width(), super()._width() * len(self.classes) // 8)

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        levels, valid = self._levels.of(x)
        shares = self._shares(levels, valid & self.donors.players.mask(s))
        donors, _ = self._members.chosen(shares, numbers)
        return Draws(self.donors.rows[donors], self._scores[donors] - (shares @ self._means)[:, None])
