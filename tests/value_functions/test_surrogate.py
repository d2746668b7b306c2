"""Tests of the surrogate game.

The columns are independent and binary, so E[f | x_s] is the mean over the rows that agree on s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch
from game_problems import RUN, encoded, every, normal_frame, problem
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.data.table_schema import Table
from fastshapley.errors import InputError, ModelError
from fastshapley.training.loop import Training
from fastshapley.training.recipes import Layers
from fastshapley.training.run import Run
from fastshapley.value_functions import (
    Missing,
    Surrogate,
    evaluate,
    grand_values,
)
from fastshapley.value_functions.links import Link, apply_link

QUICK = (Training(steps=1200, batch_size=64, learning_rate=1e-2, schedule="cosine"),)

SMALL = Layers(2, 32, "silu")


BITS = enumerate_coalitions(4).double()

TABLE = BITS.repeat(16, 1)

SCORES = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 1.0, 1.0], [2.0, 0.0, -1.0], [0.5, 0.5, 0.0]], dtype=torch.float64)


def probabilities(classes: int) -> Callable[[Tensor], Tensor]:
    return lambda x: (x @ SCORES[:, :classes]).softmax(1)


def probability(x: Tensor) -> Tensor:
    return (x @ SCORES[:, 0] - 1).sigmoid()


def regression(outputs: int) -> Callable[[Tensor], Tensor]:
    return lambda x: 100 + 10 * x @ SCORES[:, :outputs] + 5 * x[:, :1] * x[:, 1:2]


def booster() -> Any:
    """A model whose objective says that it returns the probability of one class."""
    options = {"objective": "binary", "min_data_in_leaf": 1, "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(TABLE.numpy(), (TABLE[:, 0] + TABLE[:, 1] + TABLE[:, 2] > 1).numpy())
    return lightgbm.train(options, data, num_boost_round=10)


def conditional_expectations(y: Tensor) -> Tensor:
    """E[y | x_s] for 16 rows and 16 coalitions, (16, 16, outputs), where y are the outputs of the rows."""
    agree = ((BITS[:, None, None] == BITS) | ~enumerate_coalitions(4)[:, None]).all(-1)  # row, coalition, row
    return (agree.double() @ y) / agree.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("model", "scale", "link"),
    [
        (probabilities(2), "probabilities", "identity"),
        (probabilities(3), "probabilities", "identity"),
        (probabilities(3), "probabilities", "logit"),
        (booster, "probability", "identity"),
        (probability, "probability", "logit"),
        (regression(1), "real", "identity"),
        (regression(3), "real", "identity"),
    ],
    ids=["2 classes", "3 classes", "3 logits", "1 probability", "1 logit", "1 number", "3 numbers"],
)
def test_a_trained_surrogate_approximates_the_conditional_expectation(model: Any, scale: str, link: Link) -> None:
    model = model() if model is booster else model
    X: Table = TABLE.numpy() if isinstance(model, lightgbm.Booster) else TABLE
    task = problem(model, X, link=link)
    game = Surrogate(training=QUICK, layers=SMALL, coalitions=4).fit(task, RUN)
    assert isinstance(game, Surrogate)
    assert game.scale == scale
    truth = apply_link(link, conditional_expectations(task.model(BITS)))
    v = evaluate(game, BITS, every(4, 16))
    error = (v - truth).square().mean() / (truth - truth.mean((0, 1))).square().mean()
    assert error < 0.01  # share of the variance


def body(outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_given_network_is_copied_and_trained() -> None:
    network = body()
    before = state(network)
    task = problem(probabilities(2), TABLE)
    game = Surrogate(network, training=QUICK).fit(task, RUN)
    truth = conditional_expectations(task.model(BITS))
    error = (evaluate(game, BITS, every(4, 16)) - truth).square().mean()
    assert error < 0.05 * truth.var()
    torch.testing.assert_close(state(network), before)


def test_without_training_a_given_network_is_not_changed() -> None:
    network = body().eval()
    game = Surrogate(network, training=()).fit(problem(probabilities(2), TABLE), RUN)
    assert isinstance(game, Surrogate)
    torch.testing.assert_close(state(game.network_.body), state(network))
    s = torch.ones(16, 1, 4, dtype=torch.bool)
    inputs = torch.cat([2 * BITS - 1, torch.ones(16, 4)], 1).float()  # standardised: the mean of the bits is 1/2
    torch.testing.assert_close(game(BITS, s)[:, 0], network(inputs).softmax(1))


@pytest.mark.parametrize(
    ("network", "got"),
    [
        (body(3), r"returned shape \(2, 3\)"),
        (nn.Linear(5, 2), "shapes cannot be multiplied"),
        (nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)), r"returned shape \(2,\)"),
        (nn.LSTM(8, 2), "tuple"),
    ],
    ids=["wrong outputs", "wrong inputs", "one axis", "a tuple"],
)
def test_a_network_of_the_wrong_shape_is_refused_before_training(network: nn.Module, got: str) -> None:
    with pytest.raises(InputError, match=rf"network must be a module from \(b, 8\) to \(b, 2\).*{got}"):
        Surrogate(network).fit(problem(probabilities(2), TABLE), RUN)


def test_a_tree_model_as_surrogate_gets_hidden_columns_as_gaps() -> None:
    X = normal_frame()
    model = LogisticRegression().fit(X, X.a > 0)
    trees = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5).fit(X, X.a > 0)
    game = Surrogate(trees).fit(problem(model, X), RUN)
    x = encoded(X)
    np.testing.assert_allclose(grand_values(game, x), trees.predict_proba(X))
    s = torch.tensor([True, False, True, False]).expand(len(x), 1, 4)
    hidden = X.assign(b=np.nan, d=np.nan)
    np.testing.assert_allclose(evaluate(game, x, s)[:, 0], trees.predict_proba(hidden))


def test_a_surrogate_with_a_different_number_of_outputs_is_refused() -> None:
    X = normal_frame()
    trees = HistGradientBoostingRegressor(max_iter=5).fit(X, X.a)
    with pytest.raises(ModelError, match="surrogate has 1 outputs where the model has 2"):
        Surrogate(trees).fit(problem(LogisticRegression().fit(X, X.a > 0), X), RUN)


@pytest.mark.parametrize("kind", [Surrogate, Missing])
def test_clones_keep_a_fitted_estimator(kind: Callable[[Any], Any]) -> None:
    X = normal_frame()
    trees = HistGradientBoostingRegressor(max_iter=5).fit(X, X.a)
    game = clone(kind(trees)).fit(problem(trees, X), RUN)
    assert game.outputs == 1


def test_equal_seeds_give_equal_surrogates_and_do_not_change_the_global_generator() -> None:
    before = torch.get_rng_state()
    task = problem(probabilities(2), TABLE)
    short = (Training(steps=20),)
    first, again, other = (
        evaluate(Surrogate(training=short).fit(task, Run(seed)), BITS, every(4, 16)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_default_surrogate_learns_a_constant_model() -> None:
    game = Surrogate().fit(problem(lambda x: torch.full((len(x),), 3.0), TABLE), RUN)
    v = evaluate(game, BITS, every(4, 16))
    torch.testing.assert_close(v, torch.full_like(v, 3.0), atol=1e-2, rtol=0)
