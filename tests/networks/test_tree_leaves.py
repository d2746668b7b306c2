"""Tests of the leaves that rows come to: a model of trees must be a sum over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from fastshapley.data.model_trees import model_trees
from fastshapley.data.trees import NOTHING, Trees
from fastshapley.errors import FileFormatError
from fastshapley.networks.tree_choice import chosen_trees
from fastshapley.networks.tree_leaves import TreeLeaves

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=400), RNG.integers(0, 10, 400) / 10, RNG.normal(size=400)])
X[::7, 0] = np.nan
X[3::11, 1] = np.nan
Y = np.sign(np.nan_to_num(X[:, 0])) + np.floor(3 * np.nan_to_num(X[:, 1], nan=0.7)) + RNG.normal(size=400) / 10


def _xgboost(**options: Any) -> Any:
    return pytest.importorskip("xgboost").XGBRegressor(n_estimators=8, max_depth=3, n_jobs=1, **options)


def _lightgbm(**options: Any) -> Any:
    model = pytest.importorskip("lightgbm").LGBMRegressor
    return model(n_estimators=8, num_leaves=8, verbose=-1, n_jobs=1, **options)


def _catboost(**options: Any) -> Any:
    return pytest.importorskip("catboost").CatBoostRegressor(
        iterations=8, depth=3, verbose=0, allow_writing_files=False, thread_count=1, **options
    )


MODELS: dict[str, Callable[[], Any]] = {
    "XGBoost": _xgboost,
    "XGBoost with DART": lambda: _xgboost(booster="dart"),
    "LightGBM": _lightgbm,
    "LightGBM that takes gaps for zeros": lambda: _lightgbm(use_missing=False),
    "CatBoost": _catboost,
    "CatBoost, leaf by leaf": lambda: _catboost(grow_policy="Lossguide", max_leaves=8),
    "CatBoost, gaps above": lambda: _catboost(nan_mode="Max"),
    "tree": lambda: DecisionTreeRegressor(max_depth=4),
    "forest": lambda: RandomForestRegressor(5, max_depth=4, random_state=0),
    "extra trees": lambda: ExtraTreesRegressor(5, max_depth=4, random_state=0),
    "histogram boosting": lambda: HistGradientBoostingRegressor(max_iter=8, max_leaf_nodes=8),
    "imputed": lambda: make_pipeline(SimpleImputer(), StandardScaler(), DecisionTreeRegressor(max_depth=4)),
}


def trees_of(model: Any) -> Trees:
    found = model_trees(model, 3)
    assert found is not None
    return found


def shares(leaves: TreeLeaves, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return whether each row is in each leaf, (n, leaves)."""
    found = leaves(torch.from_numpy(rows)).numpy()
    inside = np.zeros((len(rows), leaves.leaves))
    np.put_along_axis(inside, found, 1.0, axis=1)
    return inside


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_trees_is_a_sum_over_the_leaves_that_a_row_comes_to(name: str) -> None:
    """Weights of the leaves that are fitted to some rows give the output of others, up to float32 numbers."""
    model = MODELS[name]().fit(X, Y)
    leaves = TreeLeaves.of(chosen_trees(trees_of(model), X, 1 << 20))
    inside, output = shares(leaves, X), model.predict(X)
    weights, *_ = np.linalg.lstsq(inside, output, rcond=None)
    np.testing.assert_allclose(inside @ weights, output, atol=1e-5)
    order = RNG.permutation(len(X))  # New rows: each column from another row.
    mixed = np.column_stack([X[:, 0], X[order, 1], X[:, 2]])
    known = (shares(leaves, mixed) @ (inside.sum(0) == 0)) == 0  # in leaves that have weights
    assert known.mean() > 0.9
    rebuilt, real = shares(leaves, mixed) @ weights, model.predict(mixed)
    assert np.median(np.abs(rebuilt - real)[known]) < 1e-5  # Weights are not unique for all new rows.


def test_a_module_from_its_configuration_and_weights_is_the_same() -> None:
    leaves = TreeLeaves.of(trees_of(DecisionTreeRegressor(max_depth=4).fit(X, Y)))
    again = TreeLeaves(**leaves.config)
    again.load_state_dict(leaves.state_dict())
    again.check()
    rows = torch.from_numpy(X)
    assert torch.equal(again(rows), leaves(rows))
    assert again.leaves == leaves.leaves


@pytest.mark.parametrize("name", ["source", "child", "leaf", "roots"])
def test_damaged_weights_are_refused(name: str) -> None:
    leaves = TreeLeaves.of(trees_of(DecisionTreeRegressor(max_depth=4).fit(X, Y)))
    getattr(leaves, name)[0] = 1 << 40
    with pytest.raises(FileFormatError, match="nodes that do not exist"):
        leaves.check()


def test_infinite_numbers_and_gaps_go_where_the_model_sends_them() -> None:
    trees = Trees.of(
        [0, NOTHING, NOTHING], [1.0, 0, 0], [1, NOTHING, NOTHING], [2, NOTHING, NOTHING], [True] * 3, 1
    )
    rows = torch.tensor([[1.0], [1.1], [torch.nan], [torch.inf], [-torch.inf]], dtype=torch.float64)
    assert TreeLeaves.of(trees)(rows)[:, 0].tolist() == [0, 1, 1, 1, 0]
