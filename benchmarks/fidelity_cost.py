"""The part of benchmarks/fidelity.py about cost: seconds of a default fit next to those of the surrogate alone.

The surrogate's fit is the default of the first version. Both run in turn, in one process, on the paper's tables.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier

from fastshapley import FastSHAP
from fastshapley.datasets import Split, load_bankruptcy, load_census, load_marketing, load_news

EXPLAINED_ROWS, QUICK_ROWS = 1000, 500
FITS: dict[str, dict[str, Any]] = {"surrogate": {"value_function": "surrogate"}, "default": {}}

TABLES: dict[str, Callable[[], Split]] = {
    "census": load_census,
    "marketing": load_marketing,
    "bankruptcy": load_bankruptcy,
    "news": load_news,
}


def measure(table: str, quick: bool) -> dict[str, Any]:
    data = TABLES[table]()
    X, y, X_test = data.X_train, data.y_train, data.X_test[:EXPLAINED_ROWS]
    if quick:
        X, y = X[:QUICK_ROWS], y[:QUICK_ROWS]
    model = LGBMClassifier(n_jobs=1, verbose=-1, random_state=0).fit(X, y)
    found: dict[str, Any] = {"rows": len(X), "players": len(data.players.bind(list(X.columns)))}
    start = time.perf_counter()
    model.predict_proba(X_test)
    found["model_seconds"] = time.perf_counter() - start
    for name, settings in FITS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            explainer = FastSHAP(model, players=data.players, random_state=0, progress=False, **settings).fit(X)
            fitted = time.perf_counter()
            explanation = explainer(X_test)
            explained = time.perf_counter()
        report = explainer.report_
        assert report is not None
        sums = np.asarray(explanation.values).sum(1) + explanation.base_values
        found[name] = {
            "fit_seconds": fitted - start,
            "explain_seconds": explained - fitted,
            "network_error": report.relative_squared_error,
            "game_error": report.relative_game_error,
            "total_error": report.total_relative_squared_error,
            "largest_sum_difference": float(np.abs(sums - model.predict_proba(X_test)).max()),
            "phases": {phase: round(timing.seconds, 1) for phase, timing in explainer.timings_.items()},
        }
    return found


def run(options: Namespace, found: dict[str, Any], keep: Callable[[], None]) -> None:
    for table in options.tables:
        if table not in found or options.again:
            found[table] = measure(table, options.quick)
            print(table, found[table], flush=True)
            keep()
