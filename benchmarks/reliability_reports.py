"""What the report says next to what is true, for `reliability`.

The columns of all tables are independent, and the models are known functions. So the Shapley values of the models
are known: a product of two centred columns gives half of itself to each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fastshapley import FastSHAP

Array = NDArray[np.float64]
TOLERANCE = 0.01
SLOPES = np.linspace(1, 0.2, 8)
RARE = 0.01  # the share of the rare category


def normal(rows: int, seed: int, columns: int = 4) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def bent(z: Array) -> Array:
    return np.sin(3 * z[:, 0]) * z[:, 1] + z[:, 2]


def bent_values(z: Array) -> Array:
    half = np.sin(3 * z[:, 0]) * z[:, 1] / 2
    return np.stack([half, half, z[:, 2], 0 * half], axis=1)[..., None]


def two_outputs(z: Array) -> Array:
    return np.stack([1000 * z[:, 0] * z[:, 1], np.sin(6 * z[:, 2]) * z[:, 3]], axis=1)


def two_outputs_values(z: Array) -> Array:
    halves = two_outputs(z) / 2
    values = np.zeros((len(z), 4, 2))
    values[:, :2, 0] = halves[:, :1]
    values[:, 2:, 1] = halves[:, 1:]
    return values


def categories(rows: int, seed: int) -> pd.DataFrame:
    frame = pd.DataFrame(normal(rows, seed, 2), columns=["a", "b"])
    rare = np.random.default_rng(seed + 1000).random(rows) < RARE
    return frame.assign(kind=np.where(rare, "rare", "common"))


def category_model(frame: pd.DataFrame) -> Array:
    return frame["a"].to_numpy() + 5 * (frame["kind"] == "rare").to_numpy() * frame["b"].to_numpy()


def category_values(frame: pd.DataFrame) -> Array:
    b, rare = frame["b"].to_numpy(), (frame["kind"] == "rare").to_numpy()
    both, alone = 5 * rare * b, 5 * RARE * b  # v({b, kind}) and v({b}); v({kind}) is 0
    return np.stack([frame["a"].to_numpy(), (both + alone) / 2, (both - alone) / 2], axis=1)[..., None]


def fit(model: Callable[[Any], Array], X: Any, X_val: Any = None, *, time_budget: float | None = None) -> FastSHAP:
    return FastSHAP(model, random_state=0, progress=False, time_budget=time_budget).fit(X, X_val=X_val)


def relative(values: Array, truth: Array) -> list[float]:
    """Return the squared error as a share of the squared true values, of each output."""
    return [float(each) for each in np.square(values - truth).sum((0, 1)) / np.square(truth).sum((0, 1))]


def errors(explainer: FastSHAP, X: Any, truth: Array) -> dict[str, Any]:
    """Compare what the report says with what is true of new rows."""
    report = explainer.report_
    assert report is not None
    values = np.asarray(explainer.shap_values(X)).reshape(truth.shape)
    exact = explainer.estimate(X, "exact").values
    games = report.game_errors or ()
    game = [error / size for error, size in zip(games, report.mean_squared_values, strict=False)]
    return {
        "report": {
            "rows": report.rows,
            "held out": report.held_out,
            "network": list(report.relative_squared_errors),
            "game": game,
            "total": report.total_relative_squared_error,
            "noise": report.model_noise,
            "warnings": report.warnings(),
        },
        "truth": {
            "rows": len(X),
            "network": relative(values, exact),
            "game": relative(exact, truth),
            "total": max(relative(values, truth)),
        },
    }


def duplicates(rows: int, time_budget: float | None = None) -> dict[str, Any]:
    explainer = fit(bent, np.repeat(normal(80, 0), 25, axis=0), time_budget=time_budget)
    new = normal(rows, 1)
    return errors(explainer, new, bent_values(new))


def same_rows(rows: int) -> dict[str, Any]:
    X, new = normal(200, 0), normal(rows, 1)
    return errors(fit(bent, X, X), new, bent_values(new))


def scales(rows: int) -> dict[str, Any]:
    new = normal(rows, 1)
    return errors(fit(two_outputs, normal(2000, 0)), new, two_outputs_values(new))


def noisy(rows: int) -> dict[str, Any]:
    generator = np.random.default_rng(2)

    def model(z: Array) -> Array:
        return bent(z) + 0.5 * generator.normal(size=len(z))

    new = normal(rows, 1)
    found = errors(fit(model, normal(2000, 0)), new, bent_values(new))
    found["truth"]["noise"] = 0.25
    return found


def rare(rows: int) -> dict[str, Any]:
    X, new = categories(2000, 0), categories(20 * rows, 1)
    explainer = fit(category_model, X)
    few = new[new["kind"] == "rare"]
    found = errors(explainer, new[:rows], category_values(new[:rows]))
    found["rare rows"] = errors(explainer, few, category_values(few))["truth"]
    found["rare training rows"] = int((X["kind"] == "rare").sum())
    return found


def unusual(rows: int) -> dict[str, Any]:
    """One fit to 2000 ordinary rows; then rows at an unusual place, and a table that has drifted there."""
    new = normal(rows, 1)
    explainer = fit(bent, normal(2000, 0))
    shifted = 2.5 + 0.2 * new  # Each number is inside of the training range.
    found = errors(explainer, shifted, bent_values(shifted))
    bars = explainer(shifted, errors=True).error_std
    return {
        "ordinary": errors(explainer, new, bent_values(new)),
        "unusual": {
            **found,
            "drifted": bool(explainer.check(shifted).drifted),
            "rows without error bars": int(np.isnan(bars).all(1).sum()),
        },
    }


def gated(z: Array) -> Array:
    return z @ SLOPES + (z[:, 0] > 0) * _product(z)


def gated_values(z: Array) -> Array:
    """Half of the product is always there; the rest, times the sign, is divided among four columns."""
    values = z * SLOPES
    values[:, 1:4] += (_product(z) / 6)[:, None]
    values[:, :4] += (_product(z) * np.sign(z[:, 0]) / 8)[:, None]
    return values[..., None]


def _product(z: Array) -> Array:
    return 3 * np.sin(3 * z[:, 1]) * z[:, 2] * z[:, 3]


def outside(rows: int) -> dict[str, Any]:
    """One column of eight is far outside of the training range."""
    X, new = normal(2000, 0, len(SLOPES)), normal(rows, 1, len(SLOPES))
    explainer = fit(gated, X)
    far = new[:100].copy()
    far[:, 0] = 4 * np.abs(X[:, 0]).max()
    exact = explainer.estimate(far, "exact").values[..., 0]
    size = np.ptp(exact, axis=1)
    network = np.abs(explainer(far).values - exact).max(1) / size
    corrected = explainer(far, errors="game", tol=TOLERANCE)
    largest = np.abs(corrected.values - exact).max(1) / size
    claimed = corrected.error_std.max(1) / np.ptp(corrected.values, axis=1)
    return {
        **errors(explainer, far, gated_values(far)),
        "rows without error bars": int(np.isnan(explainer(far, errors=True).error_std).all(1).sum()),
        "ordinary rows": rows,
        "ordinary rows without error bars": int(np.isnan(explainer(new, errors=True).error_std).all(1).sum()),
        "tolerance": TOLERANCE,
        "rows claimed within the tolerance": int((claimed <= TOLERANCE).sum()),
        "rows within the tolerance": int((largest <= TOLERANCE).sum()),
        "claimed error": {"median": float(np.median(claimed)), "largest": float(claimed.max())},
        "error, network": {"median": float(np.median(network)), "largest": float(network.max())},
        "error, corrected": {"median": float(np.median(largest)), "largest": float(largest.max())},
    }


def reports(*, quick: bool) -> dict[str, Any]:
    return {"duplicates": duplicates(100, 2.0)} if quick else {name: case(1000) for name, case in CASES.items()}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "duplicates": duplicates,
    "same rows": same_rows,
    "scales": scales,
    "noisy": noisy,
    "rare": rare,
    "unusual": unusual,
    "outside": outside,
}
