"""Correcting a network's values by evaluations of its game."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.estimators.refinement import Prior, RefinementOptions, refine
from fastshapley.explanation import taken_up
from fastshapley.fit.fitted import Fitted
from fastshapley.support.shap_import import shap
from fastshapley.training.checkpoint import fingerprint
from fastshapley.training.run import seed_of
from fastshapley.value_functions.sums import check_evaluable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Correction:
    """How values are corrected.

    Attributes
    ----------
    budget : int or None
        Evaluations per row, on average.
    tol : float or None
        The largest standard error that is accepted, as a share of the range of a row's values.
    start : shap.Explanation or None
        An earlier explanation of the same rows to go on from.
    random_state : int or NumPy generator, optional
        The seed of the coalitions.
    progress : bool
        Whether a progress bar is shown.
    warns : bool
        Whether rows outside of the range of the training rows, whose errors are unknown, are warned of.
    """

    budget: int | None = None
    tol: float | None = None
    start: shap.Explanation | None = None
    random_state: Any = None
    progress: bool = False
    warns: bool = True


def correct(fitted: Fitted, x: Tensor, values: Tensor, correction: Correction) -> tuple[Tensor, Tensor]:
    """Return values and their standard errors as values of the game, corrected within a budget or a tolerance.

    Parameters
    ----------
    fitted : Fitted
        The explainer.
    x : Tensor
        Encoded rows.
    values : Tensor
        The network's values (n, players, outputs).
    correction : Correction
        What may be spent.

    Returns
    -------
    values, stderr : Tensor
        Both (n, players, outputs).

    Raises
    ------
    InputError
        If the explainer's values are not normalised, or if it has no error bars.
    ModelError
        If the game is to be evaluated, and was restored without its model.
    """
    if not fitted.normalized:
        raise InputError(
            "errors, budget and tol need values that sum to grand minus null: fit with normalize='always'"
        )
    if fitted.game.players == 1:
        return values, torch.zeros_like(values)  # the one player has all of the difference
    if fitted.errors is None:
        raise InputError(
            "errors, budget and tol need error bars, which this explainer did not learn. Fit it with "
            "recipe='default', with enough rows to hold some out, and with time and evaluations left"
        )
    variance, noise = fitted.errors(x, values)
    if correction.start is not None:
        values, known = taken_up(correction.start, values)
        if getattr(correction.start, "errors_about", "game") == "model":
            known = (known - fitted.errors.game_variance.to(known)).clamp(min=0)
        variance = torch.where(known.isnan(), variance, known)
    if correction.budget is None and correction.tol is None:
        unknown = fitted.errors.outside(x) if correction.start is None else known.isnan().all((1, 2))
        if correction.warns:
            _warn(unknown)
        return values, variance.sqrt().masked_fill(unknown[:, None, None], torch.nan)
    check_evaluable(fitted.game)
    found = refine(
        fitted.game,
        x,
        Prior(values, variance, noise, fitted.errors.head.profile),
        RefinementOptions(
            budget=correction.budget,
            tol=correction.tol,
            # The seed depends on the values, so that going on from them draws other coalitions.
            random_state=int(fingerprint(seed_of(correction.random_state), values)[:15], 16),
            progress=correction.progress,
        ),
    )
    return torch.from_numpy(found.values).to(values), torch.from_numpy(found.stderr).to(values)


def _warn(outside: Tensor) -> None:
    """Warn of rows outside of the range of the training rows."""
    if (count := int(outside.sum())) > 0:
        logger.warning(
            "%d of %d rows have numbers outside of the range of the training rows, where the network's error is "
            "unknown: their error_std is NaN. Use budget= or tol= to correct and measure their values.",
            count,
            len(outside),
        )
