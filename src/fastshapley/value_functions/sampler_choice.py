"""Which sampler draws the rows that are closest to real ones: one of several, or two that share the draws.

Samplers are compared by the energy score of their rows on held-out rows. It is far less noisy than the MSEv of the
games, and needs no calls of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fastshapley.coalitions import subsets
from fastshapley.training.run import Clock
from fastshapley.value_functions.column_scores import BLOCK_ENTRIES
from fastshapley.value_functions.energy_score import EnergyScore
from fastshapley.value_functions.game_choice import DIFFERENT, knots
from fastshapley.value_functions.samplers import BlendSampler, ConditionalSampler

DRAWS = 16  # drawn rows per coalition
EVALUATED = 4096  # coalitions of all rows, at most
ENTRIES = 1 << 22  # numbers in all rows that one sampler draws, at most
FEWEST, MOST = 2, 8  # coalitions of each size per row
TIMED_ROWS = 8  # rows after which the time is checked


@dataclass(frozen=True)
class SamplerChoice:
    """The result of `choose_sampler`.

    Attributes
    ----------
    numbers : tuple of int
        The number of the best sampler, or the numbers of the best two if they may be better together.
    pace : float
        The seconds that drawing a row takes, on average over the samplers.
    """

    numbers: tuple[int, ...]
    pace: float = 0.0


def choose_sampler(
    samplers: Sequence[ConditionalSampler], x: Tensor, generator: torch.Generator, clock: Clock
) -> SamplerChoice:
    """Return the best sampler, or the best two.

    Parameters
    ----------
    samplers : sequence of ConditionalSampler
        The samplers, which share their donors.
    x : Tensor of shape (n, columns)
        Encoded held-out rows.
    generator : torch.Generator
        The source of random numbers.
    clock : Clock
        The time that this may take. At least a few rows are compared.
    """
    if len(samplers) == 1:
        return SamplerChoice((0,))
    donors = samplers[0].donors
    rows, s = _questions(x, len(donors.players), generator)
    # The score is that of independent draws. Evenly spaced ones would favour samplers that keep them apart.
    numbers = torch.randint(len(donors), (*s.shape[:2], DRAWS), generator=generator, device=x.device)
    energy = partial(_energy, EnergyScore.of(donors))
    compared, before = [], clock.elapsed()
    for part in zip(x[rows].split(TIMED_ROWS), s.split(TIMED_ROWS), numbers.split(TIMED_ROWS), strict=True):
        compared.append((part, torch.stack([energy(sampler, *part) for sampler in samplers])))
        if clock.left() <= 0:
            break
    drawn = sum(part[2].numel() for part, _ in compared) * len(samplers)
    pace = (clock.elapsed() - before) / drawn
    energies = torch.cat([found for _, found in compared], dim=1)
    totals = energies.mean(1).tolist()
    first, second = sorted(range(len(samplers)), key=lambda number: totals[number])[:2]
    blend = BlendSampler(samplers[first], samplers[second], (first, second))
    loss = torch.cat([energy(blend, *part) - found[first] for part, found in compared])
    alone = float(loss.mean()) > DIFFERENT * float(loss.std()) / len(loss) ** 0.5
    return SamplerChoice((first,) if alone else blend.numbers, pace)


def _questions(x: Tensor, players: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the numbers of rows (n,) and coalitions (n, m, players), equally many for each size of `knots`."""
    sizes = torch.tensor(knots(players), device=x.device)
    most = max(FEWEST * len(sizes), min(EVALUATED, ENTRIES // (DRAWS * x.shape[1])))
    rows = torch.randperm(len(x), generator=generator, device=x.device)[: most // (FEWEST * len(sizes))]
    each = min(MOST, most // (len(rows) * len(sizes)))
    return rows, subsets(sizes.repeat(len(rows), each), players, generator)


def _energy(score: EnergyScore, sampler: ConditionalSampler, x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
    """Return the mean energy score of the rows that a sampler completes, for each row, (n,)."""
    m = s.shape[1]
    size = max(1, BLOCK_ENTRIES // (DRAWS * m * x.shape[1]))
    found = []
    for row, known, number in zip(x.split(size), s.split(size), numbers.split(size), strict=True):
        given = row.repeat_interleave(m, 0)
        drawn = sampler(given, known.flatten(0, 1), number.flatten(0, 1))
        found.append(score(given, drawn).unflatten(0, (-1, m)).mean(1))
    return torch.cat(found)
