"""Correction of a surrogate's values towards the model's, with few calls of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from problems import numbers, people
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from small_images import X as IMAGES
from small_images import explainer as image_explainer

from fastshapley import FastSHAP, Groups, Recipe, Targets, Training
from fastshapley.errors import InputError

STEPS = Training(steps=150, batch_size=64, learning_rate=5e-3, schedule="cosine")
RECIPE = Recipe(
    surrogate=(STEPS,), explainer=STEPS, errors=STEPS, targets=Targets(coalitions=8, evaluations=50_000)
)
COLUMNS = 6
X = numbers(1200, COLUMNS)
TEST, BACKGROUND = X[:60], X[200:700]
Array = NDArray[np.float64]


def model(rows: Array) -> Array:
    """A model whose Shapley values are known for independent normal columns. A surrogate misses the sine."""
    return np.asarray(rows[:, 0] + rows[:, 1] * rows[:, 2] + np.sin(4 * rows[:, 3]))


def known(rows: Array) -> Array:
    """Return the exact Shapley values of `model`."""
    values = np.zeros_like(rows)
    values[:, 0] = rows[:, 0]
    values[:, 1] = values[:, 2] = rows[:, 1] * rows[:, 2] / 2
    values[:, 3] = np.sin(4 * rows[:, 3])
    return values


def fit(model: Any, X: Any, **options: Any) -> FastSHAP:
    options = {"value_function": "surrogate", **options}
    return FastSHAP(model, recipe=RECIPE, random_state=0, progress=False, **options).fit(X)


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    return fit(model, X)


def error(values: Array) -> float:
    return float(np.square(values - known(TEST)).sum(1).mean())


def test_errors_fall_with_the_calls(fitted: FastSHAP) -> None:
    """Columns are independent, so exact values are known. Dividing the difference evenly is not enough."""
    even = error(fitted(TEST, anchor="model").values)
    few, many = (
        error(fitted(TEST, anchor="model", background=BACKGROUND, calls=calls * COLUMNS).values)
        for calls in (2, 32)
    )
    assert many < 0.4 * even
    assert many < few < even


def test_values_sum_to_the_models_output(fitted: FastSHAP) -> None:
    explanation = fitted(TEST, anchor="model", background=BACKGROUND, calls=24, errors=True)
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, model(TEST), atol=1e-9)
    plain = fitted(TEST, anchor="model", errors=True)
    assert (explanation.error_std >= plain.error_std).all()
    assert explanation.error_std.mean() > plain.error_std.mean()


def test_the_model_is_called_no_more_often_than_allowed() -> None:
    calls = 0

    def counting(rows: Array) -> Array:
        nonlocal calls
        calls += len(rows)
        return model(rows)

    fitted, calls = fit(counting, X), 0
    fitted(TEST, anchor="model", background=BACKGROUND, calls=24)
    trials = 2 * 60  # A model is tried out before it is used: here, and for the outputs of the rows.
    assert calls <= 60 * 24 + 2 * 60 + len(BACKGROUND) + trials


def test_the_same_seed_gives_the_same_values(fitted: FastSHAP) -> None:
    first, second = (fitted(TEST, anchor="model", background=BACKGROUND, calls=24).values for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_tables_with_categories_missing_values_groups_and_links_are_corrected() -> None:
    frame, label = people(600)
    frame = frame.assign(city=frame["city"].astype(str))
    learner = make_pipeline(
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), HistGradientBoostingClassifier()
    ).fit(frame, label)
    groups = Groups({"work": ["income", "job"]})
    fitted = fit(learner, frame, link="logit", players=groups)
    explanation = fitted(frame[:20], anchor="model", background=frame[20:220], calls=40)
    assert explanation.values.shape == (20, 4, 2)
    expected = np.log(learner.predict_proba(frame[:20])).round(6)
    expected = expected - expected[:, ::-1]
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, expected, atol=1e-4)


def test_few_players_use_all_their_calls() -> None:
    """Three players have three pairs: further calls use other background rows."""
    fitted = fit(lambda rows: np.sin(4 * rows[:, 0]) + rows[:, 1], numbers(600, 3))
    rows = numbers(40, 3, seed=5)
    truth = np.stack([np.sin(4 * rows[:, 0]), rows[:, 1], np.zeros(40)], axis=1)

    def off(calls: int) -> float:
        found = fitted(rows, anchor="model", background=numbers(300, 3, seed=6), calls=calls, errors=True)
        assert np.isfinite(found.error_std).all()
        return float(np.square(found.values - truth).sum(1).mean())

    assert off(120) < off(6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 24}, "predictions, background and calls are for anchor='model'"),
        ({"anchor": "model", "calls": 24}, "background and calls go together"),
        ({"anchor": "model", "background": BACKGROUND}, "background and calls go together"),
        (
            {"anchor": "model", "background": BACKGROUND, "calls": 4},
            "calls is 4: correcting 6 players takes at least 12",
        ),
        ({"anchor": "model", "background": BACKGROUND[:0], "calls": 24}, "background has no rows"),
        ({"anchor": "model", "background": BACKGROUND[:, :3], "calls": 24}, "background has 3 features"),
    ],
)
def test_bad_arguments_raise(options: Any, message: str, fitted: FastSHAP) -> None:
    with pytest.raises(InputError, match=message):
        fitted(TEST[:5], **options)


def test_the_added_variance_is_at_least_half_of_the_variance_over_seeds() -> None:
    """All pairs of few players are evaluated, so only the background rows differ between seeds."""
    rows = numbers(60, 5, seed=5)
    fitted = fit(lambda rows: np.sin(4 * rows[:, 0]) * rows[:, 1], numbers(600, 5))
    values, claimed = [], []
    for seed in range(20):
        fitted.random_state = seed
        found = fitted(rows, anchor="model", background=numbers(300, 5, seed=6), calls=60, errors=True)
        values.append(found.values)
        claimed.append(np.square(found.error_std).mean())
    fitted.random_state = 0
    own = np.square(fitted(rows, errors=True).error_std).mean()
    assert np.mean(claimed) - own > 0.5 * np.var(values, axis=0, ddof=1).mean()


def test_one_player_and_no_rows_are_corrected(fitted: FastSHAP) -> None:
    assert fitted(TEST[:0], anchor="model", background=BACKGROUND, calls=24).values.shape == (0, COLUMNS)
    single = fit(lambda rows: rows[:, 0], numbers(100, 1))
    found = single(numbers(5, 1), anchor="model", background=numbers(20, 1), calls=4)
    np.testing.assert_allclose(found.values[:, 0] + found.base_values, numbers(5, 1)[:, 0], atol=1e-9)


def test_calls_without_the_model_raise(fitted: FastSHAP, tmp_path: Path) -> None:
    fitted.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file")
    with pytest.raises(InputError, match="calls need the model itself"):
        loaded(TEST, anchor="model", predictions=model(TEST), background=BACKGROUND, calls=24)


def test_images_cannot_be_corrected_by_calls() -> None:
    fitted = image_explainer().fit(IMAGES)
    with pytest.raises(InputError, match="are for tables"):
        fitted(IMAGES[:2], anchor="model", background=IMAGES, calls=100)


def test_a_single_row_with_a_single_background_row_is_corrected(fitted: FastSHAP) -> None:
    explanation = fitted(TEST[:1], anchor="model", background=BACKGROUND[:1], calls=24)
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, model(TEST[:1]), atol=1e-9)


def test_frames_and_arrays_give_the_same_values(fitted: FastSHAP) -> None:
    frame = pd.DataFrame(X, columns=list("abcdef"))
    named = fit(lambda rows: model(np.asarray(rows)), frame)
    found = named(frame[:60], anchor="model", background=frame[200:700], calls=24)
    expected = fitted(TEST, anchor="model", background=BACKGROUND, calls=24)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-9)
