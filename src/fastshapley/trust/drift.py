"""Whether rows, or the model, have left what an explainer was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fastshapley.data.image_schema import channel_statistics
from fastshapley.data.stream import Rows, some
from fastshapley.errors import InputError
from fastshapley.fit.fitted import forward, model_outputs
from fastshapley.value_functions.base_game import is_surrogate
from fastshapley.value_functions.protocol import grand_values

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

_ROWS = 1000  # of each column, that are kept
_ALPHA = 0.01  # below which a p-value is called drift
_SHOWN = 4  # columns of a picture
_BINS = 20
_PART = 64  # images that are looked at at once
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """What an explainer was trained on, to hold new rows against: no row of it can be put together again.

    sample: (rows, columns), each column in an order of its own.
    gaps: how far the game's outputs were from the model's, for held-out rows, (m,); empty if that is not known.
    """

    sample: Tensor
    gaps: Tensor

    @classmethod
    def of(cls, x: Rows, gaps: Tensor, generator: torch.Generator) -> Reference:
        """The reference of rows, or images, that were trained on."""
        chosen = some(x, torch.randperm(len(x), generator=generator, device=x.device)[:_ROWS])
        found = torch.cat([summarised(part).double() for part in chosen.split(_PART)])
        shuffled = [
            column[torch.randperm(len(column), generator=generator, device=column.device)] for column in found.T
        ]
        return cls(torch.stack(shuffled, dim=1), gaps.double())


@dataclass(frozen=True)
class Drift:
    """How new rows differ from those that an explainer was trained on; ``str(drift)`` says it in words.

    rows: how many there were.
    p_value: how likely columns as different as these are if the rows are of the same kind, by the column that
        differs the most, and allowing for how many there are. How columns go together is not looked at.
    columns: of each column the statistic (Kolmogorov and Smirnov's of numbers, the largest difference of shares of
        categories) and its p-value, the worst first.
    model_p_value: how likely outputs of the model as far from the game's are, if it is the model that was
        explained, and the rows are no harder; None if there is no model to ask.
    error_ratio: the variance that values of these rows are thought to have, over that of held-out rows; None if
        that is not known.
    """

    rows: int
    p_value: float
    columns: pd.DataFrame
    model_p_value: float | None
    error_ratio: float | None
    samples: dict[str, tuple[Array, Array]]

    @property
    def drifted(self) -> bool:
        """Whether the rows, or the model, are others, at a level of one per cent."""
        return self.p_value < _ALPHA or (self.model_p_value is not None and self.model_p_value < _ALPHA)

    def lines(self) -> list[str]:
        """What was found, in words, and what to do."""
        p, model_p = f"(p = {self.p_value:.2g})", f"(p = {self.model_p_value or 0:.2g})"
        if self.p_value < _ALPHA:
            worst = self.columns["column"][self.columns["p_value"] < _ALPHA / len(self.columns)]
            named = ", ".join(map(str, worst[:5]))
            found = [
                f"{self.rows} rows are unlike those that the explainer was trained on {p}: look at {named}. Update "
                "it with rows like these, or fit it again."
            ]
        else:
            found = [f"{self.rows} rows are like those that the explainer was trained on {p}."]
        if self.model_p_value is not None and self.model_p_value < _ALPHA:
            found.append(
                f"The model's outputs are further from those that are explained than they were {model_p}: it has "
                "changed, or the rows have. Update the explainer, or fit it again."
            )
        elif self.model_p_value is not None:
            found.append(f"The model is as close to what is explained as it was {model_p}.")
        if self.error_ratio is not None:
            found.append(f"Squared errors of these values are thought to be {self.error_ratio:.2g} times as large.")
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{escape(line)}</p>" for line in self.lines())
        return words + self.columns.head(10).to_html(index=False, float_format="{:.3g}".format)

    def plot(self) -> Any:
        """A matplotlib figure of the columns that differ the most: then, and now."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3 * _SHOWN, 2.6), layout="constrained")
        names = list(self.columns["column"][:_SHOWN])
        for ax, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
            then, now = (values[np.isfinite(values)] for values in self.samples[name])
            if len(then) and len(now):
                bins = np.histogram_bin_edges(np.concatenate([then, now]), _BINS)
                for values, label in ((then, "then"), (now, "now")):
                    ax.hist(values, bins, weights=np.full(len(values), 1 / len(values)), alpha=0.5, label=label)
            ax.set(title=str(name), yticks=[])
        figure.axes[-1].legend(frameon=False)
        return figure


def check(explainer: FastSHAP, x: Tensor, predictions: Any) -> Drift:
    """What has become of the encoded rows, or images, and of the model, since an explainer was fitted."""
    game = explainer.value_function_
    names, discrete = explainer.schema_.summary_names, explainer.schema_.summary_discrete
    gaps = None
    if is_surrogate(game) and len(x) and (predictions is not None or explainer.model is not None):
        gaps = (grand_values(game, x) - model_outputs(explainer, x, predictions)).square().sum(1).sqrt()
    ratio = None
    if explainer.errors_ is not None and len(x):
        expected = explainer.errors_.expected(x, forward(explainer, x)[0])
        ratio = float(expected / explainer.errors_.head.expected.clamp(min=1e-300))
    return compare(explainer.reference_, summarised(x), names, discrete, gaps, ratio)


def compare(
    reference: Reference,
    x: Tensor,
    names: Sequence[str],
    discrete: Sequence[bool],
    gaps: Tensor | None = None,
    error_ratio: float | None = None,
) -> Drift:
    """Hold summarised rows (n, columns) against the reference; ``discrete`` columns hold no numbers."""
    if len(x) == 0:
        raise InputError("X has no rows to check")
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
    """Rows of a table as they are; of images (n, channels, height, width), each channel's mean and spread."""
    return x if x.ndim == 2 else channel_statistics(x)


def _column(then: Array, now: Array, *, discrete: bool) -> tuple[float, float]:
    """The statistic and the p-value of a column: of its values, and of how many there are."""
    p_values, statistics = [], []
    gaps = [np.isnan(values) for values in (then, now)]
    if any(gap.any() for gap in gaps):
        statistic, p_value = _shares(gaps[0].astype(float), gaps[1].astype(float))
        statistics.append(statistic)
        p_values.append(p_value)
    then, now = then[~gaps[0]], now[~gaps[1]]
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
    """The largest difference of the shares of categories, and the p-value of their independence of when."""
    kinds = np.unique(np.concatenate([then, now]))
    if len(kinds) < 2:
        return 0.0, 1.0
    counts = np.array([[(values == kind).sum() for kind in kinds] for values in (then, now)])
    shares = counts / counts.sum(1, keepdims=True)
    return float(np.abs(shares[0] - shares[1]).max()), float(stats.chi2_contingency(counts).pvalue)
