"""The competitors of benchmarks/fidelity.py: our games and networks, samples through the model, and TreeSHAP.

`COMPETITORS` is the list: a name, and a function from a `Case` to the values of its test rows.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import shap
from fidelity_designs import Array, Mask, Normal, Predict, Sampler, fill, sampled_values
from lightgbm import LGBMRegressor
from scipy import stats
from scipy.special import ndtr
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from xgboost import XGBRegressor

from fastshapley import FastSHAP
from fastshapley.estimators import exact

REFERENCE_DRAWS = 256  # of a reference sampler; small coalitions get more, see `sampled_values`


@dataclass(frozen=True)
class Case:
    """A fitted model, the rows it was trained on, and the rows to explain.

    X, X_test are what the user has; x, x_test the same rows as numbers, with codes for categories.
    """

    model: Any
    kind: str
    X: Any
    X_test: Any
    x: Array
    x_test: Array
    predict: Predict
    seed: int


@dataclass(frozen=True)
class Answer:
    """Values (n, players) by what gave them ("game", "network"), and the seconds of fitting and of explaining.

    ``stated`` is what the report says about the relative squared error of the game and of the network, and ``bars``
    (n, players) are the standard errors of the network's values.
    """

    values: dict[str, Array]
    fit_seconds: float
    explain_seconds: float
    stated: dict[str, float | None] = field(default_factory=dict)
    bars: Array | None = None


def by_fastshap(case: Case, network: bool = False, **settings: Any) -> Answer:
    """The exact values of an explainer's game, and the values of its network."""
    if not network:
        settings.setdefault("recipe", "sampling")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = FastSHAP(case.model, random_state=case.seed, progress=False, **settings).fit(case.X)
        fitted = time.perf_counter()
        values = {"network": explainer(case.X_test).values} if network else {}
        explained = time.perf_counter()
        bars = explainer(case.X_test, errors=True).error_std if network else None
        x = explainer.fitted_.schema.encode(case.X_test)[:]
        values["game"] = exact(explainer.value_function_, x).values[:, :, 0]
    report = explainer.report_
    stated: dict[str, float | None] = {}
    if report is not None:
        stated = {"game": report.relative_game_error, "network": report.relative_squared_error}
    return Answer(values, fitted - start, explained - fitted, stated, bars)


class Copula(Sampler):
    """A normal copula of the training rows: normal scores, their correlation, and back by the quantiles."""

    def __init__(self, x: Array) -> None:
        self.sorted = np.sort(x, axis=0)
        scores = self._scores(x)
        spread = np.maximum(scores.std(0), 1e-9)
        self.normal = Normal(np.zeros(x.shape[1]), np.cov(scores.T) + np.diag(1e-6 * spread**2 + 1e-12))

    def _scores(self, x: Array) -> Array:
        n = len(self.sorted)
        rank = np.empty_like(x)
        for j, column in enumerate(self.sorted.T):  # Ties, as of categories, get the middle rank.
            low, high = (np.searchsorted(column, x[:, j], side) for side in ("left", "right"))
            rank[:, j] = np.clip((low + high) / 2, 0.5, n - 0.5)
        return stats.norm.ppf(rank / n)

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        n = len(self.sorted)
        hidden = np.flatnonzero(~s)
        place = ndtr(self.normal.sample(self._scores(x), s, u)[:, :, hidden])
        index = np.clip((place * n).astype(int), 0, n - 1)
        return fill(x, s, self.sorted[index, hidden])


def fitted_normal(x: Array) -> Normal:
    cov = np.cov(x.T)
    return Normal(x.mean(0), cov + 1e-9 * np.trace(cov) / len(cov) * np.eye(len(cov)))


def by_samples(case: Case, sampler: Callable[[Array], Sampler]) -> Answer | None:
    """Conditional samples through the model, every coalition. None for normal samples of categories."""
    if sampler is fitted_normal and categorical(case.X):
        return None
    start = time.perf_counter()
    values = sampled_values(sampler(case.x), case.predict, case.x_test, REFERENCE_DRAWS, seed=1000 + case.seed)
    return Answer({"game": values.values}, 0.0, time.perf_counter() - start)


def by_treeshap(case: Case) -> Answer | None:
    """Path-dependent TreeSHAP; values of one-hot columns are summed. None if the model is not of trees."""
    if case.kind not in ("boosted", "forest"):
        return None
    start = time.perf_counter()
    model, X, owner = case.model, case.X_test, None
    if isinstance(model, Pipeline):
        X, owner = model[0].transform(X), one_hot_owners(model[0])
        model = model[-1]
    values = shap.TreeExplainer(model).shap_values(X)
    if owner is not None:
        values = values @ (np.asarray(owner)[:, None] == np.arange(case.x_test.shape[1]))
    return Answer({"game": np.asarray(values, dtype=float)}, 0.0, time.perf_counter() - start)


COMPETITORS: dict[str, Callable[[Case], Answer | None]] = {
    "default": partial(by_fastshap, network=True),
    "surrogate": partial(by_fastshap, network=True, value_function="surrogate"),
    "marginal": partial(by_fastshap, value_function="marginal"),
    "normal": partial(by_samples, sampler=fitted_normal),
    "copula": partial(by_samples, sampler=Copula),
    "TreeSHAP": by_treeshap,
}


def default_game() -> Any:
    """Return the value function that FastSHAP has by default."""
    return inspect.signature(FastSHAP).parameters["value_function"].default


def one_hot_owners(encoder: Any) -> list[int]:
    """Return the column of the user's table that each encoded column comes from."""
    if not isinstance(encoder, ColumnTransformer):
        return list(range(encoder.n_features_in_))
    names, owner = list(encoder.feature_names_in_), []
    for _, step, columns in encoder.transformers_:
        sizes = [len(c) for c in step.categories_] if isinstance(step, OneHotEncoder) else [1] * len(columns)
        owner += [names.index(c) for c, size in zip(columns, sizes, strict=True) for _ in range(size)]
    return owner


def train(kind: str, X: Any, y: Array, seed: int) -> Any:
    """Return a fitted model of a kind in MODELS; XGBoost makes way for LightGBM where there are categories."""
    if kind == "boosted" and categorical(X):
        return LGBMRegressor(n_jobs=1, verbose=-1, random_state=seed).fit(X, y)
    return fit_model(kind, MODELS[kind](seed), X, y)


def categorical(X: Any) -> list[str]:
    return list(X.columns[X.dtypes == "category"]) if hasattr(X, "columns") else []


def fit_model(kind: str, model: Any, X: Any, y: Array) -> Any:
    """Fit a model; inputs of perceptrons are scaled, and categories one-hot encoded except for boosted trees."""
    if kind == "boosted":
        return model.fit(X, y)
    names = categorical(X)
    if not names:
        return (make_pipeline(StandardScaler(), model) if kind == "perceptron" else model).fit(X, y)
    others = [c for c in X.columns if c not in names]
    encoder = ColumnTransformer(
        [
            ("categories", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), names),
            ("numbers", StandardScaler(), others),
        ]
    )
    return make_pipeline(encoder, model).fit(X, y)


MODELS: dict[str, Callable[[int], Any]] = {
    "boosted": lambda seed: XGBRegressor(n_estimators=50, learning_rate=0.3, n_jobs=1, random_state=seed),
    "forest": lambda seed: RandomForestRegressor(50, min_samples_leaf=3, n_jobs=1, random_state=seed),
    "perceptron": lambda seed: MLPRegressor(
        hidden_layer_sizes=(64, 64), early_stopping=True, max_iter=500, random_state=seed
    ),
    "linear": lambda seed: LinearRegression(),
}
