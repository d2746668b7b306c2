"""A fit from beginning to end: setup, game, network, error bars, report.

`fit` and `update` are the same path from different starts. Each phase is a function of the `Setup` and of what the
phases before it returned; `Run.timed` records what each took and was given.
"""

from __future__ import annotations

import copy
import logging
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction
from fastshapley.fit.budget import (
    ERROR_BAR_TIME,
    GAME_TIME,
    LABEL_TIME,
    LEAST_NETWORK_TIME,
    NETWORK_TIME,
    SAMPLING_EFFORT,
    TRIAL_TIME,
    Budget,
)
from fastshapley.fit.fitted import Fitted
from fastshapley.fit.network import NetworkFit, NetworkProblem, build_network, fit_network
from fastshapley.fit.settings import Settings
from fastshapley.fit.setup import FitData, Setup, set_up
from fastshapley.fit.targets import TrainingRows
from fastshapley.fit.tree_targets import TreeTargets, plan_tree_targets
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.training import recipes
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run, one_thread
from fastshapley.trust.drift import Reference
from fastshapley.trust.effort import REPORT_ROWS, Allowance
from fastshapley.trust.error_bars import ErrorBarRows, ErrorBars, fit_error_bars, normalized_values
from fastshapley.trust.measurement import (
    FEWEST_ROWS,
    ROW_EVALUATIONS,
    TIMED_COALITIONS,
    MeasuredNetwork,
    evaluation_seconds,
    measure_network,
)
from fastshapley.trust.report import Report
from fastshapley.value_functions import BaseGame, Problem, ValueFunction
from fastshapley.value_functions.base_game import called_model, cost, is_fitted, is_noisy, training_game
from fastshapley.value_functions.registry import AUTO, automatic_game, new_game

logger = logging.getLogger(__name__)

EXAMINED_ROWS = 4096  # rows of all processes from which one process learns the error bars
SEEN_ROWS = 16384  # rows of all processes that stand for all of them


def fit(settings: Settings, data: FitData) -> Fitted:
    """Fit an explainer.

    Parameters
    ----------
    settings : Settings
        The explainer's parameters.
    data : FitData
        The rows to learn from.

    Returns
    -------
    Fitted
    """
    return _learn(set_up(settings, data))


def update(settings: Settings, data: FitData, start: Fitted) -> Fitted:
    """Train a fitted explainer further, on other rows; ``start`` is not changed.

    Parameters
    ----------
    settings : Settings
        The explainer's parameters.
    data : FitData
        The rows to learn from.
    start : Fitted
        The explainer.

    Returns
    -------
    Fitted
    """
    return _learn(set_up(settings, data, start))


def _learn(setup: Setup) -> Fitted:
    """Go through the phases."""
    run = setup.run
    with _threads(setup):
        with run.timed("game"):
            game = _fit_game(setup)
        budget = setup.budget.counting(game)
        with run.timed("network"):
            recipe, trees = _network_plan(setup, game, budget)
            network, trained = _fit_network(setup, game, recipe, trees)
        subject = _Subject(_gathered(setup), game, network, recipe, trained, budget)
        measured = run.processes.share(lambda: _measure(subject))
    for warning in measured.report.warnings() if measured.report is not None else ():
        logger.warning(warning)
    if setup.model is not None:
        logger.info("The model was called with %d rows in all", setup.model.evaluations)
    return Fitted(
        setup.schema,
        setup.partition,
        game,
        network,
        _output_names(setup, game),
        trained.losses,
        measured.errors,
        measured.report,
        measured.reference,
        setup.settings.normalize,
        run.timings,
    )


def _threads(setup: Setup) -> AbstractContextManager[None]:
    """Return a context in which torch computes on as many threads as suit the kind of data."""
    return one_thread() if setup.schema.suits_one_thread else nullcontext()


# -- the game


def _fit_game(setup: Setup) -> ValueFunction:
    """Return the game of the model: fitted, updated, or as it was given."""
    given = setup.given_game
    if setup.model is None:
        game: ValueFunction = given
        return game
    calls = setup.budget.for_labels(setup.x_report)
    problem = Problem(
        setup.model, setup.x, setup.x_val, setup.partition, setup.settings.link, setup.recipe(), calls, LABEL_TIME
    )
    run = setup.run.within(GAME_TIME)
    if isinstance(given, str) and given == AUTO:
        given = automatic_game(setup.schema.kind, setup.settings.recipe)
    if not is_fitted(given):
        return _new_game(given, problem, run)
    return _updated_game(given, problem, run) if setup.updating else given


def _new_game(given: Any, problem: Problem, run: Run) -> ValueFunction:
    new = new_game(given)
    if not new.fits_together and run.processes.size > 1:  # all processes play with the same background
        problem, run = replace(problem, x=run.processes.gather(problem.x, SEEN_ROWS)), run.alone()
    return new.fit(problem, run)


def _updated_game(given: Any, problem: Problem, run: Run) -> ValueFunction:
    if isinstance(given, BaseGame):
        assert problem.recipe is not None
        return given.update(replace(problem, recipe=recipes.continued(problem.recipe)), run)
    game: ValueFunction = given
    return game


# -- the network


def _network_plan(setup: Setup, game: ValueFunction, budget: Budget) -> tuple[Recipe, TreeTargets | None]:
    """Return the settings of the network's training, and how its targets are computed if they can be exact."""
    recipe = _network_recipe(setup, game, budget, noisy=is_noisy(game))
    trees = plan_tree_targets(training_game(game), setup.x, recipe, setup.run.within(NETWORK_TIME))
    return (recipe, None) if trees is None else (_network_recipe(setup, game, budget, noisy=False), trees)


def _network_recipe(setup: Setup, game: ValueFunction, budget: Budget, *, noisy: bool) -> Recipe:
    """Return the settings of the network's training, within what one process may evaluate."""
    recipe = recipes.shared(setup.recipe(noisy=noisy), setup.run.processes.size)
    return budget.bound(recipes.continued(recipe) if setup.updating else recipe, game)


def _fit_network(
    setup: Setup, game: ValueFunction, recipe: Recipe, trees: TreeTargets | None
) -> tuple[ExplainerNetwork, NetworkFit]:
    """Return the trained network, and what training leaves behind."""
    settings = setup.settings
    if setup.start is None:
        network = build_network(
            setup.x, setup.schema, game, setup.partition, settings.model, settings.network, recipe, setup.run
        )
    else:
        network = copy.deepcopy(setup.start.network)
    problem = NetworkProblem(
        game,
        TrainingRows(setup.x, setup.x_val, setup.schema.discrete, setup.partition.owner),
        recipe,
        setup.run.within(_network_share(setup, game)),
        normalized=settings.normalize == "always",
        penalty=settings.penalty,
        update=setup.updating,
        trees=trees,
    )
    return network, fit_network(network, problem)


def _network_share(setup: Setup, game: ValueFunction) -> float:
    """Return the share of the time for the network: less where the report needs more than what is left after it."""
    each = _evaluation_seconds(setup, game)
    if each is None:
        return NETWORK_TIME
    needed = each * FEWEST_ROWS * ROW_EVALUATIONS * game.players / (1 - ERROR_BAR_TIME)
    return min(NETWORK_TIME, max(LEAST_NETWORK_TIME, 1 - needed / max(setup.run.clock.left(), 1e-9)))


def _evaluation_seconds(setup: Setup, game: ValueFunction) -> float | None:
    """Return how long an evaluation takes; None if there is no time limit, or if it costs too much to find out."""
    left, model = setup.run.clock.left(), called_model(game)
    if left == math.inf or model is None or model.pace * cost(game) * TIMED_COALITIONS > TRIAL_TIME * left:
        return None
    return evaluation_seconds(game, setup.x_report, setup.run)


# -- error bars and report


def _gathered(setup: Setup) -> Setup:
    """Return the setup with some rows of all processes, for the one that measures."""
    processes = setup.run.processes
    x_val, x_report = processes.gather(setup.x_val, EXAMINED_ROWS), processes.gather(setup.x_report, REPORT_ROWS)[:]
    return replace(setup, x=processes.gather(setup.x, SEEN_ROWS), x_val=x_val, x_report=x_report)


@dataclass(frozen=True)
class _Subject:
    """What is measured, and the gathered rows to measure it on."""

    setup: Setup
    game: ValueFunction
    network: ExplainerNetwork
    recipe: Recipe
    trained: NetworkFit
    budget: Budget


@dataclass(frozen=True)
class _Measured:
    errors: ErrorBars | None
    report: Report | None
    reference: Reference


def _measure(subject: _Subject) -> _Measured:
    """Learn the error bars and measure the report; one process does it for all."""
    run = subject.setup.run
    with run.timed("error bars"):
        errors = _fit_error_bars(subject)
    with run.timed("report"):
        report, gaps = _measure_report(subject, errors)
    if errors is not None and report is not None and report.game_error:
        assert report.game_errors is not None
        values = normalized_values(subject.network, subject.game, subject.setup.x_report)
        errors.set_game_errors(report.game_errors, values.square().mean(0))
    return _Measured(errors, report, Reference.of(subject.setup.x, gaps, run.generator("reference")))


def _fit_error_bars(subject: _Subject) -> ErrorBars | None:
    setup, recipe = subject.setup, subject.recipe
    if recipe.errors is None or not setup.held_out:
        return None
    run = setup.run.within(ERROR_BAR_TIME).alone()
    allowance = Allowance(
        calls=subject.budget.for_error_bars(subject.game),
        seconds=run.clock.left(),
        pace=subject.trained.pace,
        share=1.0 if recipe.trains_explainer else SAMPLING_EFFORT,
    )
    rows = ErrorBarRows(setup.x_val, setup.x_report, setup.schema.discrete, setup.partition.owner)
    bars = fit_error_bars(subject.network, training_game(subject.game), rows, recipe.errors, run, allowance)
    if bars is not None:
        bars.set_range(setup.x[:], setup.schema.discrete)
    return bars


def _measure_report(subject: _Subject, errors: ErrorBars | None) -> tuple[Report | None, Tensor]:
    setup = subject.setup
    if not (subject.recipe.trains_explainer or setup.updating):
        return None, torch.zeros(0)
    budget, run = subject.budget, setup.run.alone()
    each = _evaluation_seconds(setup, subject.game)
    pace = subject.trained.pace if each is None else each / cost(subject.game)
    measured = measure_network(
        MeasuredNetwork(
            subject.network,
            subject.game,
            setup.model,
            errors,
            normalized=setup.settings.normalize != "never",
            held_out=setup.held_out,
            seen_rows=setup.seen_rows,
            player_names=setup.partition.names,
            output_names=_output_names(setup, subject.game),
        ),
        setup.x_report,
        run,
        Allowance(budget.for_report(subject.game), run.clock.left(), pace),
        model_calls=budget.left(),
    )
    return measured.report, measured.model_distances


def _output_names(setup: Setup, game: ValueFunction) -> tuple[str, ...]:
    """Return the names that the user gives the outputs, or the model, or those of before, or numbers."""
    given = setup.settings.output_names
    if given is not None and len(given) == game.outputs:
        return tuple(given)
    numbered = tuple(f"output {k}" for k in range(game.outputs))
    model: ModelFunction | None = setup.model
    names = model.output_names if model is not None and model.outputs == game.outputs else numbered
    return setup.start.output_names if setup.start is not None and names == numbered else names
