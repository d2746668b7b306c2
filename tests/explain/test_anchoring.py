"""Tests of anchored values, which sum to the model's own output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from problems import numbers
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from fastshapley import FastSHAP, Recipe, Targets, Training
from fastshapley.errors import InputError

STEPS = Training(steps=60, batch_size=32, learning_rate=5e-3)
RECIPE = Recipe(
    surrogate=(STEPS,), explainer=STEPS, errors=STEPS, targets=Targets(coalitions=8, evaluations=50_000)
)
X = pd.DataFrame(numbers(300, 4), columns=list("abcd"))
Y = X["a"] * X["b"] + X["c"]


def fit(model: Any, **options: Any) -> FastSHAP:
    options = {"value_function": "surrogate", **options}
    return FastSHAP(model, recipe=RECIPE, random_state=0, progress=False, **options).fit(X)


@pytest.fixture(scope="module")
def forest() -> RandomForestRegressor:
    return RandomForestRegressor(20, random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def fitted(forest: RandomForestRegressor) -> FastSHAP:
    return fit(forest)


def totals(explanation: Any) -> NDArray[np.float64]:
    return np.asarray(explanation.values.sum(1) + explanation.base_values)


def test_anchored_values_and_the_base_value_sum_to_the_models_output(
    fitted: FastSHAP, forest: RandomForestRegressor
) -> None:
    explanation = fitted(X[:20], anchor="model")
    np.testing.assert_allclose(totals(explanation), forest.predict(X[:20]), atol=1e-9)
    assert not np.allclose(totals(fitted(X[:20])), forest.predict(X[:20]), atol=1e-3)
    assert np.ptp(explanation.base_values) == 0
    assert explanation.base_values[0] == pytest.approx(
        forest.predict(X).mean(), abs=0.1
    )  # the mean over the training rows


def test_the_difference_is_divided_evenly_among_players(fitted: FastSHAP) -> None:
    moved = fitted(X[:20], anchor="model").values - fitted(X[:20]).values
    np.testing.assert_allclose(moved, moved[:, :1].repeat(4, axis=1), atol=1e-12)


def test_predictions_replace_the_model(fitted: FastSHAP, forest: RandomForestRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file")
    explanation = loaded(X[:20], anchor="model", predictions=forest.predict(X[:20]))
    np.testing.assert_array_equal(explanation.values, fitted(X[:20], anchor="model").values)
    with pytest.raises(InputError, match=r"pass it to FastSHAP\.load, or its outputs for X as predictions="):
        loaded(X[:20], anchor="model")


@pytest.mark.parametrize("link", ["identity", "logit"])
def test_anchored_values_of_classes_sum_to_the_models_output_for_each_link(link: Any) -> None:
    model = RandomForestClassifier(20, random_state=0).fit(X, np.digitize(Y, [-1, 1]))
    explanation = fit(model, link=link)(X[:20], anchor="model")
    expected = model.predict_proba(X[:20])
    if link == "logit":
        expected = np.clip(expected, 1e-7, 1 - 1e-7)
        expected = np.log(expected / (1 - expected))
    np.testing.assert_allclose(totals(explanation), expected, atol=1e-6)


def test_anchored_values_with_a_budget_sum_to_the_models_output(
    fitted: FastSHAP, forest: RandomForestRegressor
) -> None:
    explanation = fitted(X[:20], anchor="model", budget=16)
    np.testing.assert_allclose(totals(explanation), forest.predict(X[:20]), atol=1e-9)
    assert explanation.error_std.shape == (20, 4)


def test_anchoring_does_not_change_values_of_a_baseline_game(forest: RandomForestRegressor) -> None:
    fitted = fit(forest, value_function="baseline")
    np.testing.assert_array_equal(fitted(X[:5], anchor="model").values, fitted(X[:5]).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchor": "truth"}, "anchor is 'truth': use 'game', or 'model'"),
        ({"predictions": np.zeros(5)}, "predictions, background and calls are for anchor='model'"),
        ({"anchor": "model", "predictions": np.zeros((5, 3))}, "predictions has 3 outputs per row"),
        ({"anchor": "model", "predictions": np.zeros(4)}, r"predictions is not .* shape \(4,\) for 5 rows"),
        ({"anchor": "model", "predictions": np.full(5, np.nan)}, "predictions has values that are not finite"),
    ],
)
def test_bad_arguments_raise(options: Any, message: str, fitted: FastSHAP) -> None:
    with pytest.raises(InputError, match=message):
        fitted(X[:5], **options)
