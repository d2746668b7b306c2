"""The measurement behind the report: the network's values against true ones, and the game against the model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.coalitions import subsets
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.estimators import Estimate, exact
from fastshapley.estimators.exact import MAX_PLAYERS
from fastshapley.estimators.residuals import residuals
from fastshapley.metrics import r2
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.objective import normalize
from fastshapley.training.run import Clock, Run
from fastshapley.trust import effort
from fastshapley.trust.effort import Allowance
from fastshapley.trust.error_bars import ErrorBars, normalized_values
from fastshapley.trust.report import CHOICE_SOURCE, DEFINITION_SOURCE, SURROGATE_SOURCE, Report, measure
from fastshapley.value_functions.base_game import (
    called_model,
    cost,
    fidelity_by_size_of,
    game_errors_of,
    imitation_of,
    is_game_of,
    is_surrogate,
    link_of,
)
from fastshapley.value_functions.links import apply_link
from fastshapley.value_functions.protocol import ValueFunction, evaluate, grand_values, null_values

logger = logging.getLogger(__name__)

EVALUATIONS_TIMES_PLAYERS = 60_000_000  # A limit of the work of drawing coalitions and solving for values.
EXACT_ROWS = 32  # Exact values are preferred to estimates if at least this many rows can have them.
FEW_COALITIONS = 32  # With at most this many coalitions per player, exact values are the cheapest for any rows.
ROW_EVALUATIONS = 32  # Estimates take fewer rows rather than fewer evaluations per player than this.
LARGEST_ROW_EVALUATIONS = 1024  # More evaluations per player would make estimates only slightly better.
SMALLEST_ROW_EVALUATIONS = 8  # Fewer evaluations per player give no usable estimate of one row.
FEWEST_ROWS = 4  # With a time budget, the report should have at least so many rows.
TIMED_COALITIONS = 16  # coalitions whose time tells how long evaluations take
OVERTIME = 0.05  # share of a time budget that may be exceeded for a report on one row
FIDELITY_STEPS = 4  # The fidelity is measured with 0, 1/4, ..., 4/4 of the players known.


@dataclass(frozen=True)
class MeasuredNetwork:
    """What a report is about.

    Attributes
    ----------
    network : ExplainerNetwork
        The explainer's network.
    game : ValueFunction
        The game that it explains.
    model : ModelFunction or None
        The user's model, which the game is compared with.
    error_bars : ErrorBars or None
        The network's error bars, for the expected share of correct signs.
    normalized : bool
        Whether the explainer's values are normalized to sum to grand minus null.
    held_out : bool
        Whether the rows were held out from the training.
    seen_rows : int
        The number of validation rows that are also training rows.
    player_names, output_names : tuple of str
        The names of the players and of the outputs.
    """

    network: ExplainerNetwork
    game: ValueFunction
    model: ModelFunction | None = None
    error_bars: ErrorBars | None = None
    normalized: bool = True
    held_out: bool = True
    seen_rows: int = 0
    player_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Truth:
    """True values of some rows.

    Attributes
    ----------
    rows : Tensor of shape (n, ...)
        The encoded rows.
    estimate : Estimate
        Their Shapley values, exact or unbiased.
    description : str
        How the values were found.
    """

    rows: Tensor
    estimate: Estimate
    description: str


@dataclass(frozen=True)
class Measurement:
    """The result of `measure_network`.

    Attributes
    ----------
    report : Report or None
        The report; None if the allowance does not suffice for one row.
    model_distances : Tensor of shape (n,)
        The distances of the game's outputs to the model's; empty where they were not measured.
    """

    report: Report | None
    model_distances: Tensor


def measure_network(
    measured: MeasuredNetwork, x: Tensor, run: Run, allowance: Allowance, model_calls: float
) -> Measurement:
    """Measure the distance of an explainer's values to the Shapley values, and of the game to the model.

    Parameters
    ----------
    measured : MeasuredNetwork
        The network, the game and the model.
    x : Tensor of shape (n, ...)
        Encoded rows; fewer are used if the allowance does not suffice for all.
    run : Run
        The seed.
    allowance : Allowance
        What may be spent on the true values.
    model_calls : float
        The number of rows that the model may be called with in total, those of the true values included.

    Returns
    -------
    Measurement
        The report, and the distances of the game's outputs to the model's.
    """
    model, own = measured.model, called_model(measured.game)
    models = {id(each): each for each in (model, own) if each is not None}.values()
    before = sum(each.evaluations for each in models)
    found = _measured(measured, x, run, allowance, model_calls)
    if found.report is None or model is None:
        return found
    calls = model_calls - (sum(each.evaluations for each in models) - before)
    return replace(found, report=replace(found.report, model_noise=model.noise(calls)))


def _measured(
    measured: MeasuredNetwork, x: Tensor, run: Run, allowance: Allowance, model_calls: float
) -> Measurement:
    """Return the report without the noise of the model."""
    nothing = torch.zeros(0, dtype=torch.float64)
    game, model = measured.game, measured.model
    before = _model_evaluations(game)
    truth = true_values(
        partial(normalized_values, measured.network, game), game, x, run.generator("report"), allowance, run.clock
    )
    if truth is None:
        logger.warning(
            "There is no report: time_budget or evaluation_budget leaves nothing to measure errors with."
        )
        return Measurement(None, nothing)
    report = replace(
        _distances(measured, truth),
        seen_rows=measured.seen_rows,
        player_names=measured.player_names,
        output_names=measured.output_names,
    )
    imitation = imitation_of(game)
    if is_game_of(game, model):  # The game's outputs are the model's.
        distances = nothing
        if imitation is not None:  # `check` compares later rows with these.
            whole = _totals(truth, x.device) + null_values(game, truth.rows)
            distances = (grand_values(imitation, truth.rows) - whole).square().sum(1).sqrt()
        estimated, source = game_errors_of(game), CHOICE_SOURCE
        if estimated is None and imitation is not None:
            squares = (grand_values(imitation, truth.rows) - whole).square().mean(0)
            estimated, source = tuple(squares.tolist()), SURROGATE_SOURCE
        elif imitation is None:
            source = DEFINITION_SOURCE
        report = replace(report, fidelity=1.0, fidelity_by_size=fidelity_by_size_of(game))
        return Measurement(_with_game_errors(report, estimated, source), distances)
    calls = max(0.0, model_calls - (_model_evaluations(game) - before))
    some = int(min(calls, len(truth.rows)))
    if model is None or model.outputs != game.outputs or not some:
        return Measurement(report, nothing)
    grand = (_totals(truth, x.device) + null_values(game, truth.rows))[:some]
    rows = truth.rows[:some]
    y = apply_link(link_of(game), model(rows)).to(grand)
    squares = (grand - y).square()
    by_output = zip(grand.cpu().numpy().T, y.cpu().numpy().T, strict=True)
    fidelities = tuple(r2(ours[:, None], theirs[:, None]) for ours, theirs in by_output)
    report = replace(
        report,
        fidelity=min(fidelities),
        fidelities=fidelities,
        fidelity_by_size=_fidelity_by_size(game, rows, y, run) if is_surrogate(game) else None,
    )
    report = _with_game_errors(report, tuple(squares.mean(0).tolist()), SURROGATE_SOURCE)
    return Measurement(report, squares.sum(1).sqrt())


def _with_game_errors(report: Report, errors: tuple[float, ...] | None, source: str) -> Report:
    total = None if errors is None else sum(errors)
    return replace(report, game_error=total, game_errors=errors, game_error_source=source)


def true_values(
    explain: Callable[[Tensor], Tensor],
    value_function: ValueFunction,
    x: Tensor,
    generator: torch.Generator,
    allowance: Allowance,
    clock: Clock | None = None,
) -> Truth | None:
    """Return some rows with their Shapley values, as precise as the allowance permits.

    The values are exact, or they are those of ``explain`` corrected by an unbiased estimate of their errors.

    Parameters
    ----------
    explain : callable
        Returns values (n, players, outputs), which sum to grand minus null, for encoded rows.
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    generator : torch.Generator
        Where the randomness comes from.
    allowance : Allowance
        The calls of the model and the seconds that may be spent.
    clock : Clock, optional
        The clock by which it is seen how fast the game is.

    Returns
    -------
    Truth or None
        None if the allowance does not suffice for one row.
    """
    players, clock = value_function.players, clock or Clock()
    calls = min(allowance.share * effort.REPORT_EVALUATIONS, allowance.calls)
    seconds = max(effort.LEAST_REPORT_SECONDS, min(allowance.share * effort.REPORT_SECONDS, allowance.seconds))
    most = int(min(calls // cost(value_function), EVALUATIONS_TIMES_PLAYERS // players))
    evaluations = int(min(most, seconds / max(allowance.pace, 1e-9) // cost(value_function)))
    smallest = SMALLEST_ROW_EVALUATIONS * players + 2
    overtime = OVERTIME * clock.seconds if clock.seconds < math.inf else 0.0
    affordable = min(most, (seconds + overtime) / max(allowance.pace, 1e-9) // cost(value_function))
    if evaluations < smallest <= affordable:
        evaluations = smallest
    if evaluations < min(smallest, 1 << players):
        return None
    fewest = EXACT_ROWS if 1 << players > FEW_COALITIONS * players else 1
    if players <= MAX_PLAYERS and (rows := min(len(x), evaluations >> players)) >= min(len(x), fewest):
        return Truth(x[:rows], exact(value_function, x[:rows]), f"exact, all {1 << players} coalitions")
    rows = min(len(x), max(1, evaluations // (ROW_EVALUATIONS * players)))
    pairs = max(min(evaluations // rows, LARGEST_ROW_EVALUATIONS * players), smallest) // 2 - 1

    def estimated(x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        phi = explain(x)
        found = residuals(value_function, x, phi, pairs, generator)
        return (phi + found.error).cpu().numpy(), found.variance.sqrt().cpu().numpy()

    start = clock.elapsed()
    parts = [estimated(x[:rows])]
    if evaluations < most:  # Time is the limit, and the pace was a guess.
        spent = clock.elapsed() - start
        affordable = int(min(most // (2 * pairs + 2), rows * seconds / max(spent, 1e-9), len(x)))
        if affordable > rows:
            parts.append(estimated(x[rows:affordable]))
            rows = affordable
    values, stderr = (np.concatenate(part) for part in zip(*parts, strict=True))
    estimate = Estimate(values, stderr, np.full(rows, 2 * pairs + 2), np.zeros(rows, dtype=np.bool_))
    return Truth(x[:rows], estimate, f"unbiased estimate from {pairs} coalition pairs per row")


def evaluation_seconds(game: ValueFunction, x: Tensor, run: Run) -> float:
    """Return how long an evaluation takes when several are made at once: a few coalitions are timed.

    Parameters
    ----------
    game : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        Encoded rows.
    run : Run
        The seed and the clock.
    """
    generator, clock = run.generator("evaluation time"), run.clock
    s = torch.rand(1, TIMED_COALITIONS, game.players, generator=generator, device=x.device) < 0.5
    evaluate(game, x[:1], s[:, :1])  # The first call may take longer.
    start = clock.elapsed()
    evaluate(game, x[:1], s)
    return (clock.elapsed() - start) / TIMED_COALITIONS


def _totals(truth: Truth, device: torch.device) -> Tensor:
    """Return grand minus null, (n, outputs), which true values sum to."""
    return torch.from_numpy(truth.estimate.values.sum(1)).to(device)


def _distances(measured: MeasuredNetwork, truth: Truth) -> Report:
    """Return the report on the network's values alone."""
    with torch.no_grad():
        raw: Tensor = measured.network(truth.rows).double()
    phi = normalize(raw, _totals(truth, truth.rows.device))
    stderr = None
    if measured.error_bars is not None and truth.estimate.stderr.any():
        stderr = measured.error_bars(truth.rows, phi)[0].sqrt().cpu().numpy()
    if not measured.normalized and measured.game.players > 1:
        phi = raw
    return measure(phi.cpu().numpy(), truth.estimate, truth.description, stderr=stderr, held_out=measured.held_out)


def _fidelity_by_size(game: ValueFunction, x: Tensor, y: Tensor, run: Run) -> dict[str, float]:
    """Return the R2 of the game's output to the model's, (n, outputs), by the share of players that are known."""
    generator = run.generator("fidelity")
    found = {}
    for step in range(FIDELITY_STEPS + 1):
        size = round(game.players * step / FIDELITY_STEPS)
        s = subsets(torch.full((len(x), 1), size, device=x.device), game.players, generator)
        v = evaluate(game, x, s)[:, 0]
        found[f"{100 // FIDELITY_STEPS * step} %"] = r2(v.cpu().numpy(), y.cpu().numpy())
    return found


def _model_evaluations(game: ValueFunction) -> int:
    """Return the number of rows that the game's own model has been called with so far."""
    model = called_model(game)
    return 0 if model is None else model.evaluations
