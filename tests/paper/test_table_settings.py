"""Tests of the settings of the paper's tables: recipes, data and models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from paper_data import needs
from sklearn.metrics import log_loss
from torch import Tensor, nn

from fastshapley import Groups, Layers
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.datasets import Split
from fastshapley.paper.table_settings import TABLES, boosted_trees, deep_trees, neural_network
from fastshapley.players import Features

FILES = {
    "census": "census/adult.data",
    "marketing": "marketing/bank-full.csv",
    "bankruptcy": "bankruptcy/data.csv",
    "news": "news/OnlineNewsPopularity.csv",
}


def split(rows: int = 600, seed: int = 0) -> Split:
    """Return data whose labels depend on two of four columns, with 10 % of the labels flipped."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(10, 5, size=(3 * rows, 4)), columns=list("abcd"))
    y = ((X["a"] + X["b"] > 20).to_numpy() ^ (rng.random(3 * rows) < 0.1)).astype(np.int64)
    (X_train, y_train), (X_val, y_val), (X_test, y_test) = (
        (X[i * rows : (i + 1) * rows], y[i * rows : (i + 1) * rows]) for i in range(3)
    )
    return Split(X_train, X_val, X_test, y_train, y_val, y_test, Features())


def probabilities(model: Any, X: pd.DataFrame) -> NDArray[np.float64]:
    schema = TableSchema.of(X)
    function = ModelFunction(model, schema, schema.encode(X[:5]))
    assert function.scale == "probabilities"
    result: Tensor = function(schema.encode(X))
    assert result.shape == (len(X), 2)
    return result.numpy()


@pytest.mark.parametrize("train", [boosted_trees, deep_trees, neural_network])
def test_models_return_reproducible_probabilities_of_both_classes(train: Any) -> None:
    data = split()
    first, again = (probabilities(train(data), data.X_test) for _ in range(2))
    np.testing.assert_allclose(first.sum(1), 1, atol=1e-6)
    assert ((first[:, 1] > 0.5) == data.y_test).mean() > 0.8  # 0.9 at best
    assert first.tobytes() == again.tobytes()


def test_training_a_network_does_not_change_global_generators() -> None:
    before = torch.get_rng_state()
    model = neural_network(split(100))
    assert torch.equal(before, torch.get_rng_state())
    assert isinstance(model, nn.Module)
    assert not model.training


@pytest.mark.parametrize("name", TABLES)
def test_recipes_match_the_paper(name: str) -> None:
    recipe = TABLES[name].recipe
    trees = name in ("census", "bankruptcy")
    assert recipe.surrogate_layers == Layers(2, 128, "elu" if trees else "relu")
    assert recipe.explainer_layers == Layers(2 if trees else 3, 128, "relu")
    assert recipe.explainer.learning_rate == (1e-3 if name == "bankruptcy" else 2e-4)
    assert (recipe.explainer.batch_size, recipe.explainer.epochs, recipe.explainer.patience) == (32, 200, 5)
    assert recipe.validation_rows == (100 if name == "census" else 500)
    assert (recipe.coalitions, recipe.paired, recipe.targets, recipe.tails) == (32, True, None, None)


@pytest.mark.parametrize(
    ("name", "shape", "players"),
    [
        pytest.param(name, shape, players, marks=needs(FILES[name]))
        for name, shape, players in [
            ("census", (20838, 12), 12),
            ("marketing", (36620, 34), 16),
            ("bankruptcy", (4362, 94), 94),
            ("news", (31590, 58), 58),
        ]
    ],
)
def test_tables_have_the_shapes_of_the_paper(name: str, shape: tuple[int, int], players: int) -> None:
    data = TABLES[name].load()
    assert data.X_train.shape == shape
    assert len(data.players.bind(list(data.X_train.columns))) == players
    assert isinstance(data.players, Groups if name == "marketing" else Features)


@needs(FILES["bankruptcy"])
def test_the_bankruptcy_model_is_better_than_the_base_rate() -> None:
    table = TABLES["bankruptcy"]
    data = table.load()
    y = data.y_test
    loss = log_loss(y, probabilities(table.train(data), data.X_test)[:, 1])
    assert loss < 0.9 * log_loss(y, np.full(len(y), data.y_train.mean()))
