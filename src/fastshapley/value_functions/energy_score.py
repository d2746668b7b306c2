"""The energy score: how well drawn rows describe the distribution that a row comes from.

It is the mean distance of the draws to the row minus half the mean distance between draws. Whatever the model is,
its expectation is smallest for draws from the true conditional distribution. It needs far fewer rows than the MSEv
to tell good samplers from better ones, because most of the MSEv is variance that no game explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fastshapley.value_functions.column_scores import ColumnScores
from fastshapley.value_functions.samplers import Donors, leading_output


@dataclass(frozen=True)
class EnergyScore:
    """The energy score on the scale of normal scores, on which all columns count alike.

    Attributes
    ----------
    scale : ColumnScores
        The scale.
    """

    scale: ColumnScores

    @classmethod
    def of(cls, donors: Donors) -> Self:
        """Return the score on the scale of donors."""
        return cls(ColumnScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete))

    def __call__(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Return the score of the draws for each row; lower is better.

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            Encoded rows.
        drawn : Tensor of shape (n, draws, columns)
            Draws in which entries that were known are those of the row. There must be at least two.

        Returns
        -------
        Tensor of shape (n,)
            The scores. A gap counts as the middle of its column.
        """
        n, draws, _ = drawn.shape
        row = self.scale.encode(x).nan_to_num()[:, None]
        samples = self.scale.encode(drawn.flatten(0, 1)).nan_to_num().unflatten(0, (n, draws))
        to_row = torch.linalg.vector_norm(samples - row, dim=2).mean(1)
        apart = torch.cdist(samples, samples, compute_mode="donot_use_mm_for_euclid_dist").sum((1, 2))
        return to_row - apart / (2 * draws * (draws - 1))
