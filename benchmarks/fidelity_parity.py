"""The part of benchmarks/fidelity.py about the marginal game: our network next to interventional TreeSHAP.

Both get the same background, so both have the same exact values in mind, and TreeSHAP has them.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import shap
from fidelity_designs import DESIGNS, Array
from lightgbm import LGBMRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.model_selection import train_test_split
from xgboost import XGBRegressor

from fastshapley import FastSHAP
from fastshapley.datasets import Split, load_census, load_news
from fastshapley.value_functions import Marginal

BACKGROUND, TEST_ROWS, TRAIN_ROWS, QUICK_ROWS = 100, 500, 8000, 300
Rows = tuple[Array, Array, Array]  # training rows, labels, test rows

MODELS: dict[str, Callable[[], Any]] = {
    "LightGBM": lambda: LGBMRegressor(n_jobs=1, verbose=-1, random_state=0),
    "XGBoost": lambda: XGBRegressor(n_estimators=50, learning_rate=0.3, n_jobs=1, random_state=0),
}


def of_design(name: str, rho: float, rows: int) -> Rows:
    design, rng = DESIGNS[name](rho), np.random.default_rng(0)
    x = design.draw(rows, rng)
    return x, design.labels(x, rng), design.draw(TEST_ROWS, rng)


def of_sklearn(load: Callable[..., Any]) -> Rows:
    X, y = load(return_X_y=True)
    x, x_test, y_train, _ = train_test_split(X, y.astype(float), test_size=0.3, random_state=0)
    return x, y_train, x_test[:TEST_ROWS]


def of_split(data: Split) -> Rows:
    x, x_test = data.X_train.to_numpy(float), data.X_test.to_numpy(float)
    return x[:TRAIN_ROWS], data.y_train[:TRAIN_ROWS].astype(float), x_test[:TEST_ROWS]


TABLES: dict[str, Callable[[], Rows]] = {
    "B, rho .5": lambda: of_design("B", 0.5, 2000),
    "curved": lambda: of_design("curved", 0.0, 8000),
    "diabetes": lambda: of_sklearn(load_diabetes),
    "breast cancer": lambda: of_sklearn(load_breast_cancer),
    "census": lambda: of_split(load_census()),
    "news": lambda: of_split(load_news()),
}


def measure(table: str, kind: str, quick: bool) -> dict[str, float]:
    x, y, x_test = (rows[:QUICK_ROWS] if quick else rows for rows in TABLES[table]())
    x, x_test = (rows.astype(np.float32).astype(float) for rows in (x, x_test))  # TreeSHAP needs it to be exact.
    model = MODELS[kind]().fit(x, y)
    background = x[np.random.default_rng(0).permutation(len(x))[:BACKGROUND]]
    start = time.perf_counter()
    trees = shap.TreeExplainer(model, background, feature_perturbation="interventional")
    truth = np.asarray(trees.shap_values(x_test, check_additivity=False))
    tree_seconds = time.perf_counter() - start
    total = model.predict(x_test) - model.predict(background).mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        explainer = FastSHAP(model, value_function=Marginal(background), random_state=0, progress=False).fit(x)
        fit_seconds = time.perf_counter() - start
        start = time.perf_counter()
        values = explainer(x_test).values
    return {
        "relative_squared_error": float(np.square(values - truth).sum() / np.square(truth).sum()),
        "truth_sum_error": float(np.square(truth.sum(1) - total).sum() / np.square(total).sum()),
        "mean_absolute_error": float(np.abs(values - truth).mean()),
        "mean_absolute_value": float(np.abs(truth).mean()),
        "fit_seconds": fit_seconds,
        "explain_seconds": time.perf_counter() - start,
        "tree_seconds": tree_seconds,
        "train_rows": len(x),
        "test_rows": len(x_test),
        "columns": x.shape[1],
    }


def run(options: Namespace, found: dict[str, Any], keep: Callable[[], None]) -> None:
    for table in options.tables:
        for kind in MODELS:
            entry = found.setdefault(f"{table}|{kind}", {})
            if options.label not in entry or options.again:
                entry[options.label] = measure(table, kind, options.quick)
                print(table, kind, entry[options.label], flush=True)
                keep()
