"""What an explainer learns from: rows with estimated values, or rows with coalitions."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fastshapley.coalitions import pair_weights, sample_kernel, sample_pairs
from fastshapley.data.augmentation import mix_rows
from fastshapley.data.stream import Rows, some
from fastshapley.estimators.kernel import leverage_values
from fastshapley.objective import coalition_loss
from fastshapley.training.recipes import Recipe, Targets
from fastshapley.training.run import Run, Timing
from fastshapley.value_functions.background_sampling import Thin
from fastshapley.value_functions.base_game import cost, is_concurrent
from fastshapley.value_functions.protocol import ValueFunction, evaluate, grand_values, null_values, total_values

logger = logging.getLogger(__name__)

_BLOCK = 1 << 18  # rows that the model or the surrogate is called with between two looks at the bar and the disk,
_ENTRIES, _IMAGES = 1 << 24, 1024  # at most; fewer of so many entries, but for so many images
_PART = 4096  # rows whose grand values are asked for in one call
_COARSEST = 8  # coalitions a player for targets, where fewer than asked for are affordable
_LOOK = 1 / 120  # of a lesson's seconds, for validation: then evaluations are dear, and the rows enough
_EXAMINATION = 0.1  # of the time that is left, at most
_SHARE = 0.4  # of the time that is left, to evaluate coalitions; the rest is for learning from them
_THREADS = 8  # at most

Batch = tuple[Tensor, Tensor]  # the numbers of some rows, and the rows
Loss = Callable[[Tensor, Batch, torch.Generator], Tensor]  # of values, for a batch


@dataclass(frozen=True)
class Lesson:
    """Rows x, grand minus null (n, outputs) of each, and the loss of values for some of them."""

    x: Rows
    total: Tensor
    loss: Loss


@dataclass(frozen=True)
class Examination:
    """Rows x with grand minus null, coalitions s (n, m, players) and v(s) - v(0) (n, m, outputs).

    They choose the best epoch; ``pace`` is the seconds that one row took that the model, or the surrogate, was
    called with: a team's, on average, so that all make the same plans.
    """

    x: Tensor
    total: Tensor
    s: Tensor
    worth: Tensor
    pace: float


def prepare_examination(thin: Thin, x: Rows, recipe: Recipe, run: Run, name: str = "examination") -> Examination:
    """Evaluate coalitions of some of the rows ``x``; of fewer where evaluations are dear."""
    generator = run.generator("explainer validation")
    game = thin(recipe.validation_coalitions, generator)
    x = x[torch.randperm(len(x), generator=generator, device=x.device)[: _most_rows(game, recipe)]]
    saved: dict[str, Any] | None = run.checkpoint.load(name)
    if saved is None:
        seconds = math.inf if recipe.targets is None else _LOOK * recipe.targets.seconds
        clock = run.clock.part(min(seconds, _EXAMINATION * run.clock.left()))
        parts, done = [], 0
        while done < len(x) and (not done or clock.left()):
            part = x[done : 2 * done + 1]
            s = sample_kernel(len(part), recipe.validation_coalitions, game.players, generator)
            total, worth = _worth(game, part, s)
            parts.append((total, s, worth))
            done += len(part)
        total, s, worth = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
        pace = clock.elapsed() / (s[..., 0].numel() * cost(game))
        saved = {"total": total, "s": s, "worth": worth, "pace": pace}
        run.checkpoint.save(name, saved)
    total, s, worth = (saved[name].to(x.device) for name in ("total", "s", "worth"))
    return Examination(x[: len(s)], total, s, worth, run.processes.average(saved["pace"]))


def prepare_lesson(
    thin: Thin,
    x: Rows,
    scale: Tensor,
    pace: float,
    recipe: Recipe,
    run: Run,
    discrete: Sequence[bool],
    owner: Sequence[int],
) -> Lesson:
    """Rows to learn from, in units of ``scale``: by targets where they are affordable, else by the paper's loss."""

    def fresh_loss(phi: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        game, count = thin(recipe.coalitions, generator), recipe.coalitions
        s = sample_kernel(len(batch[1]), count, game.players, generator, paired=recipe.paired)
        worth = (_worth(game, batch[1], s)[1] / scale).float()
        if recipe.outputs_per_step is not None and recipe.outputs_per_step < phi.shape[2]:
            order = torch.randperm(phi.shape[2], generator=generator, device=generator.device)
            pick = order[: recipe.outputs_per_step]
            phi, worth = phi[..., pick], worth[..., pick]
        return coalition_loss(phi, s, worth)

    def keep(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        first = sample_pairs(len(x), plan.wanted, game.players, generator)
        total, worth = _worth(thin(plan.wanted, generator), x, torch.cat([first, ~first], dim=1))
        return (total / scale).float(), first, (worth / scale).float()

    def estimate(x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        values, total = leverage_values(thin(plan.wanted, generator), x, plan.wanted // 2, generator)
        return (total / scale).float(), (values / scale).float()

    game = thin(recipe.coalitions, run.generator("lesson"))
    if recipe.targets is None:
        size = max(_IMAGES // 16, min(_PART, _ENTRIES // x[:1].numel()))
        total = torch.cat([total_values(game, part) for part in x.split(size)])
        return Lesson(x, (total / scale).float(), fresh_loss)
    threads = available_threads(game, run.device)
    plan = _plan(thin, game.players, recipe.targets, recipe.coalitions, pace / threads, len(x), run)
    x = _rows(x, plan.rows, recipe.targets, run, discrete, owner)
    if plan.targets:
        total, targets = _evaluate(x, plan.calls, threads, run, recipe.targets.seconds, estimate)
        x = some(x, torch.arange(len(total), device=x.device))
        return Lesson(x, total, lambda phi, batch, g: (phi - targets[batch[0]]).square().mean())
    logger.info("evaluations are dear: %d rows with %d coalitions each, kept", len(x), plan.wanted)
    total, first, worth = _evaluate(x, plan.calls, threads, run, recipe.targets.seconds, keep)

    def kept_loss(phi: Tensor, batch: Batch, generator: torch.Generator) -> Tensor:
        s = torch.cat([first[batch[0]], ~first[batch[0]]], dim=1)
        return coalition_loss(phi, s, worth[batch[0]], pair_weights(s))

    return Lesson(some(x, torch.arange(len(total), device=x.device)), total, kept_loss)


def _most_rows(value_function: ValueFunction, recipe: Recipe) -> int:
    """With a budget of evaluations, validation takes a tenth of it at most."""
    if recipe.targets is None:
        return recipe.validation_rows
    affordable = recipe.targets.evaluations // (10 * cost(value_function) * recipe.validation_coalitions)
    return min(recipe.validation_rows, max(1, affordable))


def _worth(value_function: ValueFunction, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Grand minus null (n, outputs), and v(x, s) - v(x, 0), (n, m, outputs)."""
    null = null_values(value_function, x)
    return grand_values(value_function, x) - null, evaluate(value_function, x, s) - null[:, None]


@dataclass(frozen=True)
class _Plan:
    """For how many rows to evaluate how many coalitions each, if there are as many, and for how many calls a row.

    ``targets``: enough of them to estimate values, not few of more rows.
    """

    rows: int
    wanted: int
    calls: int
    targets: bool


def _plan(thin: Thin, players: int, options: Targets, few: int, pace: float, rows: int, run: Run) -> _Plan:
    """The plan for so many ``rows`` at hand, with targets or with ``few`` coalitions each, in pairs."""
    saved: dict[str, Any] | None = run.checkpoint.load("plan")
    if saved is None:
        seconds = min(options.seconds, _SHARE * run.clock.left())
        affordable = int(min(options.evaluations, seconds / max(pace, 1e-12)))

        def plan(wanted: int, *, targets: bool) -> _Plan:
            each = cost(thin(wanted, run.generator("plan")))
            calls = each * (min(wanted, 1 << players) if targets else wanted)
            return _Plan(max(1, affordable // calls), wanted, calls, targets)

        a_player = options.coalitions
        found = plan(2 * (a_player * players // 2), targets=True)
        while found.rows < options.fewest and a_player >= 2 * _COARSEST:
            a_player //= 2
            found = plan(2 * (a_player * players // 2), targets=True)
        if found.rows < options.fewest:
            few = max(2, few - few % 2)
            found = plan(few, targets=False)
            if found.rows > (most := max(rows, options.rows)):  # more coalitions of each, then
                found = plan(few * (found.rows // most), targets=False)
        saved = asdict(found)
        run.checkpoint.save("plan", saved)
    return _Plan(**saved)


def _rows(
    x: Rows, affordable: int, options: Targets, run: Run, discrete: Sequence[bool], owner: Sequence[int]
) -> Rows:
    """As many rows as are affordable: fewer than there are, or more, mixed from them."""
    generator = run.generator("rows")
    if affordable < len(x):
        return some(x, torch.randperm(len(x), generator=generator, device=x.device)[:affordable])
    more = min(affordable, options.rows) - len(x)
    if more <= 0 or not isinstance(x, Tensor):
        return x
    flat = x.flatten(1)  # of images, each channel of a pixel belongs to its player
    channels = flat.shape[1] // len(owner) if owner else 1
    mixed = mix_rows(flat, more, discrete or [False] * flat.shape[1], generator, [*owner] * channels)
    return torch.cat([x, mixed.to(x.dtype).reshape(more, *x.shape[1:])])


def _block(x: Rows, run: Run) -> int:
    """How many rows the model is called with for one block: time is looked at between blocks."""
    calls = max(_IMAGES, min(_BLOCK, _ENTRIES // x[:1].numel()))
    return calls if run.clock.seconds == math.inf else calls // 8


def _evaluate(
    x: Rows,
    calls: int,
    threads: int,
    run: Run,
    seconds: float,
    compute: Callable[[Tensor, torch.Generator], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Apply ``compute`` to blocks of rows, each with a seed and a checkpoint of its own, on several threads.

    A row takes ``calls`` of the model, or the surrogate. There are ``seconds`` for it, or a share of the run's
    time; what has not been done by then is left out.
    """

    def one(number: int) -> list[Tensor]:
        name = f"coalitions {number}"
        saved = run.checkpoint.load(name)
        if saved is None:
            saved = {"parts": [part.cpu() for part in compute(x[blocks[number]], run.generator(name))]}
            run.checkpoint.save(name, saved)
        return [part.to(x.device) for part in saved["parts"]]

    parts, blocks = [], torch.arange(len(x), device=x.device).split(max(1, _block(x, run) // calls))
    clock = run.clock.part(min(seconds, _SHARE * run.clock.left()))
    total = sum(map(len, blocks))
    with run.bar(total, "coalitions", "row") as bar, closing(_each(one, len(blocks), threads)) as results:
        for number, part in enumerate(results):
            parts.append(part)
            bar.update(len(blocks[number]))
            if not clock.left():
                break
    found = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    run.timings["coalitions"] = Timing(clock.elapsed(), clock.seconds, len(found[0]) * calls)
    return found


def _each(compute: Callable[[int], list[Tensor]], count: int, threads: int) -> Generator[list[Tensor], None, None]:
    """``compute`` of each number below ``count``, in order."""
    if threads == 1:
        yield from map(compute, range(count))
        return
    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(compute, range(count))
    finally:
        pool.shutdown(cancel_futures=True)


def available_threads(value_function: ValueFunction, device: torch.device, most: int = _THREADS) -> int:
    """A network of ours is evaluated on every processor; a model of the user's is called by one thread."""
    if device.type != "cpu" or not is_concurrent(value_function):
        return 1
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(most, available)
