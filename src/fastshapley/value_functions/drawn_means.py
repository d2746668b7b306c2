"""Weighted mean outputs of the model over drawn rows, for coalitions of any sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastshapley.value_functions.draws import DonorNumbers
from fastshapley.value_functions.samplers import ConditionalSampler

BLOCK_DRAWS = 1 << 14  # drawn rows that are built at once

Predict = Callable[[Tensor], Tensor]  # encoded rows (n, columns) -> the model's outputs (n, outputs)


@dataclass(frozen=True)
class Draw:
    """How rows are drawn for coalitions of one size.

    Attributes
    ----------
    sampler : ConditionalSampler or None
        What draws them; None for the grand coalition, whose rows are known.
    count : int
        The number of drawn rows of an evaluation; 0 if none are needed.
    weight : float
        The weight of their mean output.
    control : float
        The multiple of the sampler's controls that is subtracted from the outputs.
    """

    sampler: ConditionalSampler | None
    count: int
    weight: float
    control: float


@dataclass(frozen=True)
class DrawnMeans:
    """The weighted mean outputs of a model over rows that samplers complete.

    Attributes
    ----------
    predict : callable
        The model.
    outputs : int
        The number of its outputs.
    by_size : sequence of Draw
        How rows are drawn, from no players to all.
    numbers : DonorNumbers
        Which donors draws are made from.
    generator : torch.Generator or None
        The source of random draws. None draws the same rows for the same question.
    """

    predict: Predict
    outputs: int
    by_size: Sequence[Draw]
    numbers: DonorNumbers
    generator: torch.Generator | None = None

    def weights(self, s: Tensor) -> Tensor:
        """Return the weight of the mean for coalitions (n, m, players), (n, m, 1)."""
        table = [draw.weight if draw.count else 0.0 for draw in self.by_size]
        return torch.tensor(table, dtype=torch.float64, device=s.device)[s.sum(2)][..., None]

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return the weighted means for rows (n, columns) and coalitions (n, m, players), (n, m, outputs)."""
        n, m, _ = s.shape
        coalitions = s.flatten(0, 1)
        found = torch.zeros(n * m, self.outputs, dtype=torch.float64, device=x.device)
        row = torch.arange(n, device=x.device).repeat_interleave(m)
        starts = None if self.generator is None else self.numbers.random_starts(n, m, self.generator)
        waiting: list[_Drawn] = []
        for size, chosen in _same_sizes(coalitions.sum(1)):
            draw = self.by_size[size]
            if not draw.count:
                continue
            for part in chosen.split(max(1, BLOCK_DRAWS // draw.count)):
                rows, known = x[row[part]], coalitions[part]
                start = self.numbers.known_starts(rows, known) if starts is None else starts[part]
                drawn, control = self._drawn(draw, rows, known, start)
                if control is not None:
                    found[part] -= draw.weight * draw.control * control.mean(1).to(found)
                waiting.append(_Drawn(part, drawn, draw.weight))
                if sum(each.rows.shape[0] * each.rows.shape[1] for each in waiting) >= BLOCK_DRAWS:
                    self._add_means(found, waiting)
                    waiting = []
        self._add_means(found, waiting)
        return found.unflatten(0, (n, m))

    def _drawn(self, draw: Draw, rows: Tensor, known: Tensor, start: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return drawn rows (n, draws, columns), and their control where one is wanted."""
        if draw.sampler is None:
            return rows[:, None], None
        numbers = self.numbers.spaced(start, draw.count)
        return (
            draw.sampler.draw(rows, known, numbers) if draw.control else (draw.sampler(rows, known, numbers), None)
        )

    def _add_means(self, found: Tensor, parts: Sequence[_Drawn]) -> None:
        """Add the weighted mean outputs over drawn rows, by one call of the model."""
        if not parts:
            return
        rows = torch.cat([part.rows.flatten(0, 1) for part in parts])
        outputs = self.predict(rows).to(found)
        counts = [part.rows.shape[0] * part.rows.shape[1] for part in parts]
        for part, each in zip(parts, outputs.split(counts), strict=True):
            found[part.numbers] += part.weight * each.unflatten(0, (-1, part.rows.shape[1])).mean(1)


@dataclass(frozen=True)
class _Drawn:
    """Drawn rows (n, draws, columns) of some evaluations, the numbers (n,) of these, and the weight of the mean."""

    numbers: Tensor
    rows: Tensor
    weight: float


def _same_sizes(sizes: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each size that occurs, and where it does."""
    order = sizes.argsort(stable=True)
    found, counts = sizes[order].unique_consecutive(return_counts=True)
    yield from zip(found.tolist(), order.split(counts.tolist()), strict=True)
