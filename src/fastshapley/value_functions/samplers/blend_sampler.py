"""Two samplers that share the draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastshapley.value_functions.samplers.conditional_sampler import ConditionalSampler, Draws


class BlendSampler(ConditionalSampler):
    """Half of the donors belong to each of two samplers, which have been fitted with the same donors.

    If both samplers are about as far from the true distribution, in different ways, their mean is closer to it.

    Parameters
    ----------
    first, second : ConditionalSampler
        The samplers.
    numbers : tuple of int
        Their numbers in the list of samplers, from which a file restores them.
    """

    kind = "blend"

    def __init__(self, first: ConditionalSampler, second: ConditionalSampler, numbers: tuple[int, int]) -> None:
        self.parts, self.numbers = (first, second), numbers
        self.donors = first.donors
        self.centred = first.centred and second.centred
        # One of each two neighbours belongs to the second sampler. Which one is random: draws are evenly spaced.
        pairs = torch.randint(2, (len(self.donors) // 2 + 1,), generator=torch.Generator().manual_seed(0))
        self._second = torch.stack([pairs, 1 - pairs], dim=1).flatten().bool().to(self.donors.rows.device)

    def config(self) -> dict[str, Any]:
        """Return the numbers of the samplers."""
        return {"kind": self.kind, "numbers": list(self.numbers)}

    def draw(self, x: Tensor, s: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """Complete rows, and return a control if both samplers have one."""
        if not all(part.has_control for part in self.parts):
            return self(x, s, numbers), None

        def both(part: ConditionalSampler, x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
            rows, control = part.draw(x, s, numbers)
            assert control is not None
            return torch.cat([rows, control.to(rows)], dim=-1)

        found = self._shared(x, s, numbers, both)
        return found[..., : x.shape[1]], found[..., x.shape[1] :]

    def _width(self) -> int:
        return max(part._width() for part in self.parts)

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        return Draws(self._shared(x, s, numbers, lambda part, *given: part(*given)))

    def _shared(self, x: Tensor, s: Tensor, numbers: Tensor, compute: Callable[..., Tensor]) -> Tensor:
        """Apply a function to the draws of each sampler: those whose donors it has.

        What samplers compute for a row serves all its draws, so both complete all of several draws.
        """
        second = self._second[numbers]
        if numbers.shape[1] > 1:
            of_first, of_second = (compute(part, x, s, numbers) for part in self.parts)
            return torch.where(second[..., None], of_second, of_first)
        found, order = [], []
        for part, mine in zip(self.parts, (~second[:, 0], second[:, 0]), strict=True):
            rows = mine.nonzero()[:, 0]
            found.append(compute(part, x[rows], s[rows], numbers[rows]))
            order.append(rows)
        return torch.cat(found)[torch.cat(order).argsort()]
