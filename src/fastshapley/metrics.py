"""Distances between estimated and true Shapley values.

Unless a function says otherwise, it takes ``values`` and ``truth`` of shape (n, players, outputs) and returns one
number per row, (n,). Distances are over players and outputs together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from fastshapley.errors import InputError

Array = NDArray[np.float64]

RESAMPLED_AT_ONCE = 1_000_000  # values that `bootstrap_interval` holds in memory at once


def l1(values: Array, truth: Array) -> Array:
    """Return the sum of absolute differences of each row, (n,)."""
    return np.abs(values - truth).sum(axis=(1, 2))


def l2(values: Array, truth: Array) -> Array:
    """Return the Euclidean distance of each row, (n,)."""
    return np.sqrt(np.square(values - truth).sum(axis=(1, 2)))


def relative_squared_error(values: Array, truth: Array) -> float:
    """Return the squared error over all rows as a share of the squared truth.

    Parameters
    ----------
    values, truth : ndarray of shape (n, players, outputs)
        The values to assess, and the true ones.

    Returns
    -------
    float
        The error; NaN if the truth is zero everywhere.

    Examples
    --------
    >>> relative_squared_error(np.array([[[1.0], [1.0]]]), np.array([[[1.0], [2.0]]]))
    0.2
    """
    size = float(np.square(truth).sum())
    return float(np.square(values - truth).sum()) / size if size > 0 else float("nan")


def cosine(values: Array, truth: Array) -> Array:
    """Return the cosine of the angle between values and truth, (n,); NaN where either is zero."""
    norms = np.sqrt(np.square(values).sum(axis=(1, 2)) * np.square(truth).sum(axis=(1, 2)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norms > 0, (values * truth).sum(axis=(1, 2)) / norms, np.nan)


def r2(values: Array, truth: Array) -> float:
    """Return the share of the truth's variance over rows that the values explain.

    All entries of a row count together.

    Parameters
    ----------
    values, truth : ndarray of shape (n, ...)
        The values to assess, and the true ones.

    Returns
    -------
    float
        The R2. If the truth is the same for every row, it is 1 where the values equal it, else 0.

    Examples
    --------
    >>> r2(np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]))
    0.5
    """
    unexplained, variation = float(np.square(values - truth).sum()), float(np.square(truth - truth.mean(0)).sum())
    if variation == 0:
        return float(np.allclose(values, truth))
    return 1 - unexplained / variation


def spearman(values: Array, truth: Array) -> Array:
    """Return Spearman's rank correlation over players and outputs together, (n,); NaN where either is constant.

    Examples
    --------
    >>> spearman(np.array([[[1.0], [2.0], [3.0]]]), np.array([[[1.0], [3.0], [2.0]]]))
    array([0.5])
    """
    ranks = (stats.rankdata(a.reshape(len(a), -1, 1), axis=1) for a in (values, truth))
    return cosine(*(rank - rank.mean(1, keepdims=True) for rank in ranks))


def kendall(values: Array, truth: Array) -> Array:
    """Return Kendall's rank correlation (tau-b), (n,); NaN where values or truth are constant.

    Examples
    --------
    >>> kendall(np.array([[[1.0], [2.0], [3.0]]]), np.array([[[1.0], [2.0], [3.0]]]))
    array([1.])
    """
    rows = zip(values, truth, strict=True)
    return np.array([stats.kendalltau(a.ravel(), b.ravel()).statistic for a, b in rows], dtype=np.float64)


def top_k_overlap(values: Array, truth: Array, k: int) -> Array:
    """Return the share of the ``k`` players with the largest absolute values that agree, averaged over outputs.

    Parameters
    ----------
    values, truth : ndarray of shape (n, players, outputs)
        The values to assess, and the true ones.
    k : int
        The number of players to compare.

    Returns
    -------
    ndarray of shape (n,)
        The shares.

    Raises
    ------
    InputError
        If ``k`` does not lie between 1 and the number of players.

    Examples
    --------
    >>> top_k_overlap(np.array([[[3.0], [2.0], [1.0]]]), np.array([[[-3.0], [1.0], [2.0]]]), k=2)
    array([0.5])
    """
    if not 1 <= k <= truth.shape[1]:
        raise InputError(f"k is {k}: it must lie between 1 and the number of players, {truth.shape[1]}")
    top, true = (np.argsort(-np.abs(a), axis=1, kind="stable")[:, :k] for a in (values, truth))
    return (top[:, :, None] == true[:, None]).sum(axis=(1, 2)).mean(axis=1) / k


def sign_agreement(values: Array, truth: Array, share: float = 0.05) -> float:
    """Return the share of large values with the correct sign, over all rows.

    Parameters
    ----------
    values, truth : ndarray of shape (n, players, outputs)
        The values to assess, and the true ones.
    share : float, default=0.05
        A value is large if its magnitude is above this share of the largest magnitude of its row.

    Returns
    -------
    float
        The share; NaN if no value is large.

    Examples
    --------
    >>> sign_agreement(np.array([[[2.0], [1.0], [1.0]]]), np.array([[[2.0], [-1.0], [0.01]]]))
    0.5
    """
    largest = np.abs(truth).max(axis=(1, 2), keepdims=True)
    large = (np.abs(truth) > share * largest) & (largest > 0)
    if not large.any():
        return float("nan")
    return float((np.sign(values[large]) == np.sign(truth[large])).mean())


def expected_sign_agreement(values: Array, stderr: Array, share: float = 0.05) -> float:
    """Return the expected share of large values with the correct sign, given their standard errors.

    Parameters
    ----------
    values, stderr : ndarray of shape (n, players, outputs)
        The values and their standard errors.
    share : float, default=0.05
        A value is large if its magnitude is above this share of the largest magnitude of its row.

    Returns
    -------
    float
        The share; NaN if no value is large.

    Examples
    --------
    >>> round(expected_sign_agreement(np.array([[[2.0], [1.0]]]), np.array([[[1.0], [1e9]]])), 4)  # .9772 and .5
    0.7386
    """
    largest = np.abs(values).max(axis=(1, 2), keepdims=True)
    large = (np.abs(values) > share * largest) & (largest > 0)
    if not large.any():
        return float("nan")
    with np.errstate(divide="ignore"):
        return float(stats.norm.cdf(np.abs(values[large]) / stderr[large]).mean())


def interval(per_row: Array) -> float:
    """Return half the width of the 95 % interval of a mean over rows, 1.96 standard errors; NaN for one row."""
    return (
        1.96 * float(np.std(per_row, ddof=1)) / float(np.sqrt(len(per_row))) if len(per_row) > 1 else float("nan")
    )


def bootstrap_interval(
    per_row: Array, level: float = 0.95, resamples: int = 2000, random_state: int | None = 0
) -> tuple[float, float]:
    """Return an interval of a mean over rows, from the percentiles of the means of resampled rows.

    Parameters
    ----------
    per_row : ndarray of shape (n,)
        One number per row.
    level : float, default=0.95
        The coverage of the interval.
    resamples : int, default=2000
        The number of times that rows are resampled.
    random_state : int or None, default=0
        The seed.

    Returns
    -------
    low, high : float
        The ends of the interval.

    Raises
    ------
    InputError
        If there are no rows, or ``level`` does not lie between 0 and 1.

    Examples
    --------
    >>> low, high = bootstrap_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> low < 2.5 < high
    True
    """
    if len(per_row) == 0 or not 0 < level < 1:
        raise InputError(
            f"level is {level} with {len(per_row)} rows: give a level between 0 and 1, and at least one row"
        )
    generator = np.random.default_rng(random_state)
    rows = len(per_row)
    block = max(1, RESAMPLED_AT_ONCE // rows)
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    means = [per_row[generator.integers(rows, size=(size, rows))].mean(axis=1) for size in sizes]
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def evaluations_to_match(budgets: ArrayLike, errors: ArrayLike, target: float) -> float:
    """Return the budget at which a falling curve of errors first reaches a target.

    The curve is interpolated linearly on logarithmic axes.

    Parameters
    ----------
    budgets, errors : array-like of shape (b,)
        Increasing budgets, and the error at each.
    target : float
        The error to reach.

    Returns
    -------
    float
        The budget; infinity if the target is never reached.

    Raises
    ------
    InputError
        If the budgets do not increase, or the lengths differ.

    Examples
    --------
    >>> round(evaluations_to_match([100, 10_000], [1.0, 0.1], target=0.1**0.5))
    1000
    """
    b, e = np.asarray(budgets, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if b.shape != e.shape or b.ndim != 1 or (np.diff(b) <= 0).any():
        raise InputError(
            f"budgets are {b.tolist()} with {e.size} errors: budgets must increase, with an error for each"
        )
    reached = np.flatnonzero(e <= target)
    if len(reached) == 0:
        return float("inf")
    last = int(reached[0])
    if last == 0 or e[last] <= 0:  # An error of zero has no logarithm.
        return float(b[last])
    pair = slice(last - 1, last + 1)
    # np.interp needs increasing abscissae.
    return float(np.exp(np.interp(np.log(target), np.log(e[pair])[::-1], np.log(b[pair])[::-1])))
