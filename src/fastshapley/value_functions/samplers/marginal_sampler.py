"""The sampler that ignores what is known."""

from __future__ import annotations

from torch import Tensor

from fastshapley.value_functions.samplers.conditional_sampler import ConditionalSampler


class MarginalSampler(ConditionalSampler):
    """Hidden entries are those of a donor, whatever is known."""

    kind = "marginal"

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
        return self.donors.rows[numbers]
