"""Drift: whether new rows, or the model, differ from what an explainer was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fastshapley.data.stream import Rows, some
from fastshapley.errors import InputError

REFERENCE_ROWS = 1000  # The largest number of values of each column that are kept.
ALPHA = 0.01  # A smaller p-value is called drift.
NAMED_COLUMNS = 5  # The largest number of columns that the summary names.
TABLE_COLUMNS = 10  # The largest number of columns in a notebook's table.
PLOTTED_COLUMNS = 4  # The largest number of columns in a figure.
HISTOGRAM_BINS = 20  # The number of bins of a figure's histograms.
IMAGES_AT_ONCE = 64  # The number of images that are summarised at once.
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """A sample of what an explainer was trained on, to compare new rows with. Its rows cannot be reconstructed.

    Attributes
    ----------
    sample : Tensor of shape (rows, columns)
        Values of each column, in an order of its own.
    gaps : Tensor of shape (m,)
        The distances of the game's outputs to the model's for held-out rows; empty if they are not known.
    """

    sample: Tensor
    gaps: Tensor

    @classmethod
    def of(cls, x: Rows, gaps: Tensor, generator: torch.Generator) -> Reference:
        """Sample the rows, or images, that an explainer was trained on.

        Parameters
        ----------
        x : Rows
            The encoded training rows, or images.
        gaps : Tensor of shape (m,)
            The distances of the game's outputs to the model's for held-out rows; empty if they are not known.
        generator : torch.Generator
            Where the randomness comes from.

        Returns
        -------
        Reference
            The sample.
        """
        chosen = some(x, torch.randperm(len(x), generator=generator, device=x.device)[:REFERENCE_ROWS])
        found = torch.cat([summarised(part).double() for part in chosen.split(IMAGES_AT_ONCE)])
        shuffled = [
            column[torch.randperm(len(column), generator=generator, device=column.device)] for column in found.T
        ]
        return cls(torch.stack(shuffled, dim=1), gaps.double())


@dataclass(frozen=True)
class Drift:
    """How new rows differ from those that an explainer was trained on. ``str(drift)`` is a summary.

    Attributes
    ----------
    rows : int
        The number of new rows.
    p_value : float
        The probability of columns that differ at least as much, if the rows come from the same distribution. It is
        that of the most different column, times the number of columns. Dependence between columns is not tested.
    columns : DataFrame
        For each column its statistic and its p-value, the most different column first. The statistic is that of
        Kolmogorov and Smirnov for numbers, and the largest difference of shares for categories.
    model_p_value : float or None
        The probability of model outputs at least as far from the game's, if the model is the one that was explained
        and the rows are not harder; None without a model.
    error_ratio : float or None
        The expected squared error of the values of these rows, relative to that of held-out rows; None without
        error bars.
    samples : dict
        For each column its values in the reference and in the new rows.
    """

    rows: int
    p_value: float
    columns: pd.DataFrame
    model_p_value: float | None
    error_ratio: float | None
    samples: dict[str, tuple[Array, Array]]

    @property
    def drifted(self) -> bool:
        """Whether the rows or the model have changed, at a significance level of 1 %."""
        return self.p_value < ALPHA or (self.model_p_value is not None and self.model_p_value < ALPHA)

    def lines(self) -> list[str]:
        """Return the findings, and what to do."""
        found = [self._rows_line()]
        if self.model_p_value is not None:
            found.append(self._model_line(self.model_p_value))
        if self.error_ratio is not None:
            found.append(
                f"The expected squared error of their values is {self.error_ratio:.2g} times that of held-out rows."
            )
        return found

    def _rows_line(self) -> str:
        p = f"(p = {self.p_value:.2g})"
        if self.p_value >= ALPHA:
            return f"The {self.rows} rows are like the training rows {p}."
        worst = self.columns["column"][self.columns["p_value"] < ALPHA / len(self.columns)]
        named = ", ".join(map(str, worst[:NAMED_COLUMNS]))
        return (
            f"The {self.rows} rows differ from the training rows {p}: look at {named}. Update the explainer with "
            "rows like these, or fit it again."
        )

    @staticmethod
    def _model_line(p_value: float) -> str:
        p = f"(p = {p_value:.2g})"
        if p_value >= ALPHA:
            return f"The model is as close to the explained game as it was {p}."
        return (
            f"The model's outputs are further from the explained game than they were {p}: the model has changed, "
            "or the rows have. Update the explainer, or fit it again."
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(line)}</p>" for line in self.lines())
        return words + self.columns.head(TABLE_COLUMNS).to_html(index=False, float_format="{:.3g}".format)

    def plot(self) -> Any:
        """Plot histograms of the most different columns, in the reference and in the new rows.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3 * PLOTTED_COLUMNS, 2.6), layout="constrained")
        names = list(self.columns["column"][:PLOTTED_COLUMNS])
        for ax, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
            then, now = (values[np.isfinite(values)] for values in self.samples[name])
            if len(then) and len(now):
                bins = np.histogram_bin_edges(np.concatenate([then, now]), HISTOGRAM_BINS)
                for values, label in ((then, "training"), (now, "new")):
                    ax.hist(values, bins, weights=np.full(len(values), 1 / len(values)), alpha=0.5, label=label)
            ax.set(title=str(name), yticks=[])
        figure.axes[-1].legend(frameon=False)
        return figure


def compare(
    reference: Reference,
    x: Tensor,
    names: Sequence[str],
    discrete: Sequence[bool],
    gaps: Tensor | None = None,
    error_ratio: float | None = None,
) -> Drift:
    """Compare summarised rows with a reference.

    Parameters
    ----------
    reference : Reference
        A sample of the training rows.
    x : Tensor of shape (n, columns)
        The new rows, summarised by `summarised`.
    names : sequence of str
        The name of each column.
    discrete : sequence of bool
        Which columns hold categories.
    gaps : Tensor of shape (n,) or None
        The distances of the game's outputs to the model's for these rows; None without a model.
    error_ratio : float or None
        The expected squared error of these rows' values, relative to that of held-out rows.

    Returns
    -------
    Drift
        The statistics and p-values.

    Raises
    ------
    InputError
        If there are no rows.
    """
    if len(x) == 0:
        raise InputError("X has no rows: pass at least one row to check")
    then, now = reference.sample.cpu().numpy(), x.double().cpu().numpy()
    rows = []
    for column, name in enumerate(names):
        statistic, p_value = _column(then[:, column], now[:, column], discrete=discrete[column])
        rows.append({"column": name, "statistic": statistic, "p_value": p_value})
    columns = pd.DataFrame(rows).sort_values("p_value", kind="stable", ignore_index=True)
    model = None
    if gaps is not None and len(reference.gaps):
        found = stats.mannwhitneyu(gaps.cpu().numpy(), reference.gaps.cpu().numpy(), alternative="greater")
        model = float(found.pvalue)
    return Drift(
        rows=len(x),
        p_value=float(min(1.0, len(columns) * columns["p_value"].min())),
        columns=columns,
        model_p_value=model,
        error_ratio=error_ratio,
        samples={name: (then[:, i], now[:, i]) for i, name in enumerate(names)},
    )


def summarised(x: Tensor) -> Tensor:
    """Return rows of a table unchanged; for images, the mean and the standard deviation of each channel.

    Parameters
    ----------
    x : Tensor of shape (n, columns) or (n, channels, height, width)
        The encoded rows, or images.

    Returns
    -------
    Tensor of shape (n, columns) or (n, 2 * channels)
        One row of numbers for each row, or image.
    """
    if x.ndim == 2:
        return x
    pixels = x.flatten(2)
    return torch.cat([pixels.mean(2), pixels.std(2)], dim=1)


def image_summary_names(channels: int) -> list[str]:
    """Return the names of the columns that `summarised` makes of images."""
    return [f"{what} of channel {c}" for what in ("mean", "spread") for c in range(channels)]


def _column(then: Array, now: Array, *, discrete: bool) -> tuple[float, float]:
    """Return the statistic and the p-value of a column, for its values and for its share of missing values."""
    p_values, statistics = [], []
    missing = [np.isnan(values) for values in (then, now)]
    if any(each.any() for each in missing):
        statistic, p_value = _shares(missing[0].astype(float), missing[1].astype(float))
        statistics.append(statistic)
        p_values.append(p_value)
    then, now = then[~missing[0]], now[~missing[1]]
    if len(then) and len(now):
        if discrete:
            statistic, p_value = _shares(then, now)
        else:
            found = stats.ks_2samp(then, now)
            statistic, p_value = float(found.statistic), float(found.pvalue)
        statistics.append(statistic)
        p_values.append(p_value)
    if not p_values:
        return 0.0, 1.0
    return max(statistics), min(1.0, len(p_values) * min(p_values))


def _shares(then: Array, now: Array) -> tuple[float, float]:
    """Return the largest difference of the shares of categories, and the p-value of equal shares."""
    kinds = np.unique(np.concatenate([then, now]))
    if len(kinds) < 2:
        return 0.0, 1.0
    counts = np.array([[(values == kind).sum() for kind in kinds] for values in (then, now)])
    shares = counts / counts.sum(1, keepdims=True)
    return float(np.abs(shares[0] - shares[1]).max()), float(stats.chi2_contingency(counts).pvalue)
