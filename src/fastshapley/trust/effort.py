"""How much work is spent on error bars and on the report.

The numbers are read at call time. `FastSHAP.advise` uses the same ones to predict how long a fit takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastshapley.errors import InputError

ERROR_BAR_ROWS = 2048  # The largest number of rows that error bars learn from.
CALIBRATION_ROWS = 512  # The largest number of rows that error bars are calibrated on.
ERROR_BAR_EVALUATIONS = 1_000_000  # Evaluations of the game to learn error bars, and as many to calibrate them.
ERROR_BAR_CALLS = 600_000  # Calls of the model, or of the surrogate, for each of both.
NOISY_EVALUATIONS = 10_000_000  # Evaluations of a noisy game, times its players, for each of both.
ERROR_BAR_SECONDS = 60.0  # Time for the evaluations of both, in seconds.
REPORT_ROWS = 512  # The largest number of held-out rows that the report is measured on.
REPORT_EVALUATIONS = 2_000_000  # Calls of the model, or of the surrogate, for the true values of the report.
REPORT_SECONDS = 30.0  # Time for these, in seconds.
LEAST_REPORT_SECONDS = 1.0  # Time for these, at least, so that a used-up time budget leaves a report.


@dataclass(frozen=True)
class Allowance:
    """What may be spent on one task.

    Parameters
    ----------
    calls : float
        The number of rows that the model, or the surrogate, may be called with.
    seconds : float
        The time that is left, in seconds.
    pace : float
        The time of one such call, in seconds.
    share : float, default=1.0
        The share of the usual effort to make.

    Raises
    ------
    InputError
        If a number is negative or NaN.
    """

    calls: float = math.inf
    seconds: float = math.inf
    pace: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("calls", "seconds", "pace", "share"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}: it must not be negative")
