"""The part of benchmarks/fidelity.py on real tables: held-out MSEv of games by coalition size.

MSEv, the mean of (f(x) - v(x, s))^2 over held-out rows and coalitions of one size, is the squared distance of v to
the true conditional expectation plus a constant that all games share, so it needs no truth. All games get the same
coalitions. Where a game samples, two independent halves are multiplied instead of squaring one, so that sampling
noise has no part in the mean.
"""

from __future__ import annotations

import importlib
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from fidelity_designs import Array, Mask, Sampler, fill, uniforms
from fidelity_games import Copula, default_game, fit_model
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn import datasets as sklearn_datasets
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import Tensor

from fastshapley import FastSHAP, metrics
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.players import Features, Partition
from fastshapley.data.table_schema import TableSchema
from fastshapley.datasets import Split, load_bankruptcy, load_census, load_marketing, load_news

TRAIN_ROWS, TEST_ROWS = 8000, 500  # at most
QUICK_ROWS, QUICK_TEST_ROWS = 500, 10
COALITIONS = 4  # of each size per row
DRAWS = 64


@dataclass(frozen=True)
class Table:
    """Rows to train on, held-out rows, labels, and the players."""

    X: Any
    y: Any
    X_test: Any
    classes: bool
    players: Any = None


def of_split(load: Callable[[], Split]) -> Callable[[], Table]:
    def table() -> Table:
        data = load()
        players = None if isinstance(data.players, Features) else data.players
        rng = np.random.default_rng(0)
        rows = rng.permutation(len(data.X_train))[:TRAIN_ROWS]
        test = rng.permutation(len(data.X_test))[:TEST_ROWS]
        return Table(data.X_train.iloc[rows], data.y_train[rows], data.X_test.iloc[test], True, players)

    return table


def of_rows(X: Any, y: Any, classes: bool) -> Table:
    X_train, X_test, y_train, _ = train_test_split(X, y, test_size=0.3, random_state=0)
    return Table(X_train, np.asarray(y_train), X_test.iloc[:TEST_ROWS], classes)


def of_sklearn(name: str, classes: bool) -> Callable[[], Table]:
    def table() -> Table:
        X, y = getattr(sklearn_datasets, f"load_{name}")(return_X_y=True, as_frame=True)
        return of_rows(X, y, classes)

    return table


def of_plotly(name: str, label: str, dropped: tuple[str, ...] = ()) -> Callable[[], Table]:
    def table() -> Table:
        data = getattr(importlib.import_module("plotly.data"), name)().drop(columns=list(dropped))
        X = data.drop(columns=label)
        text = [c for c in X if X[c].dtype.kind not in "biuf"]
        return of_rows(X.astype(dict.fromkeys(text, "category")), data[label], classes=False)

    return table


# A table, and the models that are trained on it. plotly is optional: its tables are left out where it is missing.
TABLES: dict[str, tuple[Callable[[], Table], tuple[str, ...]]] = {
    "diabetes": (of_sklearn("diabetes", False), ("boosted", "forest")),
    "breast cancer": (of_sklearn("breast_cancer", True), ("boosted", "perceptron")),
    "wine": (of_sklearn("wine", True), ("boosted", "perceptron")),
    "iris": (of_sklearn("iris", True), ("boosted", "forest")),
    "digits": (of_sklearn("digits", True), ("boosted",)),
    "tips": (of_plotly("tips", "tip"), ("boosted", "forest")),
    "gapminder": (of_plotly("gapminder", "lifeExp", ("country", "iso_alpha", "iso_num")), ("boosted", "forest")),
    "census": (of_split(load_census), ("boosted", "forest")),
    "marketing": (of_split(load_marketing), ("boosted",)),
    "news": (of_split(load_news), ("boosted", "perceptron")),
    "bankruptcy": (of_split(load_bankruptcy), ("boosted",)),
}


class Donors(Sampler):
    """Hidden columns of whole training rows, whatever is shown: the marginal game with all rows as background."""

    def __init__(self, x: Array) -> None:
        self.x = x

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        chosen = self.x[(u[:, 0] * len(self.x)).astype(int)][:, ~s]
        return fill(x, s, np.broadcast_to(chosen, (len(x), *chosen.shape)))


# A game is settings of FastSHAP, or a sampler whose rows go through the model.
GAMES: dict[str, dict[str, Any] | Callable[[Array], Sampler]] = {
    "surrogate": {"value_function": "surrogate"},
    "marginal": Donors,
    "copula": Copula,
    "default": {},
}


def model_of(kind: str, classes: bool) -> Any:
    regressors: dict[str, Callable[[], Any]] = {
        "boosted": lambda: LGBMRegressor(n_jobs=1, verbose=-1, random_state=0),
        "forest": lambda: RandomForestRegressor(50, min_samples_leaf=3, n_jobs=1, random_state=0),
        "perceptron": lambda: MLPRegressor(hidden_layer_sizes=(64, 64), early_stopping=True, random_state=0),
    }
    classifiers: dict[str, Callable[[], Any]] = {
        "boosted": lambda: LGBMClassifier(n_jobs=1, verbose=-1, random_state=0),
        "forest": lambda: RandomForestClassifier(50, min_samples_leaf=3, n_jobs=1, random_state=0),
        "perceptron": lambda: MLPClassifier(hidden_layer_sizes=(64, 64), alpha=0.01, max_iter=100, random_state=0),
    }
    return (classifiers if classes else regressors)[kind]()


@dataclass(frozen=True)
class Contest:
    """A model, its encoded rows, and the coalitions that every game is asked about, (n, sizes * COALITIONS, d)."""

    table: Table
    model: Any
    function: ModelFunction
    x: Array
    x_test: Array
    partition: Partition
    sizes: list[int]
    s: Tensor


def contest(name: str, kind: str, quick: bool) -> Contest:
    table = TABLES[name][0]()
    if quick:
        X_test = table.X_test.iloc[:QUICK_TEST_ROWS]
        table = replace(table, X=table.X.iloc[:QUICK_ROWS], y=table.y[:QUICK_ROWS], X_test=X_test)
    model = fit_model(kind, model_of(kind, table.classes), table.X, table.y)
    schema = TableSchema.of(table.X)
    x, x_test = schema.encode(table.X), schema.encode(table.X_test)
    partition = (table.players or Features()).bind(schema.names)
    d = len(partition)
    sizes = sorted({1, max(1, round(d / 4)), round(d / 2), round(3 * d / 4), d - 1, d})
    rng = np.random.default_rng(0)
    order = rng.random((len(x_test), len(sizes) * COALITIONS, d)).argsort(2).argsort(2)
    s = torch.from_numpy(order < np.repeat(sizes, COALITIONS)[:, None])
    return Contest(
        table, model, ModelFunction(model, schema, x[:256]), x.numpy(), x_test.numpy(), partition, sizes, s
    )


def by_sampler(given: Contest, sampler: Sampler) -> tuple[Array, Array]:
    """Return v(x, s) from two halves of the draws, (n, m, outputs) each."""
    d = given.x.shape[1]
    u = np.concatenate([uniforms(DRAWS // 2, d, seed) for seed in (0, 1)])
    shown = given.partition.mask(given.s).numpy()
    halves = []
    for row, masks in zip(given.x_test, shown, strict=True):
        mixed = np.concatenate([sampler.sample(row[None], mask, u)[0] for mask in masks])
        output = given.function(torch.from_numpy(mixed)).numpy()
        halves.append(output.reshape(len(masks), 2, DRAWS // 2, -1).mean(2))
    both = np.stack(halves)
    return both[:, :, 0], both[:, :, 1]


def by_fastshap(given: Contest, settings: dict[str, Any]) -> tuple[Array, Array]:
    """Return v(x, s) twice, which differ if the game draws anew for each evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = FastSHAP(
            given.model, players=given.table.players, recipe="sampling", random_state=0, progress=False, **settings
        ).fit(given.table.X)
    x = explainer.fitted_.schema.encode(given.table.X_test)[:]
    first, second = (explainer.value_function_(x, given.s).double().numpy() for _ in range(2))
    return first, second


def scores(given: Contest, game: dict[str, Any] | Callable[[Array], Sampler]) -> Array:
    """Return MSEv over the variance of f, (n, sizes): means over coalitions and outputs."""
    if isinstance(game, dict):
        first, second = by_fastshap(given, game)
    else:
        first, second = by_sampler(given, game(given.x))
    f = given.function(torch.from_numpy(given.x_test)).numpy()
    squared = ((f[:, None] - first) * (f[:, None] - second)).sum(2)
    return squared.reshape(len(f), len(given.sizes), COALITIONS).mean(2) / f.var(0).sum()


def run(options: Namespace, found: dict[str, Any], keep: Callable[[], None]) -> None:
    """Fill in what is missing in found: a table and model at a time, game by game."""
    asked = [g for g in options.games if g != "default" or default_game() != "surrogate"]
    for name in options.tables:
        for kind in TABLES[name][1]:
            key = f"{name}|{kind}"
            entry = found.setdefault(key, {})
            missing = [g for g in asked if options.again or g not in entry]
            if not missing:
                continue
            try:
                given = contest(name, kind, options.quick)
            except ModuleNotFoundError as error:
                print(f"{key}: {error}", flush=True)
                continue
            entry["sizes"], entry["test_rows"] = given.sizes, len(given.x_test)
            entry["train_rows"], entry["players"] = len(given.x), len(given.partition)
            options.cache.mkdir(parents=True, exist_ok=True)
            for game in missing:
                per_row = scores(given, GAMES[game])
                np.save(options.cache / f"table-{key.replace('|', '-')}-{game}.npy", per_row)
                entry[game] = {
                    "mean": per_row.mean(0).tolist(),
                    "interval": [list(metrics.bootstrap_interval(column)) for column in per_row.T],
                }
                print(key, game, dict(zip(given.sizes, per_row.mean(0).round(3).tolist(), strict=True)), flush=True)
            compare(entry, key, options)
            keep()


def compare(entry: dict[str, Any], key: str, options: Namespace) -> None:
    """Add the difference of the default's scores to each game's, row by row, where both were measured here."""
    paths = {game: options.cache / f"table-{key.replace('|', '-')}-{game}.npy" for game in GAMES}
    if not paths["default"].exists():
        return
    default = np.load(paths["default"])
    for game, path in paths.items():
        if game != "default" and game in entry and path.exists():
            less = default - np.load(path)
            entry[game]["default_less_this"] = {
                "mean": less.mean(0).tolist(),
                "interval": [list(metrics.bootstrap_interval(column)) for column in less.T],
            }
