"""What an estimator returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """Shapley values of given rows.

    values: (n, players, outputs).
    stderr: their standard errors, of the same shape; zero where the values are exact.
    evaluations: coalitions evaluated for each row, null and grand included, (n,).
    converged: whether a row reached the tolerance asked for, (n,).
    """

    values: NDArray[np.float64]
    stderr: NDArray[np.float64]
    evaluations: NDArray[np.int64]
    converged: NDArray[np.bool_]
