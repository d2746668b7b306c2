"""The report: the distance of an explainer's values to the Shapley values of the user's model.

The distance has two parts. The network's is measured: its values are compared with the exact ones of its game. The
game's is estimated, because nobody knows the conditional distribution of the user's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fastshapley.estimators import Estimate

Array = NDArray[np.float64]

POOR_ERROR = 0.1  # A larger relative squared error is worth a warning.
POOR_SIGNS = 0.9  # A smaller share of correct signs is worth a warning.
POOR_PLAYER_SIGNS = 0.75  # A smaller share of correct signs of one player is worth a warning.
POOR_FIDELITY = 0.9  # A smaller R2 of the surrogate is worth a warning.
POOR_ROWS = 0.5  # A tenth of the rows with a larger relative squared error is worth a warning.
POOR_NOISE = 1e-4  # A larger share of noise of the model in the squared values is worth a warning.
FEW_SIGNS = 20  # Fewer large values of a player say nothing about its signs.
ROW_NOISE = 0.1  # The largest share of sampling noise in squared true values that lets rows be told apart.
FEW_ROWS = 20  # Fewer rows are worth a warning.
LARGE = 0.05  # A value is large above this share of the largest one of its row and output.
CERTAIN = 3.0  # Standard errors above which the sign of a true value is certain.
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
        The mean squared error as a share of the squared values; of the worst output, if there are several.
    cosine : float
        The mean cosine between a row's values and the true ones.
    sign_agreement : float
        The share of values above 5 % of the row's largest one that have the correct sign. If the true values are
        not exact and error bars are known, it is the share expected by the error bars. Of several outputs, it is
        that of the worst one, and a value is compared with the largest one of its own output.
    fidelity : float or None
        R2 of the game's output to the model's for whole rows: 1 unless a surrogate stands in for the model; None
        without a model. It is that of the worst output.
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
    relative_squared_errors, mean_squared_values : tuple of float
        ``relative_squared_error`` and ``mean_squared_value`` of each output. The error is NaN for an output whose
        values are smaller than their sampling noise, such as the probability of a class that hardly occurs.
    game_errors : tuple of float or None
        ``game_error`` of each output.
    fidelities : tuple of float
        The fidelity of each output; empty if it is unknown.
    median_row_error, worst_decile_row_error : float
        The relative squared error of the median row, and the one that a tenth of the rows exceed. Outputs count
        equally. None if the true values are too imprecise for single rows.
    player_sign_agreements : tuple of float
        The share of correct signs among the large values of each player; None where there are too few.
    model_noise : float
        The variance of the model's outputs between two calls with the same rows, summed over the outputs; 0 for a
        model that always answers the same.
    seen_rows : int
        The number of validation rows that are also training rows. They were left out if there are others.
    player_names, output_names : tuple of str
        The names of the players and of the outputs.
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
    relative_squared_errors: tuple[float, ...] = ()
    mean_squared_values: tuple[float, ...] = ()
    game_errors: tuple[float, ...] | None = None
    fidelities: tuple[float, ...] = ()
    median_row_error: float | None = None
    worst_decile_row_error: float | None = None
    player_sign_agreements: tuple[float | None, ...] = ()
    model_noise: float = 0.0
    seen_rows: int = 0
    player_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Report:
        """Return the report that `to_dict` made a dictionary of, also by the first version of the package."""
        saved = {name: each for name, each in saved.items() if name != "warnings"}  # Graphs have them as text.
        if (earlier := saved.pop("surrogate_error", None)) is not None:
            saved.setdefault("game_error", earlier)
            saved.setdefault("game_error_source", SURROGATE_SOURCE if earlier else "")
        if "mean_squared_value" not in saved and saved["relative_squared_error"]:
            saved["mean_squared_value"] = saved["mean_squared_error"] / saved["relative_squared_error"]
        saved = {name: tuple(each) if isinstance(each, list) else each for name, each in saved.items()}
        return cls(**saved)

    @property
    def relative_game_error(self) -> float:
        """The game's error as a share of the squared values, of the worst output; NaN if it is unknown."""
        return _worst(self._relative(self.game_errors, self.game_error), max)

    @property
    def relative_model_noise(self) -> float:
        """The noise of a model that is not deterministic in the values, as a share of the squared values.

        Values sum to one noisy output, and each player has the same part of its noise.
        """
        return self._noise_share() / max(1, len(self.player_names))

    def _noise_share(self) -> float:
        return self.model_noise / self.mean_squared_value if self.model_noise > 0 else 0.0

    @property
    def total_relative_squared_error(self) -> float:
        """The error to the model's own Shapley values, of the worst output. NaN if a part is unknown.

        It consists of the network's error, the game's, and the noise of a model that is not deterministic.
        """
        network = self.relative_squared_errors or (self.relative_squared_error,)
        game = self._relative(self.game_errors, self.game_error)
        totals = [max(0.0, a) + b for a, b in zip(network, game, strict=True)]
        return _worst(totals, max) + self.relative_model_noise

    def _relative(self, errors: tuple[float, ...] | None, total: float | None) -> tuple[float, ...]:
        """Return errors of each output as shares of its squared values; NaN where they are unknown."""
        sizes = self.mean_squared_values or (self.mean_squared_value,)
        each = errors if errors is not None and len(errors) == len(sizes) else (total,) * len(sizes)
        noisy = [math.isnan(known) for known in self.relative_squared_errors] or [False]
        parts = zip(each, sizes, noisy, strict=True)
        return tuple(math.nan if error is None or not size > 0 or no else error / size for error, size, no in parts)

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
            **self._by_row(),
            "l2 distance": f"{self.l2:.4g}" + (f" +- {self.l2_interval:.2g}" if several else ""),
            "l1 distance": f"{self.l1:.4g}",
            "cosine": f"{self.cosine:.4f}",
            "correct sign, large values": f"{100 * self.sign_agreement:.1f} %",
        }
        if self.fidelity is not None:
            found["fidelity for whole rows (R2)"] = f"{self.fidelity:.4f}"
        if self.model_noise > 0:
            found["noise of the model"] = f"{self.relative_model_noise:.4f} of the squared values"
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

    def _by_row(self) -> dict[str, str]:
        found = {}
        if len(self.relative_squared_errors) > 1:
            worst = int(np.argmax(np.nan_to_num(self.relative_squared_errors)))
            found["  worst output"] = self._name(self.output_names, worst, "output")
        if self.median_row_error is not None and self.worst_decile_row_error is not None:
            found["relative squared error by row"] = (
                f"median {self.median_row_error:.4f}, worst tenth above {self.worst_decile_row_error:.4f}"
            )
        return found

    @staticmethod
    def _name(names: tuple[str, ...], number: int, kind: str) -> str:
        return repr(names[number]) if number < len(names) else f"{kind} {number}"

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
        if self.seen_rows and self.held_out:
            found.append(
                f"{self.seen_rows} validation rows are also training rows. They were left out of this measurement."
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
        if self.worst_decile_row_error is not None and self.worst_decile_row_error > POOR_ROWS:
            share = math.sqrt(self.worst_decile_row_error)
            found.append(
                f"In one row of ten, the network's error is more than {100 * share:.0f} % of the size of the row's "
                "values. Ask for error bars with errors=True, and correct such rows with tol=."
            )
        known = [(share, k) for k, share in enumerate(self.player_sign_agreements) if share is not None]
        if known and min(known)[0] < POOR_PLAYER_SIGNS and self.sign_agreement >= POOR_SIGNS:
            share, player = min(known)
            name = self._name(self.player_names, player, "player")
            found.append(
                f"{100 - 100 * share:.0f} % of the large values of {name} have the wrong sign, although most "
                "others are correct."
            )
        if self._noise_share() > POOR_NOISE:
            share = math.sqrt(2 * self._noise_share())
            found.append(
                f"The model is not deterministic: two calls with the same rows differ by {100 * share:.2g} % of "
                "the size of the values. Values explain its average output, and their sums follow single outputs. "
                "Fix the model's seed, or pass a function that averages several calls."
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
    from fastshapley import metrics  # It imports scipy, which a report that is only shown does not need.

    cosines = metrics.cosine(values, truth.values)
    l2 = metrics.l2(values, truth.values)
    noise = np.square(truth.stderr).sum((1, 2))
    squared = np.square(l2) - noise
    sizes = (np.square(truth.values) - np.square(truth.stderr)).sum(1).mean(0)
    errors = (np.square(values - truth.values) - np.square(truth.stderr)).sum(1).mean(0)
    outputs = [slice(k, k + 1) for k in range(len(sizes))]
    least = np.square(truth.stderr).sum(1).mean(0)
    if not (sizes > least).any():  # All values are as small as the noise: their errors are the best that is known.
        least = np.zeros_like(sizes)
    relative = tuple(np.where(sizes > least, errors / np.where(sizes > least, sizes, 1.0), math.nan).tolist())
    signs = [
        metrics.sign_agreement(values[..., k], truth.values[..., k])
        if stderr is None
        else metrics.expected_sign_agreement(values[..., k], stderr[..., k])
        for k in outputs
    ]
    median, decile = _row_errors(values, truth, sizes)
    return Report(
        rows=len(values),
        truth=how,
        truth_error=float(np.sqrt(noise).mean()),
        l1=float(metrics.l1(values, truth.values).mean()),
        l2=float(l2.mean()),
        l2_interval=metrics.interval(l2),
        relative_squared_error=_worst(relative, max),
        cosine=float(np.nanmean(cosines)) if np.isfinite(cosines).any() else math.nan,
        sign_agreement=_worst(signs, min),
        fidelity=fidelity,
        held_out=held_out,
        mean_squared_error=float(squared.mean()),
        mean_squared_error_interval=metrics.interval(squared),
        mean_squared_value=float(sizes.sum()),
        sampling_error=float(noise.mean()),
        relative_squared_errors=relative,
        mean_squared_values=tuple(map(float, sizes)),
        median_row_error=median,
        worst_decile_row_error=decile,
        player_sign_agreements=_player_signs(values, truth),
    )


def _worst(numbers: Sequence[float], worst: Callable[[Sequence[float]], float]) -> float:
    """Return the worst of several numbers, of which some may be unknown."""
    known = [number for number in numbers if not math.isnan(number)]
    return worst(known) if known else math.nan


def _row_errors(values: Array, truth: Estimate, sizes: Array) -> tuple[float, float] | tuple[None, None]:
    """Return the relative squared error of the median row, and the one that a tenth of the rows exceed."""
    unit = np.where(sizes > 0, sizes, np.inf)
    noise = (np.square(truth.stderr) / unit).sum((1, 2))
    size = (np.square(truth.values) / unit).sum((1, 2))
    if not size.sum() > 0 or noise.sum() > ROW_NOISE * size.sum():
        return None, None
    error = np.maximum((np.square(values - truth.values) / unit).sum((1, 2)) - noise, 0)[size > 0]
    share = error / size[size > 0]
    return float(np.median(share)), float(np.quantile(share, 0.9))


def _player_signs(values: Array, truth: Estimate) -> tuple[float | None, ...]:
    """Return the share of correct signs among the large values of each player whose sign is certain."""
    largest = np.abs(truth.values).max(1, keepdims=True)
    large = (np.abs(truth.values) > LARGE * largest) & (np.abs(truth.values) > CERTAIN * truth.stderr)
    correct = large & (np.sign(values) == np.sign(truth.values))
    counts = large.sum((0, 2))
    shares = correct.sum((0, 2)) / np.maximum(counts, 1)
    return tuple(float(s) if n >= FEW_SIGNS else None for s, n in zip(shares, counts, strict=True))
