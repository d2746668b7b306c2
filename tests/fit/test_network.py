"""Tests of training the explainer network on games with known values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from games import Additive
from problems import QUICK
from torch import Tensor

from fastshapley import Training
from fastshapley.data.players import Features
from fastshapley.data.table_schema import TableSchema
from fastshapley.fit.network import NetworkProblem, build_network, fit_network
from fastshapley.fit.targets import TrainingRows
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.objective import normalize
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Clock, Run
from fastshapley.value_functions import ValueFunction
from fastshapley.value_functions.protocol import total_values

LONGER = replace(QUICK, explainer=Training(steps=400, batch_size=64, learning_rate=3e-3, schedule="cosine"))


def new_network(game: ValueFunction, x: Tensor, recipe: Recipe = QUICK) -> ExplainerNetwork:
    schema = TableSchema.of(x.numpy())
    return build_network(x, schema, game, Features().bind(schema.names), None, None, recipe, Run(0))


def problem(game: ValueFunction, x: Tensor, recipe: Recipe = QUICK, **options: Any) -> NetworkProblem:
    rows = TrainingRows(x, x[:50], [False] * x.shape[1], list(range(x.shape[1])))
    return NetworkProblem(game, rows, recipe, **{"run": Run(0), **options})


def relative_error(values: Tensor, truth: Tensor) -> float:
    return float((values - truth).square().sum() / truth.square().sum())


def test_the_values_of_an_additive_game_are_learnt() -> None:
    """The relative squared error is about 1 before training and below 5 % after it."""
    game = Additive(4)
    x = game.rows(400)
    network = new_network(game, x, LONGER)
    trained = fit_network(network, problem(game, x, LONGER))
    assert min(trained.losses) < 0.1 * trained.losses[0]
    new = game.rows(100)
    with torch.no_grad():
        values = normalize(network(new).double(), total_values(game, new))
    assert relative_error(values, game.shapley(new)) < 0.05


class Constant(Additive):
    """A game in which no player adds anything."""

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return torch.full((*s.shape[:2], self.outputs), 3.0, dtype=torch.float64)


def test_a_constant_game_gives_every_player_zero() -> None:
    game = Constant(4)
    x = game.rows(100)
    network = new_network(game, x)
    assert fit_network(network, problem(game, x)).losses == []
    assert not network(x).any()


def test_without_time_to_train_every_player_gets_the_same_value(caplog: pytest.LogCaptureFixture) -> None:
    game = Additive(4)
    x = game.rows(100)
    network = new_network(game, x)
    fit_network(network, problem(game, x, run=Run(0, clock=Clock(0.0))))
    assert "time_budget left no time to train the explainer" in caplog.text
    assert not network(x).any()


def test_a_recipe_without_steps_does_not_change_a_trained_network() -> None:
    game = Additive(4)
    x = game.rows(100)
    sampling = replace(QUICK, explainer=replace(QUICK.explainer, steps=0))
    network = new_network(game, x)
    fit_network(network, problem(game, x))
    before = network(x).detach().clone()
    fit_network(network, problem(game, x, sampling, update=True))
    assert torch.equal(network(x), before)
    fit_network(network, problem(game, x, sampling))
    assert not network(x).any()


def test_one_player_needs_no_training() -> None:
    game = Additive(1)
    x = game.rows(20)
    assert fit_network(new_network(game, x), problem(game, x)).losses == []
