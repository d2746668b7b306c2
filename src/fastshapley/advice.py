"""Advice on the fastest way to Shapley values: the time of each way, predicted from a short trial."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from html import escape
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fastshapley.coalitions import pair_count
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.estimators import Estimate, exact, kernel
from fastshapley.estimators.exact import MAX_PLAYERS
from fastshapley.estimators.kernel import sampling_variance
from fastshapley.estimators.residuals import Residuals, residuals
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.support.shap_import import shap
from fastshapley.training import recipes
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Timing, one_thread
from fastshapley.trust import effort
from fastshapley.trust.error_bars import normalized_values
from fastshapley.trust.report import Report
from fastshapley.value_functions.protocol import ValueFunction

TRIAL_WORK = 0.1  # The share of a whole fit's work that the trial does.
TRIAL_ROWS = 64  # The largest number of rows whose values are estimated after the trial's fit.
TRIAL_EVALUATIONS = 16  # Evaluations per player and row for these estimates.
ESTIMATE_SHARE = 0.25  # The share of the trial's seconds for the estimates, and as much for TreeSHAP.
FORWARD_REPEATS = 64  # The rows of a table are repeated this often to time a forward pass.
FEWEST_SAMPLED_PAIRS = 4  # Pairs per player; with fewer, errors are hard to predict.
MOST_PAIRS = 1 << 19  # Pairs per row; ways that need more are not considered.
MOST_CORRECTION_PLAYERS = 20  # The budget of a hopeless correction is that of this many players at most.
PAIR_GROWTH = 1.05  # The ratio of neighbouring numbers of pairs that are considered.
HELD_OUT_SHARE = 0.1  # The share of rows that a fit holds out for error bars, and as many for the report.
SHOWN_SETTINGS = ("value_function", "players", "link", "logits", "network", "normalize", "penalty", "device")


@dataclass(frozen=True)
class Way:
    """One way to Shapley values.

    Attributes
    ----------
    name : str
        ``"exact"``, ``"sampling"``, ``"amortised"`` or ``"tree"``.
    once, each : float
        The time that it takes once, and for each row, in seconds.
    code : str
        The code to type.
    note : str
        What else there is to know.
    """

    name: str
    once: float
    each: float
    code: str
    note: str = ""

    def seconds(self, rows: int) -> float:
        """Return the predicted time for a number of rows, in seconds."""
        return self.once + rows * self.each


@dataclass(frozen=True)
class Advice:
    """Ways to explain a number of rows, the fastest first. ``str(advice)`` is a table.

    Times are predictions for this machine as it was during the trial. Actual times are between half and twice as
    long.

    Attributes
    ----------
    rows : int
        The number of rows to explain.
    error : float
        The largest acceptable relative squared error.
    ways : tuple of Way
        The ways, the fastest first.
    trial_error : float
        The relative squared error of the trial's network, which was trained a tenth as long as in a whole fit.
    """

    rows: int
    error: float
    ways: tuple[Way, ...]
    trial_error: float

    @property
    def best(self) -> Way:
        """The fastest way."""
        return self.ways[0]

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Return the name, the total time, its parts and the code of each way."""
        return [
            (
                way.name,
                _duration(way.seconds(self.rows)),
                f"{_duration(way.once)} + {_duration(way.each)} per row",
                way.code + (f"  ({way.note})" if way.note else ""),
            )
            for way in self.ways
        ]

    def __str__(self) -> str:
        body = [f"  {name:10s} {total:>10s}  = {parts:28s} {code}" for name, total, parts, code in self.lines()]
        return "\n".join([self._title(), *body])

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align: left'>{escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self.lines()
        )
        return f"<table><caption>{escape(self._title())}</caption>{rows}</table>"

    def _title(self) -> str:
        return f"{self.rows} rows, relative squared error at most {self.error:g}: {self.best.name} is the fastest"


@dataclass(frozen=True)
class Workload:
    """What is to be explained, and how well.

    Parameters
    ----------
    rows : int
        The number of rows to explain.
    error : float, default=0.01
        The largest acceptable relative squared error.
    seconds : float, default=20.0
        The approximate time of the trial, in seconds.

    Raises
    ------
    InputError
        If a number is out of range.
    """

    rows: int
    error: float = 0.01
    seconds: float = 20.0

    def __post_init__(self) -> None:
        if not self.rows >= 1:
            raise InputError(f"rows is {self.rows}: pass the number of rows to explain, at least 1")
        if not 0 < self.error < 1:
            raise InputError(f"error is {self.error}: a relative squared error lies between 0 and 1")
        if not self.seconds > 0:
            raise InputError(f"seconds is {self.seconds}: pass a positive time for the trial")


class FittedTrial(Protocol):
    """What a fit leaves behind, as far as advice needs it."""

    @property
    def game(self) -> ValueFunction:
        """The fitted game."""

    @property
    def network(self) -> ExplainerNetwork:
        """The trained network."""

    @property
    def report(self) -> Report | None:
        """The report on the network, if there is one."""

    @property
    def timings(self) -> Mapping[str, Timing]:
        """The time that each phase took."""


@dataclass(frozen=True)
class TrialInputs:
    """What a trial starts from.

    Attributes
    ----------
    model : object
        The user's model, or None.
    logits : bool
        Whether it returns logits.
    schema : Schema or ImageSchema
        How rows are encoded.
    x : Rows
        The encoded rows.
    recipe : Recipe
        The recipe of a whole fit.
    fit : callable
        Fits an explainer to the rows with the given recipe and within about the given seconds.
    settings : mapping
        The settings that the suggested code repeats, by name.
    """

    model: Any
    logits: bool
    schema: Schema
    x: Rows
    recipe: Recipe
    fit: Callable[[Recipe, float], FittedTrial]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """What a trial has measured.

    Attributes
    ----------
    inputs : TrialInputs
        What it started from.
    seconds : float
        Its approximate time limit, in seconds.
    fitted : FittedTrial
        The explainer that was fitted.
    x : Tensor of shape (n, ...)
        The rows whose values were estimated.
    model_pace : float
        The time of the model for one row, in seconds.
    evaluation_pace : float
        The time of one evaluation of the game, in seconds.
    forward_pace : float
        The time of the network for one row, in seconds.
    squared_size : float
        The mean sum of squares of a row's values.
    mean_squared_error : float
        The mean squared error of the network's values for a row.
    residuals : Residuals or None
        What pairs leave unexplained; None for a single player.
    """

    inputs: TrialInputs
    seconds: float
    fitted: FittedTrial
    x: Tensor
    model_pace: float
    evaluation_pace: float
    forward_pace: float
    squared_size: float
    mean_squared_error: float
    residuals: Residuals | None

    @property
    def players(self) -> int:
        """The number of players."""
        return self.fitted.game.players


def advise(inputs: TrialInputs, workload: Workload) -> Advice:
    """Run a trial, and predict the time of each way.

    Parameters
    ----------
    inputs : TrialInputs
        The model, the rows, and how to fit an explainer to them.
    workload : Workload
        What is to be explained, and how well.

    Returns
    -------
    Advice
        The ways, the fastest first.

    Raises
    ------
    InputError
        If there are no rows, or the recipe does not state how much work a fit does.
    """
    if len(inputs.x) == 0:
        raise InputError("X has no rows: pass some of the rows that are to be explained")
    if inputs.recipe.targets is None or inputs.recipe.explainer.steps is None:
        raise InputError("recipe does not state how much work a fit does, which advice needs: leave recipe out")
    trial = run_trial(inputs, workload.seconds)
    target = workload.error * trial.squared_size
    found = [exact_way(trial), sampling_way(trial, target), amortised_way(trial, target), tree_way(trial)]
    ways = sorted((way for way in found if way is not None), key=lambda way: way.seconds(workload.rows))
    trial_error = trial.mean_squared_error / trial.squared_size if trial.squared_size > 0 else 0.0
    return Advice(workload.rows, workload.error, tuple(ways), trial_error)


def shown_settings(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that say what is explained and differ from the defaults.

    Parameters
    ----------
    given, usual : mapping
        The parameters of an explainer, and their defaults.

    Returns
    -------
    dict
        Those that suggested code repeats.
    """
    return {
        name: given[name]
        for name in SHOWN_SETTINGS
        if given[name] is not usual[name] and given[name] != usual[name]
    }


# -- The trial.


def run_trial(inputs: TrialInputs, seconds: float) -> Trial:
    """Fit an explainer for about ``seconds``, and measure the speed and the errors of its parts."""
    with quiet_logger("fastshapley"):  # The trial's network is not good, and its report would warn of that.
        fitted = inputs.fit(recipes.scaled(inputs.recipe, TRIAL_WORK), seconds)
    x, game = inputs.x[:TRIAL_ROWS], fitted.game
    model_pace = 0.0
    if inputs.model is not None:
        model_pace = ModelFunction(inputs.model, inputs.schema, x, inputs.logits).pace
    with one_thread() if inputs.schema.suits_one_thread else nullcontext():
        _, first_seconds, _ = _timed_estimate(game, x[:1])
        x = x[: max(2, int(ESTIMATE_SHARE * seconds / first_seconds))]
        estimate, estimate_seconds, budget = _timed_estimate(game, x)
        many = x.repeat(FORWARD_REPEATS, 1) if x.ndim == 2 else x
        start = time.monotonic()
        phi = normalized_values(fitted.network, game, many)[: len(x)]
        forward_seconds = time.monotonic() - start
        found = None
        if game.players > 1:
            generator = torch.Generator(x.device).manual_seed(0)
            found = residuals(game, x, phi, TRIAL_EVALUATIONS * game.players // 2, generator)
    noise = float(np.square(estimate.stderr).sum((1, 2)).mean())
    squares = float(np.square(estimate.values).sum((1, 2)).mean())
    seen = float(np.square(phi.cpu().numpy() - estimate.values).sum((1, 2)).mean()) - noise
    return Trial(
        inputs=inputs,
        seconds=seconds,
        fitted=fitted,
        x=x,
        model_pace=model_pace,
        evaluation_pace=estimate_seconds / (len(x) * budget),
        forward_pace=forward_seconds / len(many),
        squared_size=max(0.0, squares - noise),
        mean_squared_error=max(0.0, seen if fitted.report is None else fitted.report.mean_squared_error),
        residuals=found,
    )


@contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Let a logger report errors only inside, and restore its level afterwards."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _timed_estimate(game: ValueFunction, x: Tensor) -> tuple[Estimate, float, int]:
    """Return an estimate of the values of rows, the seconds that it took, and its evaluations per row."""
    every = 1 << game.players
    budget = min(TRIAL_EVALUATIONS * game.players, every)
    start = time.monotonic()
    if budget == every:
        estimate = exact(game, x)
    else:
        estimate = kernel(game, x, budget=budget, sampling="leverage", random_state=0)
    return estimate, time.monotonic() - start, budget


# -- The ways.


def exact_way(trial: Trial) -> Way | None:
    """Return the way of evaluating all coalitions; None if there are too many players."""
    if trial.players > MAX_PLAYERS:
        return None
    code = _code(trial, 'estimate(rows, "exact")', recipe="sampling")
    return Way("exact", _game_seconds(trial), (1 << trial.players) * trial.evaluation_pace, code)


def sampling_way(trial: Trial, target: float) -> Way | None:
    """Return the way of sampling coalitions until the squared error of a row is at most ``target``."""
    budget = _smallest_budget(
        trial.players,
        lambda pairs: _sampling_error(trial, pairs) <= target,
        FEWEST_SAMPLED_PAIRS * trial.players,
    )
    if budget is None:
        return None
    code = _code(trial, f'estimate(rows, "kernel", budget={budget}, sampling="leverage")', recipe="sampling")
    return Way("sampling", _game_seconds(trial), budget * trial.evaluation_pace, code)


def amortised_way(trial: Trial, target: float) -> Way:
    """Return the way of training a network, whose values are corrected if the trial's were not close enough."""
    once = _game_seconds(trial) + _network_seconds(trial) + _trust_seconds(trial)
    if trial.mean_squared_error <= target:
        return Way("amortised", once, trial.forward_pace, _code(trial, "(rows)"))

    def close_enough(pairs: int) -> bool:
        return 1 / (1 / trial.mean_squared_error + 1 / max(_sampling_error(trial, pairs), 1e-300)) <= target

    budget = _smallest_budget(trial.players, close_enough, 1)
    note = "the trial's network was not close enough; that of a whole fit may be"
    if budget is None:
        budget, note = 1 << min(trial.players, MOST_CORRECTION_PLAYERS), "the error may stay above the target"
    each = trial.forward_pace + budget * trial.evaluation_pace
    return Way("amortised", once, each, _code(trial, f"(rows, budget={budget})"), note)


def tree_way(trial: Trial) -> Way | None:
    """Return the way of TreeSHAP; None if shap does not support the model."""
    schema = trial.inputs.schema
    if not isinstance(schema, TableSchema):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.monotonic()
            explain = shap.TreeExplainer(trial.inputs.model)
            explain.shap_values(schema.decode(trial.x[:1]))
            once = time.monotonic() - start
            some = trial.x[: max(1, int(ESTIMATE_SHARE * trial.seconds / once))]
            start = time.monotonic()
            explain.shap_values(schema.decode(some))
            each = (time.monotonic() - start) / len(some)
    except Exception:  # shap raises various errors for models that it does not support.
        return None
    note = (
        "another game: features are removed along the trees' paths, and margins are explained where trees have them"
    )
    return Way("tree", once, each, "shap.TreeExplainer(model)(rows)", note)


def _sampling_error(trial: Trial, pairs: int) -> float:
    """Return the predicted squared error of a row by least squares over a number of pairs."""
    if trial.residuals is None:
        return 0.0
    players = trial.players
    each = sampling_variance(players, pairs, trial.residuals.profile.tolist())
    solved = pairs / (pairs - players) if pairs > players else 1.0
    return players * each * solved * float(trial.residuals.noise.sum(1).mean())


def _smallest_budget(players: int, enough: Callable[[int], bool], fewest: int) -> int | None:
    """Return the smallest sufficient budget per row of at least ``fewest`` pairs.

    It is None if all coalitions would not be more, or if there would be too many.
    """
    most = min(MOST_PAIRS, pair_count(players))
    pairs = fewest
    while pairs < most:
        if enough(pairs):
            return 2 * pairs + 2
        pairs = math.ceil(PAIR_GROWTH * pairs)
    return None


def _code(trial: Trial, call: str, **settings: Any) -> str:
    """Return code that fits an explainer with the trial's settings and calls it."""
    written = "".join(f", {name}={value!r}" for name, value in {**trial.inputs.settings, **settings}.items())
    return f"FastSHAP(model{written}).fit(X){'' if call.startswith('(') else '.'}{call}"


# -- The phases of a whole fit.


def _game_seconds(trial: Trial) -> float:
    """Return the predicted time of a surrogate's training, in seconds; 0 for other games."""
    done = [timing for phase, timing in trial.fitted.timings.items() if phase.startswith("surrogate")]
    if not done:
        return 0.0
    steps = sum(stage.steps or 0 for stage in trial.inputs.recipe.surrogate)
    return len(trial.inputs.x) * trial.model_pace + _pace(done) * steps


def _network_seconds(trial: Trial) -> float:
    """Return the predicted time of the explainer network's targets and training, in seconds."""
    recipe, timings, none = trial.inputs.recipe, trial.fitted.timings, Timing(0.0)
    assert recipe.targets is not None  # `advise` has checked it.
    evaluations = _pace([timings.get("coalitions", none)]) * recipe.targets.evaluations
    steps = _pace([timings.get("explainer", none)]) * (recipe.explainer.steps or 0)
    return min(recipe.targets.seconds, evaluations) + steps


def _trust_seconds(trial: Trial) -> float:
    """Return the predicted time of learning and calibrating error bars, and of the report, in seconds."""
    held_out, every = int(HELD_OUT_SHARE * len(trial.inputs.x)), 2.0 ** min(trial.players, 60)
    wanted = (
        (effort.ERROR_BAR_ROWS, effort.ERROR_BAR_EVALUATIONS),
        (effort.CALIBRATION_ROWS, effort.ERROR_BAR_EVALUATIONS),
        (effort.REPORT_ROWS, effort.REPORT_EVALUATIONS),
    )
    evaluations = sum(min(most, min(rows, held_out) * every) for rows, most in wanted)
    limit = effort.ERROR_BAR_SECONDS + effort.REPORT_SECONDS
    training = trial.fitted.timings.get("errors", Timing(0.0)).seconds
    return min(limit, evaluations * trial.evaluation_pace) + training


def _pace(done: Sequence[Timing]) -> float:
    """Return the seconds per step, or per evaluation."""
    return sum(timing.seconds for timing in done) / max(1, sum(timing.units for timing in done))


def _duration(seconds: float) -> str:
    """Return a time in the unit that suits it, such as ``"20 ms"``."""
    units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, size in units.items() if seconds >= (2 if size > 1 else 1) * size), "us")
    amount = seconds / units[unit]
    return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
