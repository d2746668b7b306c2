"""Tests of exact values from shap's TreeExplainer: they must be the game's own, or there must be none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import numbers
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.estimators import exact
from fastshapley.estimators.tree_shap import tree_shap
from fastshapley.players import Features, Groups
from fastshapley.training.run import Run
from fastshapley.value_functions import Baseline, Marginal, Problem
from fastshapley.value_functions.links import Link

X = numbers(120, 4)
Y = np.sign(X[:, 0]) + X[:, 1] * X[:, 2]
CLASSES = (Y > 0).astype(int) + (Y > 1)
BACKGROUND = 12


def _xgboost(kind: str, **options: Any) -> Any:
    package = pytest.importorskip("xgboost")
    return getattr(package, kind)(n_estimators=6, max_depth=3, n_jobs=1, **options)


def _lightgbm(kind: str) -> Any:
    package = pytest.importorskip("lightgbm")
    return getattr(package, kind)(n_estimators=6, num_leaves=6, n_jobs=1, verbose=-1)


MODELS: dict[str, Callable[[], Any]] = {
    "XGBoost": lambda: _xgboost("XGBRegressor").fit(X, Y),
    "LightGBM": lambda: _lightgbm("LGBMRegressor").fit(X, Y),
    "forest": lambda: RandomForestRegressor(5, max_depth=3, random_state=0).fit(X, Y),
    "forest, three classes": lambda: RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, CLASSES),
    "a method": lambda: RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, CLASSES).predict_proba,
}


def game_of(model: Any, X: Any = X, players: Any = None, link: Link = "identity") -> tuple[Marginal, torch.Tensor]:
    schema = TableSchema.of(X)
    x = schema.encode(X)[:]
    bound = (players or Features()).bind(schema.names)
    problem = Problem(ModelFunction(model, schema, x[:5]), x, x, bound, link)
    return Marginal(BACKGROUND).fit(problem, Run(seed=0)), x


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_all_coalitions(name: str) -> None:
    game, x = game_of(MODELS[name]())
    found = tree_shap(game, x)
    assert found is not None
    np.testing.assert_allclose(found(x[:20]), exact(game, x[:20]).values, atol=1e-5)


def test_gaps_are_taken_as_the_model_takes_them() -> None:
    rows = X.copy()
    rows[::5, 1] = np.nan
    game, x = game_of(_xgboost("XGBRegressor").fit(rows, Y), rows)
    found = tree_shap(game, x)
    assert found is not None
    np.testing.assert_allclose(found(x[:20]), exact(game, x[:20]).values, atol=1e-5)


@pytest.mark.parametrize("kind", ["two classes", "three classes"])
def test_probabilities_from_a_sum_of_trees_have_none(kind: str) -> None:
    """For these, shap's values sum to the output, and are not Shapley values."""
    label = CLASSES if kind == "three classes" else CLASSES > 0
    for model in (_xgboost("XGBClassifier"), _lightgbm("LGBMClassifier")):
        assert tree_shap(*game_of(model.fit(X, label))) is None


TREE = DecisionTreeRegressor(max_depth=3).fit(X, Y)


def test_other_models_have_none() -> None:
    for model in (
        LinearRegression().fit(X, Y),
        lambda rows: TREE.predict(rows),
        make_pipeline(StandardScaler(), DecisionTreeRegressor(max_depth=3)).fit(X, Y),
    ):
        assert tree_shap(*game_of(model)) is None


def test_other_games_of_a_model_of_trees_have_none() -> None:
    assert tree_shap(*game_of(TREE, players=Groups({"a": ["x0", "x1"]}))) is None
    assert tree_shap(*game_of(RandomForestClassifier(3).fit(X, CLASSES > 0), link="logit")) is None
    game, x = game_of(TREE)
    assert game.model_ is not None
    problem = Problem(game.model_, x, x, game.partition_, "identity")
    assert tree_shap(Baseline().fit(problem, Run(seed=0)), x) is None


def test_categories_have_none() -> None:
    frame = pd.DataFrame({"kind": pd.Categorical(np.where(X[:, 0] > 0, "a", "b")), "number": X[:, 1]})
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=5, n_jobs=1, verbose=-1).fit(frame, Y)
    assert tree_shap(*game_of(model, frame)) is None


class Scaled(DecisionTreeRegressor):  # type: ignore[misc]
    """A tree whose outputs are not those of its leaves."""

    def predict(self, X: Any, check_input: bool = True) -> Any:
        return 3 * super().predict(X, check_input)


def test_values_that_do_not_sum_to_the_output_are_refused() -> None:
    assert tree_shap(*game_of(Scaled(max_depth=3).fit(X, Y))) is None
