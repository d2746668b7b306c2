"""Tests of the properties of a game that the rest of the library uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from game_problems import RUN, normal_frame, problem
from games import Additive
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

from fastshapley.errors import InputError
from fastshapley.training.recipes import Layers
from fastshapley.value_functions import BaseGame, Baseline, Marginal, Missing, Problem, Surrogate
from fastshapley.value_functions.base_game import (
    called_model,
    calls_model,
    classes_of,
    cost,
    is_concurrent,
    is_fitted,
    is_game_of,
    is_surrogate,
    link_of,
    scale_of,
    tuned_model,
    weights_of,
)
from fastshapley.value_functions.links import Link

UNTRAINED = Surrogate(training=(), layers=Layers(1, 4, "relu"))


def classes_problem(link: Link = "identity", classes: int = 2) -> Problem:
    X = normal_frame()
    labels = (X.a > 0).astype(int) + (X.b > 0.5 if classes == 3 else 0)
    return problem(LogisticRegression().fit(X, labels), X, link=link)


def test_a_custom_game_has_the_default_properties() -> None:
    game = Additive(players=3)
    assert (link_of(game), scale_of(game), cost(game)) == ("identity", "real", 1)
    assert not any((is_concurrent(game), is_surrogate(game), calls_model(game), is_game_of(game, None)))
    assert called_model(game) is None
    assert weights_of(game) == []
    assert classes_of(game) == "free"
    assert tuned_model(game, "model") == "model"


def test_a_marginal_game_costs_one_model_call_per_background_row() -> None:
    task = classes_problem("logit")
    game = Marginal(5).fit(task, RUN)
    assert (link_of(game), scale_of(game), cost(game)) == ("logit", "probabilities", 5)
    assert calls_model(game)
    assert called_model(game) is task.model
    assert is_game_of(game, task.model)
    assert not is_game_of(game, classes_problem().model)
    assert not is_surrogate(game)


def test_a_surrogate_calls_no_model_and_has_weights() -> None:
    task = classes_problem()
    game = UNTRAINED.fit(task, RUN)
    assert is_surrogate(game)
    assert is_concurrent(game)
    assert not calls_model(game)
    assert not is_game_of(game, task.model)
    assert isinstance(game, Surrogate)
    assert len(weights_of(game)) == len(game.network_.state_dict())


@pytest.mark.parametrize(
    ("link", "classes", "expected"),
    [
        ("identity", 2, "mirror"),
        ("logit", 2, "mirror"),
        ("log", 2, "free"),
        ("identity", 3, "zero-sum"),
        ("logit", 3, "free"),
    ],
)
def test_constraints_on_the_values_of_classes(link: Link, classes: int, expected: str) -> None:
    assert classes_of(Baseline().fit(classes_problem(link, classes), RUN)) == expected


def test_only_an_object_with_players_and_outputs_is_fitted() -> None:
    assert is_fitted(Additive(players=3))
    assert is_fitted(Baseline().fit(classes_problem(), RUN))
    assert not is_fitted(Baseline())
    assert not is_fitted(Additive)


@pytest.mark.parametrize("game", [Marginal(5), Baseline(), Missing()], ids=["marginal", "baseline", "missing"])
def test_an_update_keeps_the_background_rows_and_calls_the_new_model(game: Any) -> None:
    X = normal_frame()
    X.iloc[0, 0] = float("nan")
    old, new = (HistGradientBoostingRegressor(max_iter=3).fit(X, X[name]) for name in ("b", "c"))
    before = game.fit(problem(old, X), RUN)
    task = problem(new, X[::-1])
    after = before.update(task, RUN)
    assert after is not before
    assert after.called_model is task.model
    assert before.called_model is not task.model
    assert torch.equal(after.rows_.nan_to_num(), before.rows_.nan_to_num())


def test_an_update_does_not_change_a_game_with_its_own_model() -> None:
    X = normal_frame()
    trees = HistGradientBoostingRegressor(max_iter=3).fit(X, X.b)
    game = Missing(trees).fit(problem(LinearRegression().fit(X, X.b), X), RUN)
    assert game.update(problem(LinearRegression().fit(X, X.c), X), RUN) is game


@pytest.mark.parametrize("game", [Baseline(), UNTRAINED], ids=["baseline", "surrogate"])
def test_an_update_with_a_different_number_of_outputs_is_refused(game: BaseGame) -> None:
    fitted = game.fit(classes_problem(), RUN)
    with pytest.raises(InputError, match="call fit instead"):
        fitted.update(classes_problem(classes=3), RUN)
