"""What the explainer network learns from, and what chooses its best epoch.

`prepare_training` evaluates coalitions once where that is affordable: enough of them per row to estimate Shapley
values (`EstimatedValues`), or a few per row (`KeptCoalitions`). The paper's recipe draws new ones in every step
(`FreshCoalitions`). `prepare_validation` evaluates coalitions of held-out rows.
"""

from __future__ import annotations

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastshapley.coalitions import pair_weights, sample_kernel, sample_pairs
from fastshapley.data.augmentation import mix_rows
from fastshapley.data.stream import Rows, some
from fastshapley.estimators.kernel import leverage_values
from fastshapley.fit.budget import coalition_seconds, validation_rows, validation_seconds
from fastshapley.objective import coalition_loss
from fastshapley.training.recipes import Recipe, Targets
from fastshapley.training.run import Run, Timing
from fastshapley.value_functions.background_sampling import Thin
from fastshapley.value_functions.base_game import cost, is_concurrent, new_rows_of, parts_of, shared_coalitions
from fastshapley.value_functions.protocol import ValueFunction, evaluate, grand_values, null_values, total_values

logger = logging.getLogger(__name__)

BLOCK_CALLS = 1 << 18  # model calls between two looks at the clock, the progress bar and the disk
LIMITED_BLOCKS = 8  # with a time limit, blocks are smaller by this factor
BLOCK_ENTRIES = 1 << 24  # entries of the rows of a block, at most
BLOCK_IMAGES = 1024  # images of a block, at least
GRAND_ROWS = 4096  # rows whose grand values are evaluated in one call
COARSEST_TARGETS = 8  # coalitions per player, below which values are not estimated
DRAWN_SHARE = 0.75  # share of new rows that a game draws, if it can; the others are mixed, and may be unusual
MOST_THREADS = 8  # that evaluate a network of ours

Batch = tuple[Tensor, Tensor]  # the numbers of some rows, and the rows


@dataclass(frozen=True)
class TrainingRows:
    """The rows of a fit, and what is needed to make more of them.

    Attributes
    ----------
    x : Tensor or Stream
        Encoded rows to train on.
    x_val : Tensor or Stream
        Encoded rows that choose the best epoch.
    discrete : sequence of bool
        Which columns do not hold numbers; empty for images.
    owner : sequence of int
        The player of each column or pixel; empty if the players are not columns.
    """

    x: Rows
    x_val: Rows
    discrete: Sequence[bool] = ()
    owner: Sequence[int] = ()


@dataclass(frozen=True)
class TrainingSet(ABC):
    """Rows with what their values sum to, and the loss of values for some of them.

    Attributes
    ----------
    x : Tensor or Stream
        Encoded rows.
    total : Tensor
        Grand minus null of each row, (n, outputs).
    """

    x: Rows
    total: Tensor

    @abstractmethod
    def loss(self, phi: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the loss of the values ``phi`` (b, players, outputs) for a batch of rows."""


@dataclass(frozen=True)
class EstimatedValues(TrainingSet):
    """Rows whose Shapley values were estimated, (n, players, outputs)."""

    values: Tensor

    def loss(self, phi: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the mean squared distance to the estimated values."""
        return (phi - self.values[batch[0]]).square().mean()


@dataclass(frozen=True)
class KeptCoalitions(TrainingSet):
    """Rows with a few pairs of coalitions that were evaluated once.

    ``first`` (n, m / 2, players) holds the first coalition of each pair, and ``worth`` (n, m, outputs) the values
    v(s) - v(0) of these and then of their complements.
    """

    first: Tensor
    worth: Tensor

    def loss(self, phi: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the paper's loss on the coalitions of each row."""
        s = torch.cat([self.first[batch[0]], ~self.first[batch[0]]], dim=1)
        return coalition_loss(phi, s, self.worth[batch[0]], pair_weights(s))


@dataclass(frozen=True)
class FreshCoalitions(TrainingSet):
    """Rows whose coalitions are drawn and evaluated anew in every step, as in the paper."""

    thin: Thin
    scale: Tensor
    recipe: Recipe

    def loss(self, phi: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        """Return the paper's loss on new coalitions."""
        count, per_step = self.recipe.coalitions, self.recipe.outputs_per_step
        game = self.thin(count, generator)
        s = sample_kernel(len(batch[1]), count, game.players, generator, paired=self.recipe.paired)
        worth = (_worth(game, batch[1], s)[1] / self.scale).float()
        if per_step is not None and per_step < phi.shape[2]:
            chosen = torch.randperm(phi.shape[2], generator=generator, device=generator.device)[:per_step]
            phi, worth = phi[..., chosen], worth[..., chosen]
        return coalition_loss(phi, s, worth)


@dataclass(frozen=True)
class ValidationSet:
    """Held-out rows with evaluated coalitions, which choose the best epoch.

    Attributes
    ----------
    x : Tensor
        Encoded rows.
    total : Tensor
        Grand minus null, (n, outputs).
    s : Tensor
        Coalitions, (n, m, players).
    worth : Tensor
        v(s) - v(0), (n, m, outputs).
    pace : float
        Seconds per row that the model, or the surrogate, was called with; the mean over all processes, so that all
        of them make the same plans.
    """

    x: Tensor
    total: Tensor
    s: Tensor
    worth: Tensor
    pace: float


def prepare_validation(thin: Thin, x: Rows, recipe: Recipe, run: Run, name: str = "examination") -> ValidationSet:
    """Evaluate coalitions of held-out rows; of fewer rows where evaluations are slow or limited.

    Parameters
    ----------
    thin : callable
        The game, for a number of coalitions per row and a generator.
    x : Tensor or Stream
        Encoded validation rows.
    recipe : Recipe
        The number of rows and of coalitions.
    run : Run
        The time, the random numbers and the place for unfinished work.
    name : str
        The name of the saved state.

    Returns
    -------
    ValidationSet
    """
    generator = run.generator("explainer validation")
    game = thin(recipe.validation_coalitions, generator)
    chosen = torch.randperm(len(x), generator=generator, device=x.device)[: validation_rows(game, recipe)]
    rows = x[chosen]
    saved: dict[str, Any] | None = run.checkpoint.load(name)
    if saved is None:
        clock = run.clock.part(validation_seconds(recipe.targets, run.clock.left()))
        parts, done, shared = [], 0, shared_coalitions(game)
        while done < len(rows) and (not done or clock.left()):
            part = rows[done : 2 * done + 1]
            groups = -(-len(part) // shared)
            s = sample_kernel(groups, recipe.validation_coalitions, game.players, generator)
            s = s.repeat_interleave(shared, dim=0)[: len(part)]
            total, worth = _worth(game, part, s)
            parts.append((total, s, worth))
            done += len(part)
        total, s, worth = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
        pace = clock.elapsed() / (s[..., 0].numel() * cost(game))
        saved = {"total": total, "s": s, "worth": worth, "pace": pace}
        run.checkpoint.save(name, saved)
    total, s, worth = (saved[part].to(x.device) for part in ("total", "s", "worth"))
    return ValidationSet(rows[: len(s)], total, s, worth, run.processes.average(saved["pace"]))


def prepare_training(
    thin: Thin, rows: TrainingRows, scale: Tensor, pace: float, recipe: Recipe, run: Run
) -> TrainingSet:
    """Evaluate what the network learns from, in units of ``scale``.

    Parameters
    ----------
    thin : callable
        The game, for a number of coalitions per row and a generator.
    rows : TrainingRows
        The rows at hand.
    scale : Tensor
        The size of a typical value of each output, (outputs,).
    pace : float
        Seconds per row that the model, or the surrogate, is called with.
    recipe : Recipe
        How many coalitions to evaluate. Without ``targets`` none are: they are drawn in every step.
    run : Run
        The time, the random numbers and the place for unfinished work.

    Returns
    -------
    TrainingSet
    """
    game, x = thin(recipe.coalitions, run.generator("lesson")), rows.x
    if recipe.targets is None:
        size = max(BLOCK_IMAGES // 16, min(GRAND_ROWS, BLOCK_ENTRIES // x[:1].numel()))
        total = torch.cat([total_values(game, part) for part in x.split(size)])
        return FreshCoalitions(x, (total / scale).float(), thin, scale, recipe)
    threads = available_threads(game, run.device)
    plan = _plan(thin, game.players, recipe, pace / threads, len(x), run)
    x = affordable_rows(game, rows, plan.rows, recipe.targets, run)

    def estimate(x: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        found = [
            leverage_values(part.game, x, part.coalitions // 2, generator)
            for part in parts_of(thin(plan.wanted, generator), plan.wanted)
        ]
        values, total = (torch.stack(column).sum(0) for column in zip(*found, strict=True))
        return (total / scale).float(), (values / scale).float()

    def keep(part: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        first = sample_pairs(len(part), plan.wanted, game.players, generator)
        total, worth = _worth(thin(plan.wanted, generator), part, torch.cat([first, ~first], dim=1))
        return (total / scale).float(), first, (worth / scale).float()

    if not plan.targets:
        logger.info(
            "Evaluations are expensive: %d coalitions per row are evaluated once, for %d rows", plan.wanted, len(x)
        )
    seconds = coalition_seconds(recipe.targets, run.clock.left())
    compute, block = estimate if plan.targets else keep, _block(x, plan.calls, run)
    total, *parts = evaluate_blocks(x, block, threads, run, seconds, compute)
    run.timings["coalitions"] = replace(run.timings["coalitions"], units=len(total) * plan.calls)
    x = some(x, torch.arange(len(total), device=x.device))
    return EstimatedValues(x, total, *parts) if plan.targets else KeptCoalitions(x, total, *parts)


def _worth(value_function: ValueFunction, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return grand minus null, (n, outputs), and v(x, s) - v(x, 0), (n, m, outputs)."""
    null = null_values(value_function, x)
    return grand_values(value_function, x) - null, evaluate(value_function, x, s) - null[:, None]


@dataclass(frozen=True)
class _Plan:
    """How many coalitions are evaluated for how many rows.

    ``wanted`` are the coalitions per row, if there are as many, ``calls`` the model calls per row, and ``targets``
    says whether these are enough to estimate values.
    """

    rows: int
    wanted: int
    calls: int
    targets: bool


def _plan(thin: Thin, players: int, recipe: Recipe, pace: float, rows: int, run: Run) -> _Plan:
    """Return the plan for ``rows`` rows at hand."""
    options = recipe.targets
    assert options is not None
    saved: dict[str, Any] | None = run.checkpoint.load("plan")
    if saved is None:
        seconds = coalition_seconds(options, run.clock.left())

        def plan(wanted: int, *, targets: bool) -> _Plan:
            game = thin(wanted, run.generator("plan"))
            evaluations = calls = cost(game) * wanted
            if targets:
                parts = parts_of(game, wanted)
                each = [cost(part.game) * min(part.coalitions, 1 << players) for part in parts]
                evaluations, calls = sum(each), each[-1]  # The last part is the one that calls the model.
            affordable = min(options.evaluations // evaluations, seconds / max(pace, 1e-12) // calls)
            return _Plan(max(1, int(affordable)), wanted, calls, targets)

        per_player = options.coalitions
        found = plan(2 * (per_player * players // 2), targets=True)
        while found.rows < options.fewest and per_player >= 2 * COARSEST_TARGETS:
            per_player //= 2
            found = plan(2 * (per_player * players // 2), targets=True)
        most = max(rows, options.rows)
        if found.rows < options.fewest:
            few = max(2, recipe.coalitions - recipe.coalitions % 2)
            found = plan(few, targets=False)
            if found.rows > most:  # there are not as many rows: more coalitions of each
                found = plan(few * (found.rows // most), targets=False)
        saved = asdict(found)
        run.checkpoint.save("plan", saved)
    return _Plan(**saved)


def affordable_rows(game: ValueFunction, rows: TrainingRows, affordable: int, options: Targets, run: Run) -> Rows:
    """Return as many rows as are affordable: some of those at hand, or more, drawn by the game and mixed."""
    x, generator = rows.x, run.generator("rows")
    if affordable < len(x):
        return some(x, torch.randperm(len(x), generator=generator, device=x.device)[:affordable])
    more = min(affordable, options.rows) - len(x)
    if more <= 0 or not isinstance(x, Tensor):
        return x
    drawn = new_rows_of(game, x, int(DRAWN_SHARE * more), generator) if x.ndim == 2 else None
    if drawn is None:
        drawn = x[:0]
    more -= len(drawn)
    flat = x.flatten(1)  # each channel of a pixel belongs to the pixel's player
    channels = flat.shape[1] // len(rows.owner) if rows.owner else 1
    discrete = rows.discrete or [False] * flat.shape[1]
    mixed = mix_rows(flat, more, discrete, generator, [*rows.owner] * channels)
    return torch.cat([x, drawn, mixed.to(x.dtype).reshape(more, *x.shape[1:])])


def evaluate_blocks(
    x: Rows,
    block: int,
    threads: int,
    run: Run,
    seconds: float,
    compute: Callable[[Tensor, torch.Generator], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Apply ``compute`` to blocks of rows, each with a seed and a saved state of its own, on several threads.

    Blocks that are not done after ``seconds`` are left out.
    """
    blocks = torch.arange(len(x), device=x.device).split(block)

    def one(number: int) -> list[Tensor]:
        name = f"coalitions {number}"
        saved = run.checkpoint.load(name)
        if saved is None:
            saved = {"parts": [part.cpu() for part in compute(x[blocks[number]], run.generator(name))]}
            run.checkpoint.save(name, saved)
        return [part.to(x.device) for part in saved["parts"]]

    parts, clock = [], run.clock.part(seconds)
    total = sum(map(len, blocks))
    with run.bar(total, "coalitions", "row") as bar, closing(_each(one, len(blocks), threads)) as results:
        for number, part in enumerate(results):
            parts.append(part)
            bar.update(len(blocks[number]))
            if not clock.left():
                break
    found = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    run.timings["coalitions"] = Timing(clock.elapsed(), clock.seconds)
    return found


def _block(x: Rows, calls: int, run: Run) -> int:
    """Return the rows of a block, each of which takes a number of calls of the model or the surrogate."""
    limit = max(BLOCK_IMAGES, min(BLOCK_CALLS, BLOCK_ENTRIES // x[:1].numel()))
    return max(1, (limit if run.clock.seconds == math.inf else limit // LIMITED_BLOCKS) // calls)


def _each(compute: Callable[[int], list[Tensor]], count: int, threads: int) -> Generator[list[Tensor], None, None]:
    """Yield ``compute(number)`` for each number below ``count``, in order."""
    if threads == 1:
        yield from map(compute, range(count))
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(compute, range(count))
    finally:
        pool.shutdown(cancel_futures=True)


def available_threads(value_function: ValueFunction, device: torch.device, most: int = MOST_THREADS) -> int:
    """Return how many threads may evaluate a game at once.

    A network of ours is evaluated on every processor. A model of the user's is called by one thread.
    """
    if device.type != "cpu" or not is_concurrent(value_function):
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(most, available)
