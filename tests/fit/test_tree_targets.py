"""Tests of exact values as targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from background_games import RUN
from problems import numbers
from sklearn.ensemble import RandomForestRegressor

from fastshapley import FastSHAP, Targets
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.estimators import exact
from fastshapley.fit.targets import EstimatedValues, TrainingRows
from fastshapley.fit.tree_targets import ENOUGH_ROWS, plan_tree_targets, prepare_tree_training
from fastshapley.players import Features
from fastshapley.training.recipes import Recipe, default
from fastshapley.value_functions import Marginal, Problem

X = numbers(600, 4)
MODEL = RandomForestRegressor(4, max_depth=3, random_state=0).fit(X, np.sign(X[:, 0]) + X[:, 1] * X[:, 2])
SCHEMA = TableSchema.of(X)
ROWS = SCHEMA.encode(X)[:]
ONE = torch.ones(1, dtype=torch.float64)


def game() -> Marginal:
    problem = Problem(ModelFunction(MODEL, SCHEMA, ROWS[:5]), ROWS, ROWS, Features().bind(SCHEMA.names))
    return Marginal(10).fit(problem, RUN)


def recipe(**options: Any) -> Recipe:
    return replace(default(len(X), 4), targets=Targets(**{"fewest": 10, "rows": 1000, **options}))


def lesson(**options: Any) -> EstimatedValues | None:
    marginal, settings = game(), recipe(**options)
    trees = plan_tree_targets(marginal, ROWS, settings, RUN)
    if trees is None:
        return None
    return prepare_tree_training(trees, marginal, TrainingRows(ROWS, ROWS[:50]), 2 * ONE, settings, RUN)


def test_targets_are_exact_in_units_of_the_scale() -> None:
    found = lesson()
    assert found is not None
    truth = exact(game(), found.x[:20]).values / 2
    np.testing.assert_allclose(found.values[:20], truth, atol=1e-5)
    torch.testing.assert_close(found.values.sum(1), found.total, atol=1e-5, rtol=1e-5)


def test_there_are_mixed_rows_if_there_is_time() -> None:
    found = lesson()
    assert found is not None
    assert len(found.x) == 1000
    assert torch.equal(found.x[: len(X)], ROWS)


def test_rows_are_those_that_the_time_of_sampling_allows() -> None:
    assert lesson(evaluations=1) is None
    trees = plan_tree_targets(game(), ROWS, recipe(evaluations=1 << 40), RUN)
    assert trees is not None
    assert trees.rows == ENOUGH_ROWS


def test_a_recipe_without_targets_has_none() -> None:
    assert plan_tree_targets(game(), ROWS, replace(recipe(), targets=None), RUN) is None


def test_a_marginal_explainer_of_trees_is_close_to_the_exact_values() -> None:
    """The error was .0003 when this was written; without the trees as inputs it is above the bound."""
    explainer = FastSHAP(MODEL, value_function=Marginal(10), recipe=recipe(), random_state=0, progress=False)
    explainer.fit(X)
    fresh = numbers(100, 4, seed=1)
    truth = exact(explainer.value_function_, explainer.fitted_.schema.encode(fresh)[:]).values[:, :, 0]
    error = np.square(explainer(fresh).values - truth).sum() / np.square(truth).sum()
    assert error < 0.001
