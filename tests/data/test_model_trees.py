"""Tests of the split points of a model, in the columns of the user's table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingRegressor,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from fastshapley.data.model_trees import model_trees

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, size=(200, 3))
Y = (X[:, 0] > 3) + np.floor(X[:, 1])  # The third column has no effect.
CLASSES = (Y > 3).astype(int)


def stump(column: int, rows: NDArray[Any] = X) -> DecisionTreeRegressor:
    """Return a tree that splits one column once, near 3."""
    return DecisionTreeRegressor(max_depth=1).fit(rows, rows[:, column] > 3)


def values(model: Any, columns: int = 3) -> list[list[float]]:
    """Return the cuts of each column of the table."""
    found = model_trees(model, columns)
    assert found is not None
    return [cuts.values.tolist() for cuts in found.cuts()]


def thresholds(trees: Iterable[Any], column: int) -> list[float]:
    return [t for tree in trees for t in tree.tree_.threshold[tree.tree_.feature == column]]


def assert_same(cuts: Sequence[float], expected: Sequence[float]) -> None:
    """Assert that both are the same numbers up to rounding to float32, however often each occurs."""
    for some, others in ((cuts, expected), (expected, cuts)):
        assert all(min(abs(a - b) for b in others) < 1e-6 for a in some)


@pytest.mark.parametrize(
    "model",
    [
        RandomForestRegressor(5, random_state=0),
        ExtraTreesRegressor(5, random_state=0),
        GradientBoostingRegressor(n_estimators=5),
        RandomForestClassifier(5, random_state=0),
        GradientBoostingClassifier(n_estimators=5),
    ],
    ids=lambda model: type(model).__name__,
)
def test_an_ensemble_has_the_splits_of_all_its_trees(model: Any) -> None:
    model.fit(X, CLASSES if hasattr(model, "classes_") or "Classifier" in type(model).__name__ else Y)
    for j, cuts in enumerate(values(model)):
        assert_same(cuts, thresholds(np.ravel(list(model.estimators_)), j))


@pytest.mark.parametrize(
    "scaler",
    [StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler(), PowerTransformer(), FunctionTransformer()],
    ids=lambda scaler: type(scaler).__name__,
)
def test_splits_behind_a_scaler_are_in_the_users_own_units(scaler: Any) -> None:
    """The model's output is the same on both sides of a found cut if it is wrong."""
    model = make_pipeline(scaler, DecisionTreeRegressor(max_depth=1)).fit(X, X[:, 1] > 3)
    found = values(model)
    none, middle, also_none = found
    (cut,) = middle
    assert none == also_none == []
    rows = np.full((2, 3), 3.0)
    rows[:, 1] = cut * (1 - 1e-6), cut * (1 + 1e-6)
    assert model.predict(rows).tolist() == [0, 1]


def test_columns_are_followed_through_a_column_transformer() -> None:
    frame = pd.DataFrame(
        {"kind": RNG.choice(["a", "b"], 200), "first": X[:, 0], "second": X[:, 1], "third": X[:, 2]}
    )
    parts = ColumnTransformer(
        [
            ("scaled", make_pipeline(SimpleImputer(), StandardScaler()), ["second"]),
            ("encoded", OneHotEncoder(), ["kind"]),
            ("rotated", PCA(1), ["third"]),
        ],
        remainder="passthrough",
    )
    model = make_pipeline(parts, DecisionTreeRegressor()).fit(frame, Y + X[:, 2])
    found = values(model, 4)
    assert found[0] == []
    assert found[3] == []  # a rotation does not keep columns apart
    assert found[1]
    assert found[2]
    assert min(abs(cut - 3) for cut in found[1]) < 0.1
    assert min(abs(cut - 4) for cut in found[2]) < 0.1


def test_a_dropped_column_has_no_splits() -> None:
    model = make_pipeline(ColumnTransformer([("kept", "passthrough", [1])]), stump(0, X[:, 1:2])).fit(
        X, X[:, 1] > 3
    )
    found = values(model)
    assert found[0] == found[2] == []
    assert abs(found[1][0] - 3) < 0.1


@pytest.mark.parametrize(
    "model",
    [
        TransformedTargetRegressor(DecisionTreeRegressor(max_depth=1)),
        GridSearchCV(DecisionTreeRegressor(), {"max_depth": [1]}, cv=2),
        VotingRegressor([("tree", DecisionTreeRegressor(max_depth=1)), ("line", LinearRegression())]),
        VotingRegressor([(name, RandomForestRegressor(2, max_depth=1)) for name in "ab"]),
        StackingRegressor([("tree", DecisionTreeRegressor(max_depth=1))], cv=2),
        BaggingRegressor(DecisionTreeRegressor(max_depth=1), 5, max_features=2, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_trees_are_found_inside_of_other_models(model: Any) -> None:
    found = values(model.fit(X, X[:, 0] > 3))
    assert found[0]
    assert min(abs(cut - 3) for cut in found[0]) < 0.1


def test_trees_are_found_inside_of_a_calibrated_classifier() -> None:
    model = CalibratedClassifierCV(DecisionTreeClassifier(max_depth=1), cv=2).fit(X, X[:, 0] > 3)
    found = values(model)
    assert found[0]
    assert max(abs(cut - 3) for cut in found[0]) < 0.2


def test_a_method_of_a_model_is_as_good_as_the_model() -> None:
    model = stump(0)
    assert values(model.predict) == values(model)


def test_columns_of_bagged_trees_are_their_own() -> None:
    """Each tree sees one column, which is its first one."""
    model = BaggingRegressor(DecisionTreeRegressor(), 6, max_features=1, random_state=0).fit(X, Y)
    found = values(model)
    for j, cuts in enumerate(found):
        seen = [tree for tree, at in zip(model.estimators_, model.estimators_features_, strict=True) if at[0] == j]
        assert_same(cuts, thresholds(seen, 0))


class _Strange:
    """A model that fails when it is looked at."""

    @property
    def tree_(self) -> Any:
        raise RuntimeError

    __module__ = "sklearn.strange"


@pytest.mark.parametrize(
    "model",
    [LinearRegression().fit(X, Y), lambda rows: rows[:, 0], None, "text", _Strange(), DecisionTreeRegressor()],
)
def test_other_models_have_no_known_splits(model: Any) -> None:
    assert model_trees(model, 3) is None


def test_a_model_of_another_number_of_columns_has_no_known_splits() -> None:
    assert model_trees(stump(0), 4) is None
