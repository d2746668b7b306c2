"""The report: the distance of an explainer's values to the Shapley values of the user's model.

The distance has two parts. The network's is measured: its values are compared with the exact ones of its game. The
game's is estimated, because nobody knows the conditional distribution of the user's rows.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley import metrics
from fastshapley.estimators import Estimate

POOR_ERROR = 0.1  # A larger relative squared error is worth a warning.
POOR_SIGNS = 0.9  # A smaller share of correct signs is worth a warning.
POOR_FIDELITY = 0.9  # A smaller R2 of the surrogate is worth a warning.
FEW_ROWS = 20  # Fewer rows are worth a warning.
LABEL_WIDTH = 37  # The width of the column of labels; the longest one has 37 characters.
SURROGATE_SOURCE = "from the surrogate's squared error for whole rows"
CHOICE_SOURCE = "from held-out differences between the surrogate and the sampled game"
DEFINITION_SOURCE = "the values are defined by this game"


@dataclass(frozen=True)
class Report:
    """Distances on rows that were held out from training. ``str(report)`` is a table.

    Attributes
    ----------
    rows : int
        The number of rows.
    truth : str
        How the true values were found.
    truth_error : float
        The mean l2 error that remains in them.
    l1, l2 : float
        Mean distances of a row, over players and outputs together.
    l2_interval : float
        Half the 95 % interval of ``l2``.
    relative_squared_error : float
        The mean squared error as a share of the squared values.
    cosine : float
        The mean cosine between a row's values and the true ones.
    sign_agreement : float
        The share of values above 5 % of the row's largest one that have the correct sign. If the true values are
        not exact and error bars are known, it is the share expected by the error bars.
    fidelity : float or None
        R2 of the game's output to the model's for whole rows: 1 unless a surrogate stands in for the model; None
        without a model.
    held_out : bool
        False if there were too few rows to hold any out.
    mean_squared_error : float
        The mean squared error of a row, over players and outputs together. The error of the true values is
        subtracted, so it is unbiased even if these are imprecise.
    mean_squared_error_interval : float
        Half its 95 % interval.
    fidelity_by_size : dict or None
        The R2 of the game's output to the model's by the share of players that are known. It cannot be 1 where
        these do not determine the output.
    game_error : float or None
        The estimated mean squared error of a row that the exact values of the game have, as values of the model.
        None if it is unknown.
    game_error_source : str
        How it was estimated.
    mean_squared_value : float
        The mean over rows of the sum of a row's squared true values.
    sampling_error : float
        The mean squared error of the true values, from random coalitions. ``mean_squared_error`` does not contain
        it.
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
    mean_squared_error: float = math.nan
    mean_squared_error_interval: float = math.nan
    fidelity_by_size: dict[str, float] | None = None
    game_error: float | None = None
    game_error_source: str = ""
    mean_squared_value: float = math.nan
    sampling_error: float = 0.0

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Report:
        """Return the report that `to_dict` made a dictionary of, also by the first version of the package."""
        saved = dict(saved)
        if (earlier := saved.pop("surrogate_error", None)) is not None:
            saved.setdefault("game_error", earlier)
            saved.setdefault("game_error_source", SURROGATE_SOURCE if earlier else "")
        if "mean_squared_value" not in saved and saved["relative_squared_error"]:
            saved["mean_squared_value"] = saved["mean_squared_error"] / saved["relative_squared_error"]
        return cls(**saved)

    @property
    def relative_game_error(self) -> float:
        """The game's error as a share of the squared values; NaN if it is unknown."""
        if self.game_error is None or not self.mean_squared_value > 0:
            return math.nan
        return self.game_error / self.mean_squared_value

    @property
    def total_relative_squared_error(self) -> float:
        """The error to the model's own Shapley values: the network's and the game's. NaN if one is unknown."""
        return max(0.0, self.relative_squared_error) + self.relative_game_error

    def lines(self) -> dict[str, str]:
        """Return the lines of the table, by label."""
        about = f" (l2 error about {self.truth_error:.2g})" if self.truth_error > 0 else ""
        several = self.rows > 1
        found = {
            "total relative squared error": self._total(),
            "  network (measured)": f"{self.relative_squared_error:.4f}",
            "  game (estimated)": self._game(),
            "truth for the network": self.truth + about,
            "mean squared error": f"{self.mean_squared_error:.3g}"
            + (f" +- {self.mean_squared_error_interval:.1g}" if several else ""),
            **self._sampling(),
            "l2 distance": f"{self.l2:.4g}" + (f" +- {self.l2_interval:.2g}" if several else ""),
            "l1 distance": f"{self.l1:.4g}",
            "cosine": f"{self.cosine:.4f}",
            "correct sign, large values": f"{100 * self.sign_agreement:.1f} %",
        }
        if self.fidelity is not None:
            found["fidelity for whole rows (R2)"] = f"{self.fidelity:.4f}"
        if self.fidelity_by_size is not None:
            found["  by share of players known"] = ", ".join(
                f"{share} {value:.2f}" for share, value in self.fidelity_by_size.items()
            )
        return {name: "-" if "nan" in text else text for name, text in found.items()}

    def _total(self) -> str:
        total = self.total_relative_squared_error
        if math.isnan(total):
            return f"at least {self.relative_squared_error:.4f}"
        return f"{total:.4f} (typical error {100 * math.sqrt(total):.0f} % of the values)"

    def _game(self) -> str:
        if self.game_error is None:
            return "unknown" + (f": {self.game_error_source}" if self.game_error_source else "")
        return f"{self.relative_game_error:.4f}" + (f", {self.game_error_source}" if self.game_error_source else "")

    def _other_game(self) -> str:
        return ", use value_function='conditional'" if self.fidelity is not None and self.fidelity < 1 else ""

    def _sampling(self) -> dict[str, str]:
        if not self.sampling_error:
            return {}
        return {"  sampling noise (already subtracted)": f"{self.sampling_error:.3g}"}

    def warnings(self) -> list[str]:
        """Return why the values should not be trusted as they are, and what to do; empty if they are fine."""
        found = []
        if not self.held_out:
            found.append(
                "The errors were measured on rows that were used for training, so errors on new rows are larger. "
                "Fit with more rows, or pass X_val."
            )
        elif self.rows < FEW_ROWS:
            found.append(
                f"The errors were measured on only {self.rows} rows, so they are uncertain. Fit with more rows, or "
                "pass X_val."
            )
        if self.relative_squared_error > POOR_ERROR:
            found.append(
                f"The network's typical error is {100 * math.sqrt(self.relative_squared_error):.0f} % of the size "
                "of the values: trust only the largest values of a row. Fit with more rows, or correct values with "
                "budget= or tol=."
            )
        if self.relative_game_error > POOR_ERROR:
            found.append(
                f"The game's typical error is about {100 * math.sqrt(self.relative_game_error):.0f} % of the size "
                "of the values: these values describe the model only roughly, and budget= does not help. Fit with "
                "more rows" + self._other_game() + ", or use value_function='marginal', which needs no conditional "
                "distributions."
            )
        if self.sign_agreement < POOR_SIGNS:
            found.append(
                f"{100 - 100 * self.sign_agreement:.0f} % of the large values have the wrong sign. Fit with more "
                "rows, or correct values with budget= or tol=."
            )
        if self.fidelity is not None and self.fidelity < POOR_FIDELITY:
            found.append(
                f"The surrogate explains only {100 * max(0.0, self.fidelity):.0f} % of the variance of the model's "
                "outputs, so these values do not describe the model well. Fit with more rows, or use "
                "value_function='marginal'."
            )
        return found

    def __str__(self) -> str:
        rows = [f"  {name:{LABEL_WIDTH}s} {text}" for name, text in self.lines().items()]
        return "\n".join([self._title(), *rows, *(f"! {text}" for text in self.warnings())])

    def _repr_html_(self) -> str:
        cell = "<{0} style='text-align: left'>{1}</{0}>"
        rows = "".join(
            f"<tr>{cell.format('th', escape(name))}{cell.format('td', escape(text))}</tr>"
            for name, text in self.lines().items()
        )
        notes = "".join(f"<p><strong>&#9888; {escape(text)}</strong></p>" for text in self.warnings())
        return f"<table><caption>{escape(self._title())}</caption>{rows}</table>{notes}"

    def _title(self) -> str:
        kind = "held-out" if self.held_out else "training"
        whose = "game" if self.game_error is None else "model"
        return f"Distance to the Shapley values of the {whose} on {self.rows} {kind} rows"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


def measure(
    values: NDArray[np.float64],
    truth: Estimate,
    how: str,
    *,
    stderr: NDArray[np.float64] | None = None,
    fidelity: float | None = None,
    held_out: bool = True,
) -> Report:
    """Compare values with an estimate of the true values of the same rows.

    Parameters
    ----------
    values : ndarray of shape (n, players, outputs)
        The values to assess.
    truth : Estimate
        The true values, and their standard errors.
    how : str
        How the true values were found.
    stderr : ndarray of shape (n, players, outputs) or None
        The standard errors of ``values``. If given, the share of correct signs is the one expected by them.
    fidelity : float or None
        R2 of the game's output to the model's.
    held_out : bool, default=True
        Whether the rows were held out from training.

    Returns
    -------
    Report
        The distances.
    """
    cosines = metrics.cosine(values, truth.values)
    l2 = metrics.l2(values, truth.values)
    noise = np.square(truth.stderr).sum((1, 2))
    squared = np.square(l2) - noise
    size = float((np.square(truth.values).sum((1, 2)) - noise).sum())
    signs = metrics.sign_agreement(values, truth.values)
    return Report(
        rows=len(values),
        truth=how,
        truth_error=float(np.sqrt(noise).mean()),
        l1=float(metrics.l1(values, truth.values).mean()),
        l2=float(l2.mean()),
        l2_interval=metrics.interval(l2),
        relative_squared_error=float(squared.sum()) / size if size > 0 else math.nan,
        cosine=float(np.nanmean(cosines)) if np.isfinite(cosines).any() else math.nan,
        sign_agreement=signs if stderr is None else metrics.expected_sign_agreement(values, stderr),
        fidelity=fidelity,
        held_out=held_out,
        mean_squared_error=float(squared.mean()),
        mean_squared_error_interval=metrics.interval(squared),
        mean_squared_value=size / len(values),
        sampling_error=float(noise.mean()),
    )
