"""How far estimated Shapley values are from true ones.

Every function takes ``values`` and ``truth`` of shape (n, players, outputs) and returns one number a row, (n,),
unless it says otherwise. Distances are over players and outputs together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def l1(values: Array, truth: Array) -> Array:
    """Sum of absolute differences."""
    return np.abs(values - truth).sum(axis=(1, 2))


def l2(values: Array, truth: Array) -> Array:
    """Euclidean distance."""
    return np.sqrt(np.square(values - truth).sum(axis=(1, 2)))


def relative_squared_error(values: Array, truth: Array) -> float:
    """Squared error over all rows as a share of the squared truth.

    >>> relative_squared_error(np.array([[[1.0], [1.0]]]), np.array([[[1.0], [2.0]]]))
    0.2
    """
    size = float(np.square(truth).sum())
    return float(np.square(values - truth).sum()) / size if size > 0 else float("nan")


def cosine(values: Array, truth: Array) -> Array:
    """Cosine of the angle between the two; NaN where either is zero."""
    norms = np.sqrt(np.square(values).sum(axis=(1, 2)) * np.square(truth).sum(axis=(1, 2)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norms > 0, (values * truth).sum(axis=(1, 2)) / norms, np.nan)


def r2(values: Array, truth: Array) -> float:
    """The share of the truth's variance over rows that the values account for, all outputs together.

    Both are (n, outputs); a truth that is constant gives 1 where it is met, else 0.

    >>> r2(np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]))
    0.5
    """
    rest, spread = float(np.square(values - truth).sum()), float(np.square(truth - truth.mean(0)).sum())
    if spread == 0:
        return float(np.allclose(values, truth))
    return 1 - rest / spread


def sign_agreement(values: Array, truth: Array, share: float = 0.05) -> float:
    """The share of large values with the right sign, over all rows.

    A value is large if it is above ``share`` of the largest of its row in absolute value.

    >>> sign_agreement(np.array([[[2.0], [1.0], [1.0]]]), np.array([[[2.0], [-1.0], [0.01]]]))
    0.5
    """
    largest = np.abs(truth).max(axis=(1, 2), keepdims=True)
    large = (np.abs(truth) > share * largest) & (largest > 0)
    if not large.any():
        return float("nan")
    return float((np.sign(values[large]) == np.sign(truth[large])).mean())


def interval(per_row: Array) -> float:
    """Half the width of the 95 % interval of a mean: 1.96 standard errors."""
    return (
        1.96 * float(np.std(per_row, ddof=1)) / float(np.sqrt(len(per_row))) if len(per_row) > 1 else float("nan")
    )
