"""What an explainer's error is made of, and what to do about it: the surrogate's part, updates, and advice.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/upkeep.py        (about ten minutes on two cores)

writes docs/results/upkeep.json after every part, and continues from there when it is started again; then it writes
upkeep.md.

Where the features are independent (Friedman's first problem), or normal and dependent, what a model gives when some
of them are known can be worked out, and with it the values that a surrogate's only come near to. Updates are of an
explainer of young people that is to explain all (census, by the median age). Advice is held against whole fits.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.ensemble import GradientBoostingRegressor
from torch import Tensor

from fastshapley import FastSHAP
from fastshapley.estimators import exact
from fastshapley.paper.table_page import table
from fastshapley.paper.table_settings import TABLES
from fastshapley.support.atomic_files import write_text
from fastshapley.value_functions import grand_values

RESULT = Path(__file__).parent.parent / "docs" / "results" / "upkeep.json"
CALLS = (2, 4, 8, 16)  # of the model, a player
TESTS, SEEDS = 100, 3
ORIGINS = """
The report measures the error in the surrogate's game. The distance from this game to the model's own game is
known where the latter can be computed: for a model of independent features (boosted trees on Friedman's first
problem), and for a polynomial of normal features with correlations of .6.

The table shows mean squared errors per row. The first two columns are the errors of the network and of the
surrogate, as `report_` estimates them without knowing the truth. The others are distances to the model's true
values: of the exact values of the surrogate's game, of the network's values, of values with `anchor="model"`, and
of values corrected by model calls (`calls=`, `background=`; means of three seeds).

The surrogate causes by far the larger part of the error. The report's estimate of it is wrong by a factor of at
most 1.7 here. With 16 calls per player, corrections remove 56 and 37 % of the error of the anchored values if
features are independent, and 6 and 12 % if they depend on each other.
""".strip()
UPDATES = """
An explainer of the younger half of the census is used for all rows (`check` returns p = {p:.0e}). It is then
updated with all rows. For comparison, another explainer is fitted to all rows from the start. The columns are
processor seconds, the relative squared error to the exact values of each explainer's own game, and the mean
squared difference between the outputs of the surrogate and of the model, on the first 256 test rows.
""".strip()
ADVICE = """
The table compares what `FastSHAP.advise(model, X, rows=1000)` predicts from a trial of some seconds with what was
measured afterwards: the seconds of a whole fit, the milliseconds per row of sampling, the relative squared error of
sampling (from its own standard errors for bankruptcy, to the exact values for the others), and the relative squared
error of the network.
""".strip()
Array = NDArray[np.float64]


class Independent:
    """v(x, s) of a model of independent features: hidden ones are drawn anew, for all coalitions the same."""

    outputs = 1

    def __init__(self, model: Callable[[Array], Array], background: Array) -> None:
        self.model, self.background, self.players = model, torch.from_numpy(background), background.shape[1]

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        parts = []
        for row, shown in zip(x, s, strict=True):
            mixed = torch.where(shown[:, None], row, self.background)
            y = self.model(mixed.flatten(0, 1).numpy()).reshape(mixed.shape[:2])
            parts.append(torch.from_numpy(y).mean(1, keepdim=True))
        return torch.stack(parts)


class Normal:
    """v(x, s) of `polynomial`, of normal features with this covariance: what is expected of it, worked out."""

    outputs = 1

    def __init__(self, covariance: Array) -> None:
        self.covariance, self.players = covariance, len(covariance)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        v = torch.zeros(*s.shape[:2], 1, dtype=torch.float64)
        codes = (s.long() << torch.arange(self.players)).sum(-1)
        for code in codes.unique().tolist():
            known = np.array([code >> i & 1 for i in range(self.players)], dtype=bool)
            weights = np.zeros_like(self.covariance)
            part = self.covariance[:, known]
            weights[:, known] = part @ np.linalg.inv(self.covariance[np.ix_(known, known)]) if known.any() else part
            left = self.covariance - weights @ self.covariance
            rows, columns = (codes == code).nonzero(as_tuple=True)
            mean = x[rows].numpy() @ weights.T
            v[rows, columns, 0] = torch.from_numpy(polynomial(mean) + left[0, 1] + left[2, 2] / 2 + left[4, 5])
        return v


def polynomial(X: Array) -> Array:
    found: Array = X[:, 0] * X[:, 1] + X[:, 2] ** 2 / 2 + 2 * X[:, 3] + X[:, 4] * X[:, 5] + X[:, 6]
    return found


def independent(rows: int) -> tuple[Any, Array, Array]:
    X, y = make_friedman1(rows + TESTS, noise=1.0, random_state=0)
    model = GradientBoostingRegressor(random_state=0).fit(X[TESTS:], y[TESTS:])
    background = np.random.default_rng(1).uniform(size=(256, X.shape[1]))
    return model, X, exact(Independent(model.predict, background), torch.from_numpy(X[:TESTS])).values


def dependent(rows: int) -> tuple[Any, Array, Array]:
    covariance = np.full((8, 8), 0.6) + 0.4 * np.eye(8)
    X = np.random.default_rng(0).multivariate_normal(np.zeros(8), covariance, rows + TESTS)
    return polynomial, X, exact(Normal(covariance), torch.from_numpy(X[:TESTS])).values


def origins(make: Callable[[int], tuple[Any, Array, Array]], rows: int) -> dict[str, Any]:
    """Mean squared errors to the model's own values: of the surrogate's exact ones, the network's, corrected."""
    model, X, truth = make(rows)
    explainer = FastSHAP(model, random_state=0, progress=False).fit(X[TESTS:])
    assert explainer.report_ is not None

    def error(values: Array) -> float:
        return float(np.square(values.reshape(truth.shape) - truth).sum((1, 2)).mean())

    def corrected(calls: int) -> float:
        errors = []
        for explainer.random_state in range(SEEDS):
            found = explainer(X[:TESTS], anchor="model", background=X[TESTS:][:1000], calls=calls)
            errors.append(error(found.values))
        return float(np.mean(errors))

    return {
        "rows": rows,
        "size": float(np.square(truth).sum((1, 2)).mean()),
        "reported": {
            name: getattr(explainer.report_, name) for name in ("mean_squared_error", "surrogate_error", "fidelity")
        },
        "surrogate": error(explainer.estimate(X[:TESTS], "exact").values),
        "network": error(explainer(X[:TESTS]).values),
        "anchored": error(explainer(X[:TESTS], anchor="model").values),
        "corrected": {str(calls): corrected(calls * X.shape[1]) for calls in CALLS},
    }


def updates() -> dict[str, Any]:
    """An explainer of the younger half of census, one of all, and the first updated with all."""
    data = TABLES["census"].load()
    model = TABLES["census"].train(data)
    age = data.X_train["Age"].median()
    young, young_val = (X[X["Age"] <= age] for X in (data.X_train, data.X_val))
    X = data.X_test[:256]

    def measured(work: Callable[[], FastSHAP]) -> tuple[FastSHAP, dict[str, float]]:
        start = time.process_time()
        explainer = work()
        seconds = time.process_time() - start
        truth = explainer.estimate(X, "exact").values
        squares = np.square(explainer(X).values.reshape(truth.shape) - truth).sum()
        gap = grand_values(explainer.value_function_, explainer._encode(X)[:]).numpy() - model(X)
        return explainer, {
            "processor_seconds": seconds,
            "relative_squared_error": float(squares / np.square(truth).sum()),
            "surrogate_error": float(np.square(gap).sum(1).mean()),
        }

    fresh = FastSHAP(model, random_state=0, progress=False)
    before, first = measured(lambda: copy.deepcopy(fresh).fit(young, X_val=young_val))
    _, whole = measured(lambda: copy.deepcopy(fresh).fit(data.X_train, X_val=data.X_val))
    drift = before.check(X)
    _, updated = measured(lambda: before.update(data.X_train, X_val=data.X_val))
    return {"young": first, "all": whole, "updated": updated, "drift_p_value": drift.p_value}


def advice() -> dict[str, Any]:
    """What `FastSHAP.advise` predicts, and what a whole fit, and sampling, then take and give."""
    found = {}
    for name in ("diabetes", "census", "bankruptcy"):
        if name == "diabetes":
            X, y = load_diabetes(return_X_y=True, as_frame=True)
            model: Any = GradientBoostingRegressor(random_state=0).fit(X, y)
            settings: dict[str, Any] = {"random_state": 0}
        else:
            data = TABLES[name].load()
            model, X = TABLES[name].train(data), data.X_train
            settings = {"players": data.players, "random_state": 0}
        advised = FastSHAP.advise(model, X, rows=1000, **settings)
        ways = {way.name: way for way in advised.ways}
        start = time.perf_counter()
        explainer = FastSHAP(model, progress=False, **settings).fit(X)
        fit = time.perf_counter() - start
        assert explainer.report_ is not None
        some = X[:200]
        start = time.perf_counter()
        budget = int(ways["sampling"].code.split("budget=")[1].split(",")[0])
        estimate = explainer.estimate(some, "kernel", budget=budget, sampling="leverage", random_state=1)
        each = (time.perf_counter() - start) / len(some)
        noise = np.square(estimate.stderr).sum()
        size = np.square(estimate.values).sum() - noise
        if explainer.value_function_.players <= 16:
            noise = np.square(estimate.values - explainer.estimate(some, "exact").values).sum()
        found[name] = {
            "advice": str(advised),
            "fit_seconds": {"predicted": ways["amortised"].once, "taken": fit},
            "sampling_seconds_a_row": {"predicted": ways["sampling"].each, "taken": each},
            "sampling_error": {"wanted": advised.error, "found": float(noise / size)},
            "network_error": {
                "trial": advised.trial_error,
                "whole fit": explainer.report_.relative_squared_error,
            },
        }
    return found


def page(found: dict[str, Any]) -> str:
    problems = {name: r for name, r in found.items() if "corrected" in r}
    origin = [
        [
            name,
            f"{r['reported']['mean_squared_error']:.2g}",
            f"{r['reported']['surrogate_error']:.2g}",
            *(f"{r[key]:.2g}" for key in ("surrogate", "network", "anchored")),
            *(f"{error:.2g}" for error in r["corrected"].values()),
        ]
        for name, r in problems.items()
    ]
    learnt = [
        [name, *(f"{r[key]:.3g}" for key in ("processor_seconds", "relative_squared_error", "surrogate_error"))]
        for name, r in found["updates"].items()
        if isinstance(r, dict)
    ]
    predicted = [
        [
            name,
            *(f"{r['fit_seconds'][key]:.0f}" for key in ("predicted", "taken")),
            *(f"{1000 * r['sampling_seconds_a_row'][key]:.2g}" for key in ("predicted", "taken")),
            *(f"{r['sampling_error'][key]:.2g}" for key in ("wanted", "found")),
            *(f"{r['network_error'][key]:.2g}" for key in ("trial", "whole fit")),
        ]
        for name, r in found["advice"].items()
    ]
    reported = ["network, reported", "surrogate, reported"]
    true = ["surrogate", "network", "anchored", *(f"{calls} calls per player" for calls in CALLS)]
    taken = [
        "fit, predicted",
        "measured",
        "sampling, predicted",
        "measured",
        "sampling error, requested",
        "measured",
    ]
    return "\n\n".join(
        [
            "# Surrogates, updates, advice",
            "`python benchmarks/upkeep.py` writes this page; every number is in [upkeep.json](upkeep.json). Other "
            "work ran on the machine at the same time.",
            "## What the error consists of",
            ORIGINS,
            table(["", *reported, *true], origin),
            "## When rows have drifted",
            UPDATES.format(p=found["updates"]["drift_p_value"]),
            table(["", "seconds", "relative squared error", "squared difference of outputs"], learnt),
            "## When not to amortise",
            ADVICE,
            table(["", *taken, "network error, in the trial", "after a whole fit"], predicted),
            "\n".join(["For census, it prints:", "", "```", found["advice"]["census"]["advice"], "```"]) + "\n",
        ]
    )


def main() -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    work: dict[str, Callable[[], Any]] = {
        f"{make.__name__}, {rows} rows": partial(origins, make, rows)
        for make in (independent, dependent)
        for rows in (600, 4000)
    }
    for name, do in {**work, "updates": updates, "advice": advice}.items():
        if name not in results:
            results[name] = do()
            write_text(RESULT, json.dumps(results, indent=1) + "\n")
            print(name, results[name])
    write_text(RESULT.with_suffix(".md"), page(results))


if __name__ == "__main__":
    main()
