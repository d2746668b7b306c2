"""Tests of a whole fit on a simulated clock: the time of each phase, and the time budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import QUICK, numbers
from torch import Tensor

from fastshapley import Targets, Training
from fastshapley.fit import budget, pipeline
from fastshapley.fit.settings import Settings
from fastshapley.fit.setup import FitData
from fastshapley.training.run import Clock
from fastshapley.value_functions import Marginal

ROWS = 300
RECIPE = replace(
    QUICK,
    surrogate=(Training(epochs=10_000, batch_size=32),),
    explainer=Training(epochs=10_000, batch_size=32),
    errors=Training(steps=20),
    targets=Targets(coalitions=8, evaluations=10**9, rows=2000, seconds=1e9),
)


class SlowModel:
    """A model that takes some seconds per row on a simulated clock."""

    def __init__(self, seconds_per_row: float) -> None:
        self.seconds_per_row, self.now = seconds_per_row, 0.0

    def __call__(self, rows: Any) -> Any:
        self.now += self.seconds_per_row * len(rows)
        return np.tanh(rows @ np.arange(1.0, 5.0))

    def clock(self, seconds: float) -> Clock:
        return Clock(seconds, self.read)

    def read(self) -> float:
        self.now += 2e-2  # reading the clock takes time, so training ends as well
        return self.now


def fit(model: SlowModel, seconds: float, **options: Any) -> Any:
    settings = Settings(model, recipe=RECIPE, time_budget=seconds, random_state=0, progress=False, **options)
    return pipeline.fit(settings, FitData(numbers(ROWS), clock=model.clock(seconds)))


@pytest.mark.parametrize(
    "value_function", ["auto", "surrogate", Marginal(4)], ids=["conditional", "surrogate", "marginal"]
)
@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_a_fit_keeps_its_time_budget(value_function: Any, seconds: float) -> None:
    """A started block of evaluations or labels is finished after the time limit; this takes at most 30 % longer."""
    model = SlowModel(0.005)
    fitted = fit(model, seconds, value_function=value_function)
    assert 0.5 * seconds < model.now < 1.3 * seconds
    assert len(fitted.losses) > 1  # the network was trained


def test_each_phase_gets_its_share_of_the_remaining_time() -> None:
    seconds = 60.0
    fitted = fit(SlowModel(0.005), seconds)
    timings = fitted.timings
    assert {"setup", "game", "surrogate", "network", "coalitions", "explainer", "error bars", "report"} <= set(
        timings
    )
    assert timings["game"].allotted <= seconds
    assert timings["surrogate"].seconds <= budget.GAME_TIME * seconds
    left = timings["network"].allotted
    assert left == pytest.approx(seconds - timings["game"].seconds, rel=0.1)  # setup calls the model too
    assert timings["coalitions"].allotted <= budget.NETWORK_TIME * budget.COALITION_TIME * left
    assert timings["error bars"].allotted == pytest.approx(
        left - timings["network"].seconds, abs=0.2
    )  # the clock is read a few times
    assert all(timing.seconds >= 0 for timing in timings.values())


def test_without_a_time_budget_nothing_is_limited() -> None:
    settings = Settings(SlowModel(0.0), recipe=QUICK, random_state=0, progress=False)
    fitted = pipeline.fit(settings, FitData(numbers(ROWS)))
    assert fitted.timings["network"].allotted == float("inf")
    assert 150 <= fitted.timings["explainer"].units < 158  # whole epochs


def test_an_update_starts_from_the_fit_and_does_not_change_it() -> None:
    settings = Settings(SlowModel(0.0), recipe=QUICK, random_state=0, progress=False)
    first = pipeline.fit(settings, FitData(numbers(ROWS)))
    before = {name: tensor.clone() for name, tensor in first.network.state_dict().items()}
    second = pipeline.update(settings, FitData(numbers(ROWS, seed=1)), first)
    assert second.network is not first.network
    assert all(bool((before[name] == tensor).all()) for name, tensor in first.network.state_dict().items())
    assert second.schema is first.schema
    assert 75 <= second.timings["explainer"].units < 80  # half the steps of a fit, in whole epochs


class Sums:
    """A custom game: the sum of the columns that are shown."""

    players, outputs = 4, 1

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return (x[:, None] * s).sum(-1, keepdim=True)


def test_a_custom_game_is_explained_without_changes() -> None:
    game = Sums()
    settings = Settings(value_function=game, recipe=QUICK, random_state=0, progress=False)
    fitted = pipeline.fit(settings, FitData(numbers(ROWS)))
    assert fitted.game is game
    assert fitted.output_names == ("output 0",)
    values, base, predictions = fitted.explain_encoded(fitted.schema.encode(numbers(20)))
    np.testing.assert_allclose((base + values.sum(1)).numpy(), predictions.numpy(), atol=1e-9)
    np.testing.assert_allclose(predictions[:, 0].numpy(), numbers(20).sum(1), atol=1e-9)
