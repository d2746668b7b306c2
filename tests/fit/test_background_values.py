"""Tests of the estimated Shapley values of background rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from background_games import (
    BACKGROUND,
    RUN,
    additive,
    calls_of,
    curved,
    every,
    game_of,
    generator,
    task,
    thin_of,
)
from problems import QUICK, explainer, numbers
from sklearn.linear_model import LinearRegression
from torch import Tensor

from fastshapley import Targets, Training
from fastshapley.metrics import relative_squared_error
from fastshapley.players import Groups
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.run import Clock, Run
from fastshapley.value_functions import (
    Marginal,
    evaluate,
)
from fastshapley.value_functions.background_sampling import (
    SampledBackground,
)


def repeats(game: SampledBackground, x: Tensor, count: int) -> Tensor:
    """Evaluate all coalitions of one row ``count`` times: (count, coalitions, outputs)."""
    return evaluate(game, x.expand(count, -1), every(game, count))


GROUPS = Groups({"pair": [1, 3]})


@pytest.mark.parametrize("players", [None, GROUPS], ids=["columns", "groups"])
def test_background_values_reduce_the_noise_of_a_thinned_game(players: Groups | None) -> None:
    """They remove most of the noise, also for a model with interactions."""
    for model, most in ((additive, 0.01), (curved, 0.6)):
        game = game_of(model, players)
        thin = thin_of(game, Targets(evaluations=10**6))
        bare, better = SampledBackground(game, 1, generator()), thin(1, generator())
        assert isinstance(better, SampledBackground)
        assert better.added is not None
        assert better.added.shape == (BACKGROUND, game.players, game.outputs)
        x = task(model).x[:1]
        before, after = (repeats(g, x, 500).var(0).mean(0) for g in (bare, better))
        assert (after < most * before).all()


@pytest.mark.parametrize("evaluations", [1, 1000, 20_000, 10**6])
def test_background_values_take_at_most_a_twentieth_of_the_evaluations(evaluations: int) -> None:
    game = game_of(curved)
    before = calls_of(game)
    thin = thin_of(game, Targets(evaluations=evaluations))
    assert calls_of(game) - before <= 0.05 * evaluations + (2 * BACKGROUND if evaluations > 1000 else 0)
    thinned = thin(1, generator())
    assert isinstance(thinned, SampledBackground)
    assert (thinned.added is None) == (evaluations <= 1000) == (calls_of(game) == before)


@pytest.mark.parametrize("run", [RUN, Run(0, clock=Clock(0.0))], ids=["no time for targets", "no time in the run"])
def test_background_values_are_skipped_if_there_is_no_time(run: Run) -> None:
    game = game_of(curved)
    before = calls_of(game)
    thinned = thin_of(game, Targets(seconds=120.0 if run is not RUN else 1e-12), run)(1, generator())
    assert isinstance(thinned, SampledBackground)
    assert thinned.added is None
    assert calls_of(game) == before


def test_equal_seeds_give_equal_bytes() -> None:
    x = task(curved).x[:9]

    def drawn(seed: int, draws: int) -> bytes:
        game = game_of(curved)
        thin = thin_of(game, Targets(), Run(seed))
        v: Tensor = thin(2 << game.players, generator(draws))(x, every(game, 9))
        return v.numpy().tobytes()

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(0, 1)
    assert drawn(0, 0) != drawn(1, 0)  # the background values are random too


@pytest.mark.parametrize("evaluations", [10**6, 100], ids=["affordable", "too expensive"])
def test_background_values_are_saved_in_the_checkpoint(evaluations: int, tmp_path: Path) -> None:
    game = game_of(curved)
    first = thin_of(game, Targets(evaluations=evaluations), Run(0, Checkpoint(tmp_path)))(1, generator())
    before = calls_of(game)
    again = thin_of(game, Targets(evaluations=10**6), Run(0, Checkpoint(tmp_path)))(1, generator())
    assert calls_of(game) == before
    assert isinstance(first, SampledBackground)
    assert isinstance(again, SampledBackground)
    assert (first.added is None) == (again.added is None) == (evaluations == 100)
    x = task(curved).x[:9]
    assert torch.equal(first(x, every(game, 9)), again(x, every(game, 9)))


def test_values_of_a_linear_model_match_the_closed_form() -> None:
    """Each value is the coefficient times the distance from the background mean."""
    X, test = numbers(500, 6), numbers(100, 6, seed=1)
    model = LinearRegression().fit(X, X @ [1.0, -2.0, 0.5, 0.0, 3.0, 1.0])
    recipe = replace(
        QUICK,
        explainer=Training(steps=1000, batch_size=64, learning_rate=3e-3, schedule="cosine"),
        targets=Targets(coalitions=8, evaluations=400_000, rows=2000),
        own_units=2,
    )
    fitted = explainer(model, value_function="marginal", recipe=recipe).fit(X)
    game = fitted.value_function_
    assert isinstance(game, Marginal)
    closed = model.coef_ * (test - game.rows_.numpy().mean(0))
    error = relative_squared_error(fitted.shap_values(test)[..., None], closed[..., None])
    assert error < 0.005
    assert fitted.report_ is not None
    assert fitted.report_.relative_squared_error < 0.005  # measured on the game that is not thinned
