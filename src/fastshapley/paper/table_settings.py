"""The four tables of the paper: the data, the model, and the settings of its authors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.datasets.table_loaders import Split, load_bankruptcy, load_census, load_marketing, load_news
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.support.optional import require
from fastshapley.training import recipes
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.recipes import Layers, Recipe
from fastshapley.training.run import Run, one_thread
from fastshapley.value_functions import Baseline


@dataclass(frozen=True)
class TableExperiment:
    """One table of the paper.

    Parameters
    ----------
    load : callable
        Returns the data.
    train : callable
        Returns the model to explain, a function or a module, for the data.
    recipe : Recipe
        The authors' settings.
    """

    load: Callable[[], Split]
    train: Callable[[Split], Any]
    recipe: Recipe


def boosted_trees(data: Split) -> Callable[[Any], Any]:
    """Train the LightGBM model of the census table.

    Parameters
    ----------
    data : Split
        The table.

    Returns
    -------
    callable
        From rows to the probabilities of both classes, (n, 2).
    """
    lightgbm = require("lightgbm", "paper")
    settings = {
        "objective": "binary",
        "learning_rate": 0.05,
        "num_leaves": 10,
        "max_bin": 512,
        "min_data": 100,
        "verbose": -1,
        "num_threads": 1,
    }
    booster = lightgbm.train(
        settings,
        lightgbm.Dataset(data.X_train, data.y_train),
        10_000,
        [lightgbm.Dataset(data.X_val, data.y_val)],
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    return lambda rows: _both(booster.predict(rows, num_threads=1))


def deep_trees(data: Split) -> Callable[[Any], Any]:
    """Train the XGBoost model of the bankruptcy table.

    Parameters
    ----------
    data : Split
        The table.

    Returns
    -------
    callable
        From rows to the probabilities of both classes, (n, 2).
    """
    xgboost = require("xgboost", "paper")
    settings = {"objective": "binary:logistic", "max_depth": 6, "nthread": 1, "seed": 0}
    booster = xgboost.train(settings, xgboost.DMatrix(data.X_train, data.y_train), 25)
    return lambda rows: _both(booster.predict(xgboost.DMatrix(rows)))


def neural_network(data: Split) -> nn.Module:
    """Train the network of the marketing and news tables.

    Parameters
    ----------
    data : Split
        The table.

    Returns
    -------
    torch.nn.Module
        From rows to the probabilities of both classes, (n, 2).
    """
    run = Run(seed=0)
    x, x_val = (torch.from_numpy(X.to_numpy(np.float64, copy=True)) for X in (data.X_train, data.X_val))
    y, y_val = torch.from_numpy(data.y_train), torch.from_numpy(data.y_val)
    with run.isolated("model"):
        encoder = TableEncoder.fitted(x, [0] * x.shape[1])
        logits = nn.Sequential(encoder, Perceptron(x.shape[1], 2, 2, 128, "relu"))

    def loss(rows: Tensor, generator: torch.Generator) -> Tensor:
        return functional.cross_entropy(logits(x[rows]), y[rows])

    def validate() -> float:
        return float(functional.cross_entropy(logits(x_val), y_val))

    with one_thread():
        options = Training(epochs=100, batch_size=128, learning_rate=1e-3, patience=5)
        train(Task("model", logits, len(x), loss, validate), options, run)
    return nn.Sequential(logits, nn.Softmax(dim=1)).eval()


def baseline(data: Split) -> Baseline:
    """Return the baseline game of the paper.

    The baseline is the mean of a continuous feature, and the most frequent value of a discrete one. One-hot columns
    are one feature. Continuous features are standardised, so a column of whole numbers is discrete.

    Parameters
    ----------
    data : Split
        The table.

    Returns
    -------
    Baseline
        The game, not fitted.
    """
    values: dict[str, float] = {}
    partition = data.players.bind(list(data.X_train.columns))
    for player in range(len(partition)):
        columns = data.X_train.iloc[:, partition.members(player)]
        discrete = bool((columns % 1 == 0).to_numpy().all())
        centre = columns.value_counts().index[0] if discrete else columns.mean()
        values |= dict(zip(columns.columns, centre, strict=True))
    return Baseline(values)


def _both(positive: Any) -> Any:
    return np.stack([1 - np.asarray(positive), positive], axis=1)


def _recipe(surrogate: Layers, explainer: Layers, learning_rate: float = 2e-4, validation: int = 500) -> Recipe:
    paper = recipes.paper()
    return replace(
        paper,
        surrogate_layers=surrogate,
        explainer_layers=explainer,
        explainer=replace(paper.explainer, learning_rate=learning_rate),
        validation_rows=validation,
    )


_ELU, _RELU, _DEEP = Layers(2, 128, "elu"), Layers(2, 128, "relu"), Layers(3, 128, "relu")

TABLES = {
    "census": TableExperiment(load_census, boosted_trees, _recipe(_ELU, _RELU, validation=100)),
    "marketing": TableExperiment(load_marketing, neural_network, _recipe(_RELU, _DEEP)),
    "bankruptcy": TableExperiment(load_bankruptcy, deep_trees, _recipe(_ELU, _RELU, learning_rate=1e-3)),
    "news": TableExperiment(load_news, neural_network, _recipe(_RELU, _DEEP)),
}
