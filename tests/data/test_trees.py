"""Tests of reading where trees split: the cuts must be where the models' outputs really jump."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor, ExtraTreeRegressor

from fastshapley.data.trees import Cuts, read_trees

RNG = np.random.default_rng(0)
# The second column has ten numbers only, at which histograms cut; the third one has no effect.
X = np.column_stack([RNG.normal(size=400), RNG.integers(0, 10, 400) / 10, RNG.normal(size=400)])
Y = np.sign(X[:, 0]) + np.floor(3 * X[:, 1]) + RNG.normal(size=400) / 10


def _xgboost(**options: Any) -> Any:
    xgboost = pytest.importorskip("xgboost")
    return xgboost.XGBRegressor(n_estimators=8, max_depth=3, n_jobs=1, **options).fit(X, Y)


def _lightgbm() -> Any:
    return pytest.importorskip("lightgbm").LGBMRegressor(n_estimators=8, verbose=-1, n_jobs=1).fit(X, Y)


def _catboost() -> Any:
    catboost = pytest.importorskip("catboost")
    return catboost.CatBoostRegressor(
        iterations=8, depth=3, verbose=0, allow_writing_files=False, thread_count=1
    ).fit(X, Y)


MODELS: dict[str, Callable[[], Any]] = {
    "XGBoost": _xgboost,
    "XGBoost's booster": lambda: _xgboost().get_booster(),
    "XGBoost with DART": lambda: _xgboost(booster="dart"),
    "LightGBM": _lightgbm,
    "LightGBM's booster": lambda: _lightgbm().booster_,
    "CatBoost": _catboost,
    "tree": lambda: DecisionTreeRegressor(max_depth=5).fit(X, Y),
    "extra tree": lambda: ExtraTreeRegressor(max_depth=5, random_state=0).fit(X, Y),
    "histogram boosting": lambda: HistGradientBoostingRegressor(max_iter=8).fit(X, Y),
}


def splits(model: Any) -> list[Cuts]:
    """Return the cuts of each column of a model of trees."""
    found = read_trees(model)
    assert found is not None
    return found.cuts()


def outputs(model: Any, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    if type(model).__module__.startswith("xgboost") and not hasattr(model, "get_booster"):
        import xgboost

        return np.asarray(model.predict(xgboost.DMatrix(rows)), dtype=np.float64)
    return np.asarray(model.predict(rows), dtype=np.float64)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_change_only_across_a_cut_and_at_its_very_number(name: str) -> None:
    """Between cuts, the model is constant in a column. Each cut itself belongs to the left side."""
    model = MODELS[name]()
    found = splits(model)
    assert len(found) == 3
    assert all(len(found[j].values) > 0 for j in (0, 1))
    jumped = 0
    for j, cuts in enumerate(found):
        for cut in cuts.values:
            sides = np.array([cut, np.nextafter(cut, np.inf)])
            rows = np.repeat(X[:50], 2, axis=0)
            rows[:, j] = np.tile(sides, 50)
            left, right = outputs(model, rows).reshape(50, 2).T
            jumped += bool((left != right).any())
        edges = np.concatenate([[-10.0], cuts.values, [10.0]])
        for low, high in itertools.pairwise(edges):
            rows = np.repeat(X[:20], 2, axis=0)
            rows[:, j] = np.tile([np.nextafter(low, np.inf), high], 20)
            first, second = outputs(model, rows).reshape(20, 2).T
            np.testing.assert_array_equal(first, second)
    # A jump may be nowhere near the fifty rows, but most are.
    assert jumped >= 0.7 * sum(len(cuts.values) for cuts in found)


def test_counts_say_how_often_a_cut_is_used() -> None:
    tree = DecisionTreeRegressor(max_depth=4).fit(X, Y)
    found = splits(tree)
    assert sum(cuts.counts.sum() for cuts in found) == tree.tree_.node_count - tree.get_n_leaves()


def test_categories_are_left_out_and_numbers_keep_their_columns() -> None:
    """Histogram boosting moves categories in front of the numbers."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"number": X[:, 0], "kind": pandas.Categorical(RNG.choice(["a", "b", "c"], 400))})
    label = Y + (frame["kind"] == "b")
    found = splits(HistGradientBoostingRegressor(max_iter=8, categorical_features=["kind"]).fit(frame, label))
    assert len(found[1].values) == 0
    assert np.abs(found[0].values).min() < 0.05  # the sign of the number
    lightgbm = pytest.importorskip("lightgbm")
    of_lightgbm = splits(lightgbm.LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1).fit(frame, label))
    assert len(of_lightgbm[0].values) > 0
    assert len(of_lightgbm[1].values) == 0


def test_models_without_trees_have_no_splits() -> None:
    assert read_trees(LinearRegression().fit(X, Y)) is None
    xgboost = pytest.importorskip("xgboost")
    linear = xgboost.XGBRegressor(n_estimators=2, booster="gblinear", n_jobs=1, verbosity=0)
    assert read_trees(linear.fit(X, Y)) is None
    assert read_trees(lambda rows: rows) is None


def test_equal_cuts_are_counted_together() -> None:
    cuts = Cuts.of([2.0, 1.0, 2.0], [1, 5, 2])
    assert cuts.values.tolist() == [1, 2]
    assert cuts.counts.tolist() == [5, 3]


@given(st.floats(-(2.0**100), 2.0**100), st.integers(-3, 3))
def test_a_cut_divides_numbers_as_float32_does(threshold: float, steps: int) -> None:
    """A stump that sklearn rounds to float32: the cut says where float64 numbers go."""
    tree = DecisionTreeRegressor(max_depth=1).fit([[-1.0], [1.0]], [0.0, 1.0])
    state = tree.tree_.__getstate__()
    state["nodes"]["threshold"][0] = threshold
    tree.tree_.__setstate__(state)
    found = splits(tree)
    cut = found[0].values[0]
    number = cut
    for _ in range(abs(steps)):
        number = np.nextafter(number, np.sign(steps) * np.inf)
    assert tree.predict([[number]])[0] == (number > cut)
