"""The report: an explainer's measured distance to the Shapley values of its own game."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastshapley import metrics
from fastshapley.budgets import Budget
from fastshapley.estimators import Estimate, exact, kernel
from fastshapley.estimators.exact import MAX_PLAYERS
from fastshapley.metrics import r2
from fastshapley.models import ModelFunction
from fastshapley.objective import normalize
from fastshapley.training import Run
from fastshapley.value_functions.base import BaseGame, ValueFunction, apply_link, cost, null_values
from fastshapley.value_functions.removal import Removal

logger = logging.getLogger(__name__)

ROWS = 512  # at most
_EVALUATIONS = 2_000_000  # of the user's model or of the surrogate, spent on the truth
_WORK = 60_000_000  # evaluations times players: drawing and solving take their time too
_FEWEST = 32  # rows whose exact values are worth more than estimates of all
_SECONDS = 30.0


@dataclass(frozen=True)
class Report:
    """Distances on held-out rows, which training did not see in any way; ``str(report)`` is a table.

    l1, l2: mean distances over players and outputs together; l2_interval: half the 95 % interval of l2.
    relative_squared_error: squared error as a share of the squared values.
    cosine: mean cosine between a row's values and the truth.
    sign_agreement: share of the values above 5 % of the row's largest that have the right sign.
    truth: how the true values were found; truth_error: the mean l2 error that remains in them.
    held_out: False where there were too few rows to hold any out.
    fidelity: R2 of the game's output for whole rows to the user's model: what a surrogate loses; None if there is
        no model.
    """

    rows: int
    truth: str
    truth_error: float
    l1: float
    l2: float
    l2_interval: float
    relative_squared_error: float
    cosine: float
    sign_agreement: float
    fidelity: float | None = None
    held_out: bool = True

    def __str__(self) -> str:
        error = f" (l2 error about {self.truth_error:.2g})" if self.truth_error > 0 else ""
        lines = {
            "truth": self.truth + error,
            "l2 distance": f"{self.l2:.4g}" + (f" +- {self.l2_interval:.2g}" if self.rows > 1 else ""),
            "l1 distance": f"{self.l1:.4g}",
            "relative squared error": f"{self.relative_squared_error:.4f}",
            "cosine": f"{self.cosine:.4f}",
            "right sign, large values": f"{100 * self.sign_agreement:.1f} %",
        }
        if self.fidelity is not None:
            lines["game's output to model's, R2"] = f"{self.fidelity:.4f}"
        rows = [f"  {name:28s} {'-' if 'nan' in text else text}" for name, text in lines.items()]
        kind = "held-out" if self.held_out else "training"
        return "\n".join([f"Distance to the Shapley values on {self.rows} {kind} rows", *rows])

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return asdict(self)


def measure_network(
    network: nn.Module,
    game: ValueFunction,
    model: ModelFunction | None,
    x: Tensor,
    run: Run,
    pace: float,
    budget: Budget,
    *,
    normalized: bool,
    held_out: bool,
) -> Report | None:
    """The report on an explainer's network for the rows ``x``, or for as many as can be afforded.

    ``pace`` is the seconds that a row takes which the model, or the surrogate, is called with.
    """
    calls, seconds = budget.for_report(game), run.clock.left()
    found = true_values(game, x, run.seed, calls=calls, pace=pace, seconds=seconds)
    if found is None:
        logger.warning("no report: time_budget or evaluation_budget leaves nothing to measure the error with")
        return None
    rows, truth, how = found
    with torch.no_grad():
        phi: Tensor = network(rows).double().cpu()
    total = torch.from_numpy(truth.values.sum(1))  # the estimates sum to grand minus null
    if normalized or game.players == 1:
        phi = normalize(phi, total)
    fidelity = None
    if isinstance(game, Removal) and game.model_ is model:
        fidelity = 1.0  # the game is the model
    elif model is not None and model.outputs == game.outputs and (some := int(min(budget.left(), len(rows)))):
        y = apply_link(game.link if isinstance(game, BaseGame) else "identity", model(rows[:some]))
        fidelity = r2((total + null_values(game, rows).cpu())[:some].numpy(), y.cpu().numpy())
    return measure(phi.numpy(), truth, how, fidelity=fidelity, held_out=held_out)


def measure(
    values: NDArray[np.float64],
    truth: Estimate,
    how: str,
    *,
    fidelity: float | None = None,
    held_out: bool = True,
) -> Report:
    """The report for ``values`` (n, players, outputs) held against an estimate of the same rows."""
    cosines = metrics.cosine(values, truth.values)
    l2 = metrics.l2(values, truth.values)
    return Report(
        rows=len(values),
        truth=how,
        truth_error=float(np.sqrt(np.square(truth.stderr).sum((1, 2))).mean()),
        l1=float(metrics.l1(values, truth.values).mean()),
        l2=float(l2.mean()),
        l2_interval=metrics.interval(l2),
        relative_squared_error=metrics.relative_squared_error(values, truth.values),
        cosine=float(np.nanmean(cosines)) if np.isfinite(cosines).any() else float("nan"),
        sign_agreement=metrics.sign_agreement(values, truth.values),
        fidelity=fidelity,
        held_out=held_out,
    )


def true_values(
    value_function: ValueFunction, x: Tensor, seed: int, *, calls: float, pace: float, seconds: float
) -> tuple[Tensor, Estimate, str] | None:
    """Some of the rows ``x``, their Shapley values as well as can be afforded, and how these were found.

    ``calls`` is how many rows the model may be called with, ``pace`` the seconds that a row takes, and ``seconds``
    how many there are. None if that does not do for one row.
    """
    players = value_function.players
    calls = min(_EVALUATIONS, calls, min(_SECONDS, seconds) / max(pace, 1e-9))
    evaluations = int(min(calls // cost(value_function), _WORK // players))
    if evaluations < min(8 * players + 2, 1 << players):
        return None
    fewest = _FEWEST if 1 << players > 32 * players else 1  # of few players all coalitions are the cheapest truth
    if players <= MAX_PLAYERS and (rows := min(len(x), evaluations >> players)) >= min(len(x), fewest):
        return x[:rows], exact(value_function, x[:rows]), f"exact, all {1 << players} coalitions"
    x = x[: max(1, evaluations // (32 * players))]
    budget = max(min(evaluations // len(x), 1024 * players), 8 * players + 2)
    truth = kernel(value_function, x, budget=budget, sampling="leverage", random_state=seed)
    return x, truth, f"kernel estimator by leverage, {budget} evaluations a row"
