"""Tests of the advice on the fastest way to compute Shapley values."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from problems import numbers
from sklearn.ensemble import RandomForestRegressor
from small_images import X as IMAGES
from small_images import explainer as image_explainer

from fastshapley import FastSHAP, Groups, Recipe, Targets, Training
from fastshapley.advice import Advice, TrialInputs, Way, quiet_logger, run_trial
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.fit.fitted import Fitted

STEPS = Training(steps=400, batch_size=64, learning_rate=5e-3, schedule="cosine")
RECIPE = Recipe(surrogate=(STEPS,), explainer=STEPS, targets=Targets(coalitions=8, evaluations=200_000))
SETTINGS: dict[str, Any] = {"recipe": RECIPE, "random_state": 0}


def smooth(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows[:, 0] * rows[:, 1] + rows[:, 2:].sum(1))


def names(advice: Advice) -> list[str]:
    return [way.name for way in advice.ways]


@pytest.fixture(scope="module")
def advice() -> Advice:
    return FastSHAP.advise(smooth, numbers(1000, 12), rows=1, seconds=60, **SETTINGS)


def test_a_network_is_not_advised_for_a_single_row(advice: Advice) -> None:
    """Training a network takes longer than computing one row in another way."""
    assert sorted(names(advice)) == ["amortised", "exact", "sampling"]
    assert advice.best.name in ("exact", "sampling")
    assert all(0 < way.once < math.inf and 0 < way.each < math.inf for way in advice.ways)


def test_a_network_is_the_fastest_for_many_rows(advice: Advice) -> None:
    """A forward pass is much cheaper than 4096 evaluations, and all ways start with the same surrogate."""
    ways = {way.name: way for way in advice.ways}
    assert ways["amortised"].once > ways["exact"].once
    assert ways["amortised"].each < 0.1 * ways["exact"].each
    assert ways["amortised"].seconds(10**9) < ways["exact"].seconds(10**9)


def test_a_slow_model_makes_the_ways_that_evaluate_it_slow() -> None:
    """The model sleeps for each row. Half of that is asked for, because the pace is measured on a few rows."""

    def slow(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        time.sleep(1e-5 * len(rows))
        return smooth(rows)

    found = [
        {
            way.name: way
            for way in FastSHAP.advise(
                model, numbers(300, 12), rows=10, seconds=20, value_function="baseline", **SETTINGS
            ).ways
        }
        for model in (smooth, slow)
    ]
    for name in ("exact", "sampling"):
        assert found[1][name].each > 2 * found[0][name].each
    assert found[1]["exact"].each > 0.5 * 4096 * 1e-5


def test_tree_models_are_also_offered_tree_shap() -> None:
    X = numbers(300, 5)
    forest = RandomForestRegressor(20, random_state=0).fit(X, smooth(X))
    found = FastSHAP.advise(forest, X, rows=10, **SETTINGS)
    tree = next(way for way in found.ways if way.name == "tree")
    assert tree.code == "shap.TreeExplainer(model)(rows)"
    assert "another game" in tree.note
    assert "tree" not in names(FastSHAP.advise(forest.predict, X, rows=10, **SETTINGS))


def test_a_smaller_error_takes_more_evaluations(advice: Advice) -> None:
    closer = FastSHAP.advise(smooth, numbers(1000, 12), rows=1, error=1e-4, seconds=60, **SETTINGS)

    def evaluations(advice: Advice) -> int:
        code = next((way.code for way in advice.ways if way.name == "sampling"), "budget=4096,")
        return int(code.split("budget=")[1].split(",")[0])

    assert evaluations(closer) > 1.5 * evaluations(advice)


def test_the_suggested_code_runs(advice: Advice) -> None:
    """A time budget keeps the fits short."""
    X, model = numbers(200, 12), smooth
    for way in advice.ways:
        code = way.code.replace("FastSHAP(model", "FastSHAP(model, time_budget=2, progress=False, random_state=0")
        found = eval(code, {"FastSHAP": FastSHAP, "model": model, "X": X, "rows": X[:3]})
        assert np.shape(found.values)[:2] == (3, 12)


def test_the_suggested_code_repeats_the_settings() -> None:
    players = Groups({"first": ["a", "b"]})
    X = pd.DataFrame(numbers(200, 8), columns=list("abcdefgh"))
    found = FastSHAP.advise(
        lambda rows: smooth(np.asarray(rows)), X, rows=5, value_function="marginal", players=players, **SETTINGS
    )
    for way in found.ways:
        assert "value_function='marginal', players=Groups(groups={'first': ['a', 'b']})" in way.code


def test_sampling_with_the_advised_budget_reaches_the_error() -> None:
    """The error is at most 1.5 times the target, because a short trial predicts it only roughly."""
    X = numbers(1000, 9)
    for error in (0.03, 0.003):
        advice = FastSHAP.advise(smooth, X, rows=10, error=error, value_function="baseline", **SETTINGS)
        code = next(way.code for way in advice.ways if way.name == "sampling")
        budget = int(code.split("budget=")[1].split(",")[0])
        game = FastSHAP(smooth, value_function="baseline", recipe="sampling", random_state=0, progress=False).fit(X)
        truth = game.estimate(X[:100], "exact").values
        found = game.estimate(X[:100], "kernel", budget=budget, sampling="leverage", random_state=0).values
        assert np.square(found - truth).sum() / np.square(truth).sum() < 1.5 * error


def test_an_unreachable_error_is_reported() -> None:
    found = FastSHAP.advise(smooth, numbers(200, 30), rows=5, error=1e-12, seconds=5, **SETTINGS)
    assert found.best.name == "amortised"
    assert "the error may stay above the target" in str(found)


def test_the_sampling_recipe_trains_no_network() -> None:
    X = numbers(500, 6)
    fitted = FastSHAP(smooth, recipe="sampling", time_budget=4, random_state=0, progress=False).fit(X)
    values = fitted(X[:5]).values
    np.testing.assert_allclose(values, values[:, :1].repeat(6, axis=1), atol=1e-9)
    assert fitted.losses_ == []
    assert fitted.report_ is None  # There is no network to report on.
    truth = fitted.estimate(X[:5], "exact").values[..., 0]
    refined = fitted(X[:5], budget=30)
    assert np.square(refined.values - truth).sum() < 0.3 * np.square(values - truth).sum()
    np.testing.assert_allclose(fitted(X[:5], budget=64).values, truth, atol=1e-6)


def test_advice_for_images_includes_a_network() -> None:
    settings = image_explainer().get_params(deep=False)
    found = FastSHAP.advise(settings.pop("model"), IMAGES, rows=100, error=0.1, seconds=20.0, **settings)
    assert "amortised" in names(found)


def test_a_trial_logs_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """The report on the trial's network would log a warning. The logger's level is restored afterwards."""
    X = numbers(60, 5)
    calls: list[tuple[Recipe, float]] = []

    def fit(recipe: Recipe, seconds: float) -> Fitted:
        calls.append((recipe, seconds))
        short = FastSHAP(smooth, recipe=recipe, time_budget=seconds, random_state=0, progress=False)
        return short.fit(X).fitted_

    schema = TableSchema.of(X)
    inputs = TrialInputs(smooth, False, schema, schema.encode(X), RECIPE, fit)
    logger = logging.getLogger("fastshapley")
    before = logger.level
    with caplog.at_level("WARNING"):
        trial = run_trial(inputs, 10.0)
    assert not caplog.records
    assert logger.level == before
    assert [seconds for _, seconds in calls] == [10.0]
    assert calls[0][0].explainer.steps == STEPS.steps // 10  # type: ignore[operator]
    assert min(trial.model_pace, trial.evaluation_pace, trial.forward_pace, trial.squared_size) > 0


def test_quiet_logger_restores_the_level_on_exit() -> None:
    logger = logging.getLogger("a logger of this test")
    logger.setLevel(logging.INFO)

    def fail() -> None:
        assert logger.level == logging.ERROR
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"), quiet_logger(logger.name):
        fail()
    assert logger.level == logging.INFO


def test_advice_is_shown_as_a_table() -> None:
    ways = (Way("sampling", 3.0, 2e-5, "code", "a note"), Way("exact", 3.0, 90.0, "<code>"))
    found = Advice(100, 0.01, ways, 0.02)
    assert str(found).splitlines()[0] == "100 rows, relative squared error at most 0.01: sampling is the fastest"
    assert "3.0 s + 20 us per row" in str(found)
    assert "3.0 h + 90 s per row" not in str(found)
    assert "3.0 s + 90 s per row" in str(found)
    assert "2.5 h" in str(found)
    assert "&lt;code&gt;" in found._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": 10, "error": 2.0}, "error is 2.0"),
        ({"rows": 10, "seconds": 0}, "seconds is 0"),
        ({"rows": 10, "recipe": "paper"}, "leave recipe out"),
    ],
)
def test_bad_arguments_raise(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FastSHAP.advise(smooth, numbers(100, 4), **options)
    with pytest.raises(TypeError, match="unexpected keyword"):
        FastSHAP.advise(smooth, numbers(100, 4), rows=1, colour="red")
