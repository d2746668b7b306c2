"""A fit, one phase after the other: a surrogate, the explainer's network, its errors, and the report."""

from __future__ import annotations

import copy
import logging
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fastshapley.data.kinds import schema_of
from fastshapley.data.model_adapter import ModelFunction, trial_rows
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.errors import InputError
from fastshapley.fit.budget import Budget, check_budget
from fastshapley.fit.fitted import warn_of_gaps
from fastshapley.fit.network import build_network, fit_network
from fastshapley.fit.setup import (
    check_parameters,
    device_of,
    hold_out,
    mention_one_hot,
    players_of,
    start_run,
)
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.training import recipes
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.run import Clock, Run, Timing, one_thread
from fastshapley.trust.drift import Reference
from fastshapley.trust.error_bars import Errors, fit_errors
from fastshapley.trust.report import ROWS, Report, measure_network
from fastshapley.value_functions import BaseGame, Problem, ValueFunction
from fastshapley.value_functions.background_sampling import can_be_thinned
from fastshapley.value_functions.base_game import is_fitted
from fastshapley.value_functions.registry import new_game

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

logger = logging.getLogger(__name__)

_EXAM, _SEEN = 4096, 16384  # rows of a processes that one process measures, and that stand for all
_LITTLE = 0.05  # of the evaluations that errors are usually learnt from, where no network is trained
_SURROGATE, _REPORT = 0.4, 0.1  # of the time that is left, for a surrogate, and for what comes after the network
_ERRORS = 0.5  # of that


@dataclass(frozen=True)
class Fitted:
    """All that a fit leaves behind, and a file holds."""

    schema: Schema
    partition: Partition
    game: ValueFunction
    network: ExplainerNetwork
    output_names: tuple[str, ...]
    losses: list[float]
    errors: Errors | None
    report: Report | None
    reference: Reference
    timings: dict[str, Timing]


def fit_explainer(
    explainer: FastSHAP,
    X: Any,
    X_val: Any,
    checkpoint: str | os.PathLike[str] | None,
    *,
    update: bool,
    processes: ProcessGroup | None = None,
) -> Fitted:
    """What ``explainer`` learns from rows; it is not changed. An ``update`` starts from what it has learnt.

    In a ``team`` each process has rows of its own, and all learn the same.
    """
    processes = processes or ProcessGroup()
    if processes.size > 1 and explainer.time_budget is not None:
        raise InputError("time_budget is for one process: leave it out where several train together")
    clock = Clock()
    if explainer.time_budget is not None:
        from torch import _dynamo  # noqa: F401  it takes seconds, and the first optimizer would import it in that time

        clock = Clock(explainer.time_budget)
    given = explainer.value_function_ if update else explainer.value_function
    check_parameters(explainer, given)
    before = explainer.network_ if update else None
    schema: Schema
    if update:
        schema = explainer.schema_
    elif isinstance(given, BaseGame) and is_fitted(given):
        schema = given.schema_  # codes of categories mean the same to a game fitted before as to this explainer
    else:
        schema = schema_of(X, explainer.players)
        schema = schema.agreed(processes.everyone(schema))
    images = schema.kind == "image"
    x = schema.encode(X).to(device_of(explainer) if before is None else before.scale.device)
    x_val = None if X_val is None else schema.encode(X_val, "X_val").to(x.device)
    for argument, rows in (("X", x), ("X_val", x_val)):
        if not processes.all(rows is None or len(rows) > 0):
            raise InputError(f"{argument} has no rows" + (" in some process" if processes.size > 1 else ""))
    if before is not None:
        warn_of_gaps(schema, before, x)
    trial = processes.share(lambda: trial_rows(x)).to(x.device)
    check_budget(explainer.evaluation_budget, len(trial))
    model = None if explainer.model is None else ModelFunction(explainer.model, schema, trial, explainer.logits)
    partition = explainer.partition_ if update else players_of(explainer, schema)
    if not update and processes.rank == 0:
        mention_one_hot(explainer, schema, x)
    run = replace(start_run(explainer, schema, x, x_val, model, checkpoint, before, processes), clock=clock)
    x, x_val = hold_out(x, run) if x_val is None else (x, x_val)
    x_exam, x_report = hold_out(x_val, run, share=0.5, most=ROWS)
    held_out = x_val is not x and x_report is not x_exam
    rows_in_all = processes.total(len(x))
    recipe = recipes.resolve(explainer.recipe, rows_in_all, len(partition), images=images)
    allowed = explainer.evaluation_budget
    budget = Budget(None if allowed is None else allowed // processes.size, () if model is None else ((model, 0),))
    x_report = x_report[:]
    with one_thread() if schema.suits_one_thread else nullcontext():
        game: ValueFunction = given
        if model is not None:
            calls = budget.left() - budget.reserve(x_report)
            problem = Problem(model, x, x_exam, partition, explainer.link, recipe, calls)
            game = _fit_game(given, problem, run.within(_SURROGATE), update=update)
        budget = budget.counting(game)
        recipe = recipes.resolve(
            explainer.recipe, rows_in_all, len(partition), noisy=can_be_thinned(game), images=images
        )
        recipe = recipes.shared(recipe, processes.size)
        recipe = budget.bound(recipes.continued(recipe) if update else recipe, game)
        if before is None:
            network = build_network(x, schema, game, partition, explainer.model, explainer.network, recipe, run)
        else:
            network = copy.deepcopy(before)
        losses, pace = fit_network(
            network,
            game,
            x,
            x_exam,
            recipe,
            run.within(1 - _REPORT),
            normalized=explainer.normalize == "always",
            penalty=explainer.penalty,
            discrete=schema.discrete,
            owner=partition.owner,
            update=update,
        )
        x_exam, x_report, x = (
            processes.gather(x_exam, _EXAM),
            processes.gather(x_report, ROWS),
            processes.gather(x, _SEEN),
        )

        def measure() -> tuple[Errors | None, Report | None, Reference]:
            """What is left to do is little, of some rows: one process does it for all."""
            errors = None
            if recipe.errors is not None and held_out:
                errors = fit_errors(
                    network,
                    game,
                    x_exam,
                    x_report,
                    recipe.errors,
                    run.within(_ERRORS).alone(),
                    pace=pace,
                    calls=budget.for_errors(game),
                    discrete=schema.discrete,
                    owner=partition.owner,
                    effort=1.0 if recipe.trains_explainer else _LITTLE,
                )
            report, gaps = None, torch.zeros(0)
            if recipe.trains_explainer or update:
                report, gaps = measure_network(
                    network,
                    game,
                    model,
                    x_report[:],
                    run.alone(),
                    pace,
                    budget,
                    errors,
                    normalized=explainer.normalize != "never",
                    held_out=held_out,
                )
            return errors, report, Reference.of(x, gaps, run.generator("reference"))

        errors, report, reference = processes.share(measure)
    names = _output_names(model, game.outputs)
    if update and names == _output_names(None, game.outputs):
        names = explainer.output_names_
    for warning in report.warnings() if report is not None else ():
        logger.warning(warning)
    if model is not None:
        logger.info("the model was called with %d rows in all", model.evaluations)
    return Fitted(schema, partition, game, network, names, losses, errors, report, reference, run.timings)


def _fit_game(given: Any, problem: Problem, run: Run, *, update: bool) -> ValueFunction:
    """The game of the problem's model: fitted, updated, or as it was given."""
    if not is_fitted(given):
        new = new_game(given)
        if not new.fits_together and run.processes.size > 1:  # all play with the same background
            problem, run = replace(problem, x=run.processes.gather(problem.x, _SEEN)), run.alone()
        return new.fit(problem, run)
    if update and isinstance(given, BaseGame):
        assert problem.recipe is not None
        return given.update(replace(problem, recipe=recipes.continued(problem.recipe)), run)
    game: ValueFunction = given
    return game


def _output_names(model: ModelFunction | None, outputs: int) -> tuple[str, ...]:
    if model is not None and model.outputs == outputs:
        return model.output_names
    return tuple(f"output {k}" for k in range(outputs))
