"""Which sampler draws the rows that are closest to real ones: one of several, or two that share the draws.

Samplers are compared by the energy score of their rows on held-out rows. It is far less noisy than the MSEv of the
games, and needs no calls of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastshapley.coalitions import subsets
from fastshapley.training.run import Clock
from fastshapley.value_functions.energy_score import EnergyScore
from fastshapley.value_functions.game_choice import DIFFERENT, knots
from fastshapley.value_functions.samplers import BlendSampler, ConditionalSampler

DRAWS = 16  # drawn rows per coalition
EVALUATED = 4096  # coalitions of all rows, at most
ENTRIES = 1 << 22  # numbers in all rows that one sampler draws, at most
FEWEST, MOST = 2, 8  # coalitions of each size per row
LARGEST_PART = 4  # binary logarithm of the largest number of rows between two looks at the clock
SHORT = 0.2  # seconds up to which a sampler is never too slow


@dataclass(frozen=True)
class SamplerChoice:
    """The result of `choose_sampler`.

    Attributes
    ----------
    numbers : tuple of int
        The number of the best sampler, or the numbers of the best two if they may be better together.
    kept : tuple of int
        The numbers of the samplers that are fast enough.
    pace : float
        The seconds that drawing a row takes, on average over these.
    """

    numbers: tuple[int, ...]
    kept: tuple[int, ...]
    pace: float = 0.0


def choose_sampler(
    samplers: Sequence[ConditionalSampler],
    x: Tensor,
    generator: torch.Generator,
    clock: Clock,
    slowest: float = math.inf,
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
        The time that this may take. At least one row is compared.
    slowest : float
        The seconds that drawing a row may take. The fastest sampler may always be chosen.
    """
    if len(samplers) == 1:
        return SamplerChoice((0,), (0,))
    donors = samplers[0].donors
    rows, s = _questions(x, len(donors.players), generator)
    # The score is that of independent draws. Evenly spaced ones would favour samplers that keep them apart.
    numbers = torch.randint(len(donors), (*s.shape[:2], DRAWS), generator=generator, device=x.device)
    score = EnergyScore.of(donors)
    tried = [_Trial(number) for number in range(len(samplers))]
    parts, drawn = [], 0
    sizes = _growing(len(rows))
    for part in zip(x[rows].split(sizes), s.split(sizes), numbers.split(sizes), strict=True):
        parts.append(part)
        drawn += part[2].numel()
        for trial in tried:
            before = clock.elapsed()
            completed = _drawn(samplers[trial.number], *part)
            trial.seconds += clock.elapsed() - before
            trial.energies.append(_energy(score, part[0], completed))
        fast = [trial for trial in tried if trial.seconds < SHORT or trial.seconds <= slowest * drawn]
        tried = fast or [min(tried, key=lambda trial: trial.seconds)]
        if clock.left() <= 0:
            break
    kept = tuple(trial.number for trial in tried)
    pace = sum(trial.seconds for trial in tried) / (drawn * len(tried))
    best, *others = sorted(tried, key=_Trial.total)
    if not others:
        return SamplerChoice((best.number,), kept, pace)
    both = best.number, others[0].number
    blend = BlendSampler(samplers[both[0]], samplers[both[1]], both)
    together = torch.cat([_energy(score, part[0], _drawn(blend, *part)) for part in parts])
    loss = together - torch.cat(best.energies)
    alone = float(loss.mean()) > DIFFERENT * float(loss.std(correction=0)) / len(loss) ** 0.5
    return SamplerChoice((best.number,) if alone else both, kept, pace)


@dataclass
class _Trial:
    """The energy scores of one sampler, (n,) for each part of the rows, and the time that they took."""

    number: int
    energies: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0

    def total(self) -> float:
        return float(torch.cat(self.energies).mean())


def _growing(rows: int) -> list[int]:
    """Return the sizes of parts of rows, which grow: the first one says early how fast samplers are."""
    sizes: list[int] = []
    while (left := rows - sum(sizes)) > 0:
        sizes.append(min(left, 1 << min(len(sizes), LARGEST_PART)))
    return sizes


def _questions(x: Tensor, players: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the numbers of rows (n,) and coalitions (n, m, players), equally many for each size of `knots`."""
    sizes = torch.tensor(knots(players), device=x.device)
    most = max(FEWEST * len(sizes), min(EVALUATED, ENTRIES // (DRAWS * x.shape[1])))
    rows = torch.randperm(len(x), generator=generator, device=x.device)[: most // (FEWEST * len(sizes))]
    each = min(MOST, most // (len(rows) * len(sizes)))
    return rows, subsets(sizes.repeat(len(rows), each), players, generator)


def _drawn(sampler: ConditionalSampler, x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
    """Return completed rows (n * m, draws, columns) of coalitions (n, m, players)."""
    return sampler(x.repeat_interleave(s.shape[1], 0), s.flatten(0, 1), numbers.flatten(0, 1))


def _energy(score: EnergyScore, x: Tensor, drawn: Tensor) -> Tensor:
    """Return the mean energy score of drawn rows (n * m, draws, columns) for each row, (n,)."""
    m = len(drawn) // len(x)
    return score(x.repeat_interleave(m, 0), drawn).unflatten(0, (-1, m)).mean(1)
