"""Tests of recipes: their names, their sizes, and how they are divided."""

from __future__ import annotations

from typing import Any

import pytest

from fastshapley import Layers, Recipe, Targets, Training
from fastshapley.training import recipes


@pytest.mark.parametrize("name", recipes.NAMES)
@pytest.mark.parametrize("images", [False, True])
def test_every_name_is_a_recipe(name: str, images: bool) -> None:
    found = recipes.resolve(name, rows=1000, players=10, images=images)
    assert isinstance(found, Recipe)
    assert found.trains_explainer == (name != "sampling")


def test_a_recipe_is_returned_unchanged() -> None:
    own = recipes.paper()
    assert recipes.resolve(own, rows=5, players=5) is own


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe is 'quick': use 'default', 'paper', 'sampling' or a"):
        recipes.resolve("quick", rows=5, players=5)


def test_steps_grow_with_the_rows_up_to_a_limit() -> None:
    steps = [recipes.default(rows, 10).explainer.steps or 0 for rows in (5000, 20_000, 100_000, 10**7)]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1] == steps[-2]


def test_an_update_has_half_the_steps_and_half_the_learning_rate() -> None:
    whole = recipes.default(10_000, 10)
    half = recipes.continued(whole)
    assert whole.explainer.steps is not None
    assert half.explainer.steps == -(-whole.explainer.steps // 2)
    assert half.explainer.learning_rate == whole.explainer.learning_rate / 2
    assert whole.targets is not None
    assert half.targets is not None
    assert half.targets.evaluations == -(-whole.targets.evaluations // 2)


def test_processes_divide_the_evaluations_but_not_the_steps() -> None:
    whole = recipes.default(10_000, 10)
    assert recipes.shared(whole, 1) is whole
    third = recipes.shared(whole, 3)
    assert whole.targets is not None
    assert third.targets is not None
    assert 3 * third.targets.evaluations >= whole.targets.evaluations
    assert third.explainer == whole.explainer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layers(count=-1), r"Layers: -1 layers"),
        (lambda: Layers(activation="tanh"), r"activation is 'tanh'"),  # type: ignore[arg-type]
        (lambda: Targets(coalitions=3), r"coalitions is 3; least squares need at least 4 per player"),
        (lambda: Targets(seconds=0), r"seconds is 0; it must be positive"),
        (lambda: Training(epochs=1, steps=1), r"give either epochs or steps"),
        (lambda: Training(steps=1, batch_size=2.5), r"batch_size is 2.5, which is not an integer"),  # type: ignore[arg-type]
        (lambda: Recipe((), Training(steps=1), coalitions=3), r"coalitions is 3; pairs need an even number"),
        (lambda: Recipe((), Training(steps=1), tails=0.0), r"tails is 0.0; it must be positive"),
    ],
)
def test_invalid_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
