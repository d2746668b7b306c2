"""What is the fastest way to Shapley values."""

from __future__ import annotations

import math
import time
from dataclasses import replace
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
from fastshapley.advice import Advice, Way, advise
from fastshapley.errors import InputError

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


def test_of_a_single_row_no_network_is_trained(advice: Advice) -> None:
    """It takes what the others do, and its training besides."""
    assert sorted(names(advice)) == ["amortised", "exact", "sampling"]
    assert advice.best.name in ("exact", "sampling")
    assert all(0 < way.once < math.inf and 0 < way.each < math.inf for way in advice.ways)


def test_of_many_rows_the_network_wins(advice: Advice) -> None:
    """A forward pass is cheaper than 4096 evaluations, by far, and all of them start with the same surrogate."""
    ways = {way.name: way for way in advice.ways}
    assert ways["amortised"].once > ways["exact"].once
    assert ways["amortised"].each < 0.1 * ways["exact"].each
    assert ways["amortised"].seconds(10**9) < ways["exact"].seconds(10**9)


def test_a_slow_model_makes_a_game_of_its_own_dear() -> None:
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
    assert found[1]["exact"].each > 4096 * 1e-5


def test_trees_have_a_way_of_their_own() -> None:
    X = numbers(300, 5)
    forest = RandomForestRegressor(20, random_state=0).fit(X, smooth(X))
    found = FastSHAP.advise(forest, X, rows=10, **SETTINGS)
    tree = next(way for way in found.ways if way.name == "tree")
    assert tree.code == "shap.TreeExplainer(model)(rows)"
    assert "another game" in tree.note
    assert "tree" not in names(FastSHAP.advise(forest.predict, X, rows=10, **SETTINGS))


def test_a_closer_error_takes_more(advice: Advice) -> None:
    closer = FastSHAP.advise(smooth, numbers(1000, 12), rows=1, error=1e-4, seconds=60, **SETTINGS)

    def evaluations(advice: Advice) -> int:
        code = next((way.code for way in advice.ways if way.name == "sampling"), "budget=4096,")
        return int(code.split("budget=")[1].split(",")[0])

    assert evaluations(closer) > 1.5 * evaluations(advice)


def test_the_code_that_it_gives_works(advice: Advice) -> None:
    X, model, recipe = numbers(200, 12), smooth, replace(RECIPE, errors=Training(steps=50))
    for way in advice.ways:
        options = "progress=False, random_state=0"
        if "recipe=" not in way.code:  # how well it is trained makes no difference
            options += ", recipe=recipe"
        code = way.code.replace("FastSHAP(model", f"FastSHAP(model, {options}")
        known = {"FastSHAP": FastSHAP, "model": model, "X": X, "rows": X[:3], "recipe": recipe}
        found = eval(code, known)
        assert np.shape(found.values)[:2] == (3, 12)


def test_the_code_is_of_the_game_that_was_tried() -> None:
    players = Groups({"first": ["a", "b"]})
    X = pd.DataFrame(numbers(200, 8), columns=list("abcdefgh"))
    found = FastSHAP.advise(
        lambda rows: smooth(np.asarray(rows)), X, rows=5, value_function="marginal", players=players, **SETTINGS
    )
    for way in found.ways:
        assert "value_function='marginal', players=Groups(groups={'first': ['a', 'b']})" in way.code


def test_what_is_promised_of_sampling_is_kept() -> None:
    """Within a half of the wanted error, as far as a trial can tell, or so much closer that it is the least."""
    X = numbers(1000, 9)
    for error in (0.03, 0.003):
        advice = FastSHAP.advise(smooth, X, rows=10, error=error, value_function="baseline", **SETTINGS)
        code = next(way.code for way in advice.ways if way.name == "sampling")
        budget = int(code.split("budget=")[1].split(",")[0])
        game = FastSHAP(smooth, value_function="baseline", recipe="sampling", random_state=0, progress=False).fit(X)
        truth = game.estimate(X[:100], "exact").values
        found = game.estimate(X[:100], "kernel", budget=budget, sampling="leverage", random_state=0).values
        assert np.square(found - truth).sum() / np.square(truth).sum() < 1.5 * error


def test_an_error_that_no_budget_reaches() -> None:
    found = FastSHAP.advise(smooth, numbers(200, 30), rows=5, error=1e-12, seconds=5, **SETTINGS)
    assert found.best.name == "amortised"
    assert "may not come as close" in str(found)


def test_sampling_trains_no_network() -> None:
    X = numbers(500, 6)
    fitted = FastSHAP(smooth, recipe="sampling", random_state=0, progress=False).fit(X)
    values = fitted(X[:5]).values
    np.testing.assert_allclose(values, values[:, :1].repeat(6, axis=1), atol=1e-9)
    assert fitted.losses_ == []
    assert fitted.report_ is None  # there is nothing to report on
    truth = fitted.estimate(X[:5], "exact").values[..., 0]
    refined = fitted(X[:5], budget=30)
    assert np.square(refined.values - truth).sum() < 0.3 * np.square(values - truth).sum()
    np.testing.assert_allclose(fitted(X[:5], budget=64).values, truth, atol=1e-6)


def test_images() -> None:
    found = advise(image_explainer(), IMAGES, rows=100, error=0.1, seconds=20.0)
    assert "amortised" in names(found)


def test_in_words() -> None:
    ways = (Way("sampling", 3.0, 2e-5, "code", "a note"), Way("exact", 3.0, 90.0, "<code>"))
    found = Advice(100, 0.01, ways, 0.02)
    assert str(found).splitlines()[0] == "100 rows, relative squared error at most 0.01: sampling is the fastest"
    assert "3.0 s + 20 us a row" in str(found)
    assert "3.0 h + 90 s a row" not in str(found)
    assert "3.0 s + 90 s a row" in str(found)
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
def test_what_cannot_be_asked_for(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FastSHAP.advise(smooth, numbers(100, 4), **options)
    with pytest.raises(TypeError, match="unexpected keyword"):
        FastSHAP.advise(smooth, numbers(100, 4), rows=1, colour="red")
