"""The report: an explainer's measured distance to the Shapley values of its own game."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley import metrics
from fastshapley.coalitions import subsets
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.estimators import Estimate, exact
from fastshapley.estimators.exact import MAX_PLAYERS
from fastshapley.estimators.residuals import residuals
from fastshapley.fit.budget import Budget
from fastshapley.metrics import r2
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.objective import normalize
from fastshapley.training.run import Run
from fastshapley.trust.error_bars import Errors, explained
from fastshapley.value_functions.base_game import cost, is_game_of, is_surrogate, link_of
from fastshapley.value_functions.links import apply_link
from fastshapley.value_functions.protocol import ValueFunction, evaluate, null_values

logger = logging.getLogger(__name__)

ROWS = 512  # at most
_EVALUATIONS = 2_000_000  # of the user's model or of the surrogate, spent on the truth
_WORK = 60_000_000  # evaluations times players: drawing and solving take their time too
_FEWEST = 32  # rows whose exact values are worth more than estimates of all
_SECONDS = 30.0
_POOR = 0.1  # relative squared error, above which there is a warning
_SIGNS, _FIDELITY, _ENOUGH = 0.9, 0.9, 20  # right signs, R2 and rows, below which there is one


@dataclass(frozen=True)
class Report:
    """Distances on held-out rows, which training did not see in any way; ``str(report)`` is a table.

    mean_squared_error: of a row, over players and outputs together, with half its 95 % interval. The truth's own
        error is taken off, so that it is right on average however rough the truth is.
    relative_squared_error: that as a share of the squared values.
    l1, l2: mean distances, with half the 95 % interval of l2.
    cosine: mean cosine between a row's values and the truth.
    sign_agreement: share of the values above 5 % of the row's largest that have the right sign; expected, by their
        standard errors, where the truth is not exact and these are known.
    truth: how the true values were found; truth_error: the mean l2 error that remains in them.
    held_out: False where there were too few rows to hold any out.
    fidelity: R2 of the game's output for whole rows to the user's model: what a surrogate loses; None if there is
        no model.
    fidelity_by_size: the same of rows of which a share is known, from none to all: what they tell of the output.
    surrogate_error: how far, about, exact values of the surrogate's game are from those of the model, as a mean
        squared error: what its outputs are off by, squared, which is that if players' errors are unrelated.
    sampling_error: the mean squared error of the truth, from coalitions drawn at random; it is not in
        mean_squared_error, which is by the network alone.
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
    surrogate_error: float | None = None
    sampling_error: float = 0.0

    def lines(self) -> dict[str, str]:
        """What is measured, in words."""
        about = f" (l2 error about {self.truth_error:.2g})" if self.truth_error > 0 else ""
        several = self.rows > 1
        found = {
            "truth": self.truth + about,
            "mean squared error": f"{self.mean_squared_error:.3g}"
            + (f" +- {self.mean_squared_error_interval:.1g}" if several else ""),
            **{f"  {part}": text for part, text in self._besides().items()},
            "relative squared error": f"{self.relative_squared_error:.4f}",
            "l2 distance": f"{self.l2:.4g}" + (f" +- {self.l2_interval:.2g}" if several else ""),
            "l1 distance": f"{self.l1:.4g}",
            "cosine": f"{self.cosine:.4f}",
            "right sign, large values": f"{100 * self.sign_agreement:.1f} %",
        }
        if self.fidelity is not None:
            found["game's output to model's, R2"] = f"{self.fidelity:.4f}"
        if self.fidelity_by_size is not None:
            found["  by share of players known"] = ", ".join(
                f"{share} {value:.2f}" for share, value in self.fidelity_by_size.items()
            )
        return {name: "-" if "nan" in text else text for name, text in found.items()}

    def _besides(self) -> dict[str, str]:
        """The parts of the error to the model's values that are not the network's."""
        found = {}
        if self.surrogate_error:
            found["and by the surrogate, about"] = f"{self.surrogate_error:.3g}"
        if self.sampling_error:
            found["by sampling, taken off"] = f"{self.sampling_error:.3g}"
        return found

    def warnings(self) -> list[str]:
        """Why the values should not be trusted as they are, and what to do; empty for an explainer that is fine."""
        found = []
        if not self.held_out:
            found.append(
                "This was measured on rows that were trained on: values of new rows are further off. Fit with more "
                "rows, or pass X_val."
            )
        elif self.rows < _ENOUGH:
            found.append(
                f"This was measured on {self.rows} rows, which is little to go by. Fit with more, or pass X_val."
            )
        if self.relative_squared_error > _POOR:
            found.append(
                f"Values are off by {100 * math.sqrt(self.relative_squared_error):.0f} % of their size: trust the "
                "largest of a row at most. Train on more rows, or correct them with budget= or tol=."
            )
        if self.sign_agreement < _SIGNS:
            found.append(
                f"{100 - 100 * self.sign_agreement:.0f} % of the large values have the wrong sign. Train on more "
                "rows, or correct them with budget= or tol=."
            )
        if self.fidelity is not None and self.fidelity < _FIDELITY:
            found.append(
                f"The surrogate accounts for {100 * max(0.0, self.fidelity):.0f} % of the variance of the model's "
                "outputs: these values explain another model. Train it on more rows, or use "
                "value_function='marginal'."
            )
        return found

    def __str__(self) -> str:
        rows = [f"  {name:30s} {text}" for name, text in self.lines().items()]
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
        return f"Distance to the Shapley values on {self.rows} {'held-out' if self.held_out else 'training'} rows"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return asdict(self)


def measure_network(
    network: ExplainerNetwork,
    game: ValueFunction,
    model: ModelFunction | None,
    x: Tensor,
    run: Run,
    pace: float,
    budget: Budget,
    errors: Errors | None = None,
    *,
    normalized: bool,
    held_out: bool,
) -> tuple[Report | None, Tensor]:
    """The report on an explainer's network for the rows ``x``, or for as many as can be afforded.

    ``pace`` is the seconds that a row takes which the model, or the surrogate, is called with. With it comes how
    far the game's outputs are from the model's for these rows, (n,); empty where that was not measured.
    """
    nothing = torch.zeros(0, dtype=torch.float64)
    calls, seconds = budget.for_report(game), run.clock.left()
    explain = partial(explained, network, game)
    found = true_values(explain, game, x, run.generator("report"), calls=calls, pace=pace, seconds=seconds)
    if found is None:
        logger.warning("no report: time_budget or evaluation_budget leaves nothing to measure the error with")
        return None, nothing
    rows, truth, how = found
    total = torch.from_numpy(truth.values.sum(1)).to(x.device)  # the estimates sum to grand minus null
    with torch.no_grad():
        raw: Tensor = network(rows).double()
    phi = normalize(raw, total)
    stderr = None if errors is None or not truth.stderr.any() else errors(rows, phi)[0].sqrt().cpu().numpy()
    if not normalized and game.players > 1:
        phi = raw
    report = measure(phi.cpu().numpy(), truth, how, stderr=stderr, held_out=held_out)
    if is_game_of(game, model):
        return replace(report, fidelity=1.0, surrogate_error=0.0), nothing  # the game is the model
    some = int(min(budget.left(), len(rows)))
    if model is None or model.outputs != game.outputs or not some:
        return report, nothing
    grand = (total + null_values(game, rows))[:some]
    y = apply_link(link_of(game), model(rows[:some])).to(grand)
    gaps = (grand - y).square().sum(1)
    report = replace(
        report,
        fidelity=r2(grand.cpu().numpy(), y.cpu().numpy()),
        fidelity_by_size=_by_size(game, rows[:some], y, run) if is_surrogate(game) else None,
        surrogate_error=float(gaps.mean()),
    )
    return report, gaps.sqrt()


def _by_size(game: ValueFunction, x: Tensor, y: Tensor, run: Run) -> dict[str, float]:
    """R2 of the game's output to the model's, (n, outputs), where some share of the players is known."""
    generator = run.generator("fidelity")
    found = {}
    for quarter in range(5):
        size = round(game.players * quarter / 4)
        s = subsets(torch.full((len(x), 1), size, device=x.device), game.players, generator)
        v = evaluate(game, x, s)[:, 0]
        found[f"{25 * quarter} %"] = r2(v.cpu().numpy(), y.cpu().numpy())
    return found


def measure(
    values: NDArray[np.float64],
    truth: Estimate,
    how: str,
    *,
    stderr: NDArray[np.float64] | None = None,
    fidelity: float | None = None,
    held_out: bool = True,
) -> Report:
    """The report for ``values`` (n, players, outputs) held against an estimate of the same rows.

    ``stderr`` are the values' own standard errors, for the share of right signs, where the truth has none to count.
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
        sampling_error=float(noise.mean()),
    )


def true_values(
    explain: Callable[[Tensor], Tensor],
    value_function: ValueFunction,
    x: Tensor,
    generator: torch.Generator,
    *,
    calls: float,
    pace: float,
    seconds: float,
) -> tuple[Tensor, Estimate, str] | None:
    """Some of the rows ``x``, their Shapley values as well as can be afforded, and how these were found.

    They are exact, or those of ``explain``, from rows to (n, players, outputs) that sum to grand minus null, with
    what pairs of coalitions say is missing. ``calls`` is how many rows the model may be called with, ``pace`` the
    seconds that a row takes, and ``seconds`` how many there are. None if that does not do for one row.
    """
    players = value_function.players
    calls = min(_EVALUATIONS, calls, min(_SECONDS, seconds) / max(pace, 1e-9))
    evaluations = int(min(calls // cost(value_function), _WORK // players))
    if evaluations < min(8 * players + 2, 1 << players):
        return None
    fewest = _FEWEST if 1 << players > 32 * players else 1  # of few players all coalitions are the cheapest truth
    if players <= MAX_PLAYERS and (rows := min(len(x), evaluations >> players)) >= min(len(x), fewest):
        return x[:rows], exact(value_function, x[:rows]), f"exact, all {1 << players} coalitions"
    x = x[: max(1, evaluations // (32 * players))]
    pairs = max(min(evaluations // len(x), 1024 * players), 8 * players + 2) // 2 - 1
    phi = explain(x)
    found = residuals(value_function, x, phi, pairs, generator)
    values = (phi + found.error).cpu().numpy()
    spent, done = np.full(len(x), 2 * pairs + 2), np.zeros(len(x), dtype=np.bool_)
    truth = Estimate(values, found.variance.sqrt().cpu().numpy(), spent, done)
    return x, truth, f"right on average, {pairs} pairs of coalitions a row"
