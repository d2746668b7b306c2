"""Tests of the registry of value functions: short names, saving and restoring."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from game_problems import RUN, encoded, every, normal_frame, problem
from games import Additive
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import nn

from fastshapley.errors import FileFormatError
from fastshapley.training.recipes import Layers
from fastshapley.value_functions import Baseline, Conditional, Marginal, Missing, Surrogate
from fastshapley.value_functions.base_game import GameContext
from fastshapley.value_functions.registry import (
    GAMES,
    SHORT_NAMES,
    describe_game,
    new_game,
    restore_game,
    setting_of,
)

X = normal_frame()
MODEL = HistGradientBoostingClassifier(max_iter=3).fit(X, X.a > 0)
FITTED: dict[str, Any] = {
    "surrogate": Surrogate(training=(), layers=Layers(1, 4, "relu")),
    "marginal": Marginal(5),
    "baseline": Baseline(),
    "missing": Missing(),
    "conditional": Conditional(draws=2),
}


def test_four_games_have_short_names() -> None:
    assert sorted(SHORT_NAMES) == ["baseline", "conditional", "marginal", "surrogate"]
    assert GAMES.keys() == FITTED.keys()


def test_a_new_game_is_made_from_a_short_name_or_copied() -> None:
    assert type(new_game("marginal")) is Marginal
    given = Marginal(7)
    copy = new_game(given)
    assert copy is not given
    assert isinstance(copy, Marginal)
    assert copy.background == 7


@pytest.mark.parametrize("kind", FITTED)
def test_a_game_is_restored_from_its_description(kind: str) -> None:
    task = problem(MODEL, X, link="logit")
    game = FITTED[kind].fit(task, RUN)
    config, tensors = describe_game(game)
    assert config["kind"] == kind
    context = GameContext(game.schema_, game.partition_, torch.device("cpu"), MODEL)
    again = restore_game(json.loads(json.dumps(config)), tensors, context)
    assert type(again) is type(game)
    x, s = encoded(X[:3]), every(4, 3)
    np.testing.assert_array_equal(again(x, s), game(x, s))
    np.testing.assert_array_equal(again.grand(x), game.grand(x))
    assert torch.equal(again.null, game.null)
    assert (again.link, again.scale, again.cost) == (game.link, game.scale, game.cost)


def test_files_of_the_first_format_without_model_null_are_restored() -> None:
    game = FITTED["surrogate"].fit(problem(MODEL, X), RUN)
    config, tensors = describe_game(game)
    del tensors["model_null"]
    context = GameContext(game.schema_, game.partition_, torch.device("cpu"))
    assert torch.equal(restore_game(config, tensors, context).model_null, game.null)


def test_a_custom_game_must_be_passed_again() -> None:
    game = Additive(players=4)
    config, tensors = describe_game(game)
    task = problem(MODEL, X)
    context = GameContext(task.model.schema, task.players, torch.device("cpu"))
    with pytest.raises(FileFormatError, match="pass it as value_function="):
        restore_game(config, tensors, context)
    given = GameContext(task.model.schema, task.players, torch.device("cpu"), given=game)
    assert restore_game(config, tensors, given) is game


def test_setting_of_returns_the_value_function_parameter() -> None:
    assert setting_of({"kind": "marginal"}, None) == "marginal"
    assert type(setting_of({"kind": "missing"}, None)) is Missing
    network = nn.Linear(2, 2)
    setting = setting_of({"kind": "surrogate"}, network)
    assert isinstance(setting, Surrogate)
    assert setting.network is network
    game = Additive(players=3)
    assert setting_of({"kind": "custom"}, game) is game
