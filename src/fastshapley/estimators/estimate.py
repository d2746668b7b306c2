"""The result of an estimator, and the rule by which a row has converged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.errors import InputError


@dataclass(frozen=True)
class Estimate:
    """Shapley values of given rows.

    Attributes
    ----------
    values : ndarray of shape (n, players, outputs)
        The estimated Shapley values.
    stderr : ndarray of shape (n, players, outputs)
        The standard error of each value; zero where the values are exact.
    evaluations : ndarray of shape (n,)
        The number of coalitions evaluated for each row, null and grand included.
    converged : ndarray of shape (n,)
        Whether a row reached the requested tolerance; True for exact values.
    budgets : ndarray of shape (b,)
        The budgets at which intermediate values were kept; empty without ``history``.
    history : ndarray of shape (b, n, players, outputs)
        The values after each of ``budgets`` evaluations, from the same run; empty without ``history``.
    """

    values: NDArray[np.float64]
    stderr: NDArray[np.float64]
    evaluations: NDArray[np.int64]
    converged: NDArray[np.bool_]
    budgets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    history: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def check_tolerance(tol: float | None) -> None:
    """Check that a tolerance, if there is one, lies between 0 and 1.

    Raises
    ------
    InputError
        If it does not.
    """
    if tol is not None and not 0 < tol < 1:
        raise InputError(f"tol is {tol}: it must lie between 0 and 1")


def within_tolerance(values: Tensor, stderr: Tensor, tol: float) -> Tensor:
    """Return for each row whether its largest standard error is at most ``tol`` times the range of its values.

    Parameters
    ----------
    values, stderr : Tensor of shape (n, players, outputs)
        The values and their standard errors.
    tol : float
        The tolerance, relative to the range of a row's values.

    Returns
    -------
    Tensor of shape (n,)
        Booleans.
    """
    value_range = values.amax((1, 2)) - values.amin((1, 2))
    return stderr.amax((1, 2)) <= tol * value_range
