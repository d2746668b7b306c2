"""Tests of the marginal game."""

from __future__ import annotations

import itertools
from typing import Any

import lightgbm
import numpy as np
import pytest
import shap
import torch
from game_problems import RUN, encoded, every, normal_frame, problem
from sklearn.linear_model import LinearRegression, LogisticRegression

from fastshapley.data.table_schema import Table
from fastshapley.errors import InputError
from fastshapley.estimators import exact
from fastshapley.training.run import Run
from fastshapley.value_functions import (
    Marginal,
)
from fastshapley.value_functions.links import Link


@pytest.fixture(scope="module")
def classifier() -> Any:
    X = normal_frame()
    return LogisticRegression().fit(X, (X.a * X.b + X.c > 0).astype(int) + (X.d > 1))


@pytest.mark.parametrize("link", ["identity", "logit"])
def test_marginal_links_the_mean_over_background_rows(classifier: Any, link: Link) -> None:
    X = normal_frame()
    background = X[10:15]
    game = Marginal(background).fit(problem(classifier, X, link=link), RUN)
    x = encoded(X[:2])
    s = every(4, 2)
    v = game(x, s)
    assert v.shape == (2, 16, 3)
    for row, number in itertools.product(range(2), range(16)):
        mixed = background.copy()
        for column in range(4):
            if s[row, number, column]:
                mixed.iloc[:, column] = X.to_numpy()[row, column]
        mean = classifier.predict_proba(mixed).mean(0)
        expected = mean if link == "identity" else np.log(mean / (1 - mean))
        np.testing.assert_allclose(v[row, number], expected, atol=1e-6)


def test_marginal_values_equal_interventional_tree_shap() -> None:
    X = normal_frame(200)
    model = lightgbm.LGBMRegressor(n_estimators=10, num_leaves=5, n_jobs=1, verbose=-1).fit(X, X.a * X.b + X.c)
    background = X[:20]
    game = Marginal(background).fit(problem(model, X), RUN)
    theirs = shap.TreeExplainer(model, background, feature_perturbation="interventional").shap_values(X[:5])
    ours = exact(game, encoded(X[:5])).values[..., 0]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_values_of_a_linear_model_match_the_closed_form() -> None:
    """Each value is the coefficient times the distance from the background mean."""
    X = normal_frame()
    model = LinearRegression().fit(X, X.a - 2 * X.b + X.c * X.d)
    game = Marginal(X[:20]).fit(problem(model, X), RUN)
    closed = model.coef_ * (X[:5] - X[:20].mean()).to_numpy()
    np.testing.assert_allclose(exact(game, encoded(X[:5])).values[..., 0], closed, atol=1e-6)


@pytest.mark.parametrize("count", [7, np.int64(7), 1000])
def test_marginal_draws_its_background_from_the_training_rows(classifier: Any, count: int) -> None:
    X = normal_frame()
    task = problem(classifier, X)
    rows = Marginal(count).fit(task, RUN).rows_
    assert len(rows) == min(count, len(X))
    assert len(rows.unique(dim=0)) == len(rows)
    assert {tuple(row) for row in rows.tolist()} <= {tuple(row) for row in task.x[:].tolist()}
    assert torch.equal(Marginal(count).fit(task, RUN).rows_, rows)
    assert count > 7 or not torch.equal(Marginal(count).fit(task, Run(seed=1)).rows_, rows)


@pytest.mark.parametrize(("background", "message"), [(0, "background is 0"), (normal_frame()[:0], "no rows")])
def test_marginal_refuses_an_invalid_background(classifier: Any, background: int | Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Marginal(background).fit(problem(classifier, normal_frame()), RUN)
