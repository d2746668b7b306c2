"""Exact values as training targets, where shap's TreeExplainer computes them fast enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fastshapley.data.stream import Rows, some
from fastshapley.estimators.tree_shap import TRIAL_ROWS, TreeShap, tree_shap
from fastshapley.fit.budget import coalition_seconds
from fastshapley.fit.targets import EstimatedValues, TrainingRows, affordable_rows, evaluate_blocks
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.protocol import ValueFunction, grand_values, total_values

ENOUGH_ROWS = 16_384  # rows with exact values, mixed rows among them, above which more are not worth their time
TIME = 3.0  # the time that exact values may take, relative to that of sampling: they are closer, and without noise
FEWEST_SHARE = 0.5  # share of the rows at hand that must have exact values
TIMED_ROWS = 1024  # rows on which the model's own time is measured
BLOCK_SECONDS = 2.0  # seconds between two looks at the clock; after ten, shap would show a bar of its own


@dataclass(frozen=True)
class TreeTargets:
    """How the values of rows are computed, and of how many.

    Attributes
    ----------
    values : callable
        The exact values (n, players, outputs) of encoded rows.
    rows : int
        The number of rows.
    pace : float
        Seconds per row.
    calls : float
        Calls of the model that take as long as the values of a row.
    """

    values: TreeShap
    rows: int
    pace: float
    calls: float


def plan_tree_targets(game: ValueFunction, x: Rows, recipe: Recipe, run: Run) -> TreeTargets | None:
    """Return how many exact values can be computed in `TIME` times the time of the recipe's evaluations.

    Parameters
    ----------
    game : ValueFunction
        The game.
    x : Tensor or Stream
        Encoded training rows.
    recipe : Recipe
        The evaluations and the seconds of sampling.
    run : Run
        The time and the place for unfinished work.

    Returns
    -------
    TreeTargets or None
        None if there are no exact values, or too few rows could have them.
    """
    options = recipe.targets
    if options is None:
        return None
    values = tree_shap(game, x[:TRIAL_ROWS])
    if not run.processes.all(values is not None) or values is None:
        return None
    saved = run.checkpoint.load("tree plan")
    if saved is None:
        trial = x[:TIMED_ROWS]
        sampling = run.processes.average(_seconds_per_row(partial(grand_values, game), trial))
        pace = run.processes.average(_seconds_per_row(values, trial[:TRIAL_ROWS]))
        seconds = min(TIME * options.evaluations * sampling, coalition_seconds(options, run.clock.left()))
        saved = {"pace": pace, "rows": int(seconds / pace), "calls": pace / sampling}
        run.checkpoint.save("tree plan", saved)
    rows = min(saved["rows"], max(ENOUGH_ROWS, len(x)))
    if not run.processes.all(rows >= max(options.fewest, FEWEST_SHARE * len(x))):
        return None
    return TreeTargets(values, rows, saved["pace"], saved["calls"])


def _seconds_per_row(compute: Callable[[Tensor], Tensor], x: Tensor) -> float:
    start = time.perf_counter()
    compute(x)
    return max(time.perf_counter() - start, 1e-9) / len(x)


def prepare_tree_training(
    trees: TreeTargets, game: ValueFunction, rows: TrainingRows, scale: Tensor, recipe: Recipe, run: Run
) -> EstimatedValues:
    """Compute the exact values that a network learns from, in units of ``scale``.

    Parameters
    ----------
    trees : TreeTargets
        How the values are computed, and of how many rows.
    game : ValueFunction
        The game.
    rows : TrainingRows
        The rows at hand.
    scale : Tensor
        The size of a typical value of each output, (outputs,).
    recipe : Recipe
        How many rows there may be.
    run : Run
        The time, the random numbers and the place for unfinished work.

    Returns
    -------
    EstimatedValues
    """
    assert recipe.targets is not None
    x = affordable_rows(game, rows, trees.rows, recipe.targets, run)

    def compute(x: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        return (total_values(game, x) / scale).float(), (trees.values(x) / scale).float()

    block = max(1, int(BLOCK_SECONDS / trees.pace))
    seconds = coalition_seconds(recipe.targets, run.clock.left())
    total, values = evaluate_blocks(x, block, 1, run, seconds, compute)
    run.timings["coalitions"] = replace(run.timings["coalitions"], units=round(len(total) * trees.calls))
    return EstimatedValues(some(x, torch.arange(len(total), device=x.device)), total, values)
