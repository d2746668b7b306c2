"""Tests of SampledBackground: an unbiased estimate of a marginal game from a few background rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from background_games import (
    BACKGROUND,
    COLUMNS,
    RUN,
    added_of,
    additive,
    calls_of,
    curved,
    every,
    game_of,
    generator,
    task,
    thin_of,
)
from games import Additive
from numpy.typing import NDArray
from torch import Tensor

from fastshapley import Targets, Training
from fastshapley.players import Groups
from fastshapley.value_functions import (
    Baseline,
    Marginal,
    Missing,
    Removal,
    Surrogate,
    ValueFunction,
    evaluate,
    grand_values,
    null_values,
)
from fastshapley.value_functions.background_sampling import (
    SampledBackground,
    can_be_thinned,
)
from fastshapley.value_functions.base_game import cost


def positive(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-rows.sum(1)))


def repeats(game: SampledBackground, x: Tensor, count: int) -> Tensor:
    """Evaluate all coalitions of one row ``count`` times: (count, coalitions, outputs)."""
    return evaluate(game, x.expand(count, -1), every(game, count))


def spread(game: Marginal, x: Tensor, added: Tensor | None) -> Tensor:
    """The variance over background rows of the averaged outputs, for all coalitions of one row."""
    s = every(game, 1)[0]
    found = []
    for coalition in s:
        shown = game.partition_.mask(coalition)
        y = game.predict(torch.where(shown, x, game.rows_))
        if added is not None:
            y = y - (added - added.mean(0))[:, ~coalition].sum(1)
        found.append(y.var(0, correction=0))
    return torch.stack(found)


GROUPS = Groups({"pair": [1, 3]})


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["none", "right", "wrong"])
@pytest.mark.parametrize("players", [None, GROUPS], ids=["columns", "groups"])
def test_a_thinned_game_is_an_unbiased_estimate_of_the_game(players: Groups | None, kind: str, rows: int) -> None:
    """The mean of 4000 evaluations is within 4.5 standard errors, for each coalition and output."""
    game = game_of(curved, players)
    thinned = SampledBackground(game, rows, generator(), added_of(game, kind))
    x = torch.tensor([[0.7, -1.2, 0.3, 1.9]], dtype=torch.float64)
    drawn = repeats(thinned, x, 4000)
    error = drawn.mean(0) - evaluate(game, x, every(game, 1))[0]
    assert (error.abs() <= 4.5 * drawn.std(0) / 4000**0.5 + 1e-9).all()
    assert (drawn.std(0)[:-1, 1] > 0).all()  # only the last coalition hides nothing


@pytest.mark.parametrize("kind", ["none", "right", "wrong"])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_noise_is_the_variance_over_background_rows_per_drawn_row(kind: str, rows: int) -> None:
    """From 4000 draws, a variance is known to a few per cent."""
    game = game_of(curved)
    added = added_of(game, kind)
    x = torch.tensor([[0.7, -1.2, 0.3, 1.9]], dtype=torch.float64)
    drawn = repeats(SampledBackground(game, rows, generator(), added), x, 4000)
    expected = spread(game, x, added) / rows
    centred = drawn - drawn.mean(0)
    error = (centred.square().var(0) / 4000).sqrt()  # the standard error of the variance
    assert ((centred.square().mean(0) - expected).abs() <= 4.5 * error + 1e-9).all()


def test_the_full_coalition_has_no_noise() -> None:
    game = game_of(curved)
    thinned = SampledBackground(game, 1, generator(), added_of(game, "wrong"))
    x = task(curved).x[:7]
    ones = torch.ones(7, 2, COLUMNS, dtype=torch.bool)
    torch.testing.assert_close(thinned(x, ones), game(x, ones))
    torch.testing.assert_close(grand_values(thinned, x), grand_values(game, x))
    assert torch.equal(null_values(thinned, x), null_values(game, x))


@pytest.mark.parametrize("players", [None, GROUPS], ids=["columns", "groups"])
@pytest.mark.parametrize("rows", [1, 2])
def test_an_additive_model_has_no_noise(players: Groups | None, rows: int) -> None:
    game = game_of(additive, players)
    thinned = SampledBackground(game, rows, generator(), added_of(game, "right"))
    x = task(additive).x[:20]
    torch.testing.assert_close(thinned(x, every(game, 20)), game(x, every(game, 20)), atol=1e-10, rtol=1e-10)


def test_the_noise_is_proportional_to_the_interaction() -> None:
    """The additive part cancels exactly: with the same draws, twice the interaction gives twice the noise."""

    def noise(size: float, kind: str) -> Tensor:
        game = game_of(
            lambda rows: additive(rows) + size * (rows[:, [0]] * rows[:, [1]] + rows[:, [2]] * rows[:, [3]])
        )
        x = torch.tensor([[0.7, -1.2, 0.3, 1.9]], dtype=torch.float64)
        drawn = repeats(SampledBackground(game, 1, generator(), added_of(game, kind)), x, 500)
        return drawn - evaluate(game, x, every(game, 1))

    small, twice, without = noise(0.05, "right"), noise(0.1, "right"), noise(0.05, "none")
    torch.testing.assert_close(twice, 2 * small, atol=1e-8, rtol=1e-6)
    assert small.square().mean() < 0.01 * without.square().mean()
    assert small.square().mean() > 0


def test_a_constant_added_to_all_background_values_changes_nothing() -> None:
    game = game_of(curved)
    x, s = task(curved).x[:5], every(game, 5)
    added = added_of(game, "wrong")
    assert added is not None
    first = SampledBackground(game, 2, generator(), added)(x, s)
    second = SampledBackground(game, 2, generator(), added + torch.tensor([5.0, -1.0, 100.0]))(x, s)
    torch.testing.assert_close(first, second)


def test_thinning_to_the_whole_background_returns_the_game_itself() -> None:
    game = game_of(curved)
    thin = thin_of(game, Targets())
    every = 1 << game.players  # all coalitions; each multiple of this adds one background row per coalition
    assert thin(BACKGROUND * every, generator()) is game
    assert thin((BACKGROUND + 1) * every, generator()) is game
    fewer = thin((BACKGROUND - 1) * every, generator())
    assert isinstance(fewer, SampledBackground)
    assert cost(fewer) == BACKGROUND - 1
    assert cost(thin(every - 1, generator())) == cost(thin(1, generator())) == 1


class Weighted(Marginal):
    """A game with a custom average over the background."""

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return 2 * super().__call__(x, s)


def test_a_game_with_a_custom_average_cannot_be_thinned() -> None:
    assert can_be_thinned(game_of(curved))
    assert not can_be_thinned(Weighted(BACKGROUND).fit(task(curved), RUN))


def unthinned(kind: str) -> tuple[ValueFunction, Targets | None]:
    if kind == "logit":
        return Marginal(BACKGROUND).fit(task(positive, link="logit"), RUN), Targets()
    if kind == "surrogate":
        return Surrogate(training=(Training(steps=2),)).fit(task(curved), RUN), Targets()
    if kind == "a user's own":
        return Additive(COLUMNS), Targets()
    if kind == "no targets":
        return game_of(curved), None
    if kind == "one background row":
        return game_of(curved, background=1), Targets()
    return {"baseline": Baseline(), "missing": Missing()}[kind].fit(
        task(lambda rows: np.nan_to_num(rows).sum(1)), RUN
    ), Targets()


@pytest.mark.parametrize(
    "kind",
    ["logit", "surrogate", "a user's own", "no targets", "one background row", "baseline", "missing"],
)
def test_other_games_are_not_thinned(kind: str) -> None:
    """Nothing is evaluated for them either."""
    game, options = unthinned(kind)
    before = calls_of(game) if isinstance(game, Removal) else 0
    thin = thin_of(game, options)
    assert all(thin(rows, generator()) is game for rows in (1, 2, 1000))
    assert not isinstance(game, Removal) or calls_of(game) == before


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("kind", ["none", "wrong"])
def test_an_evaluation_calls_the_model_with_the_given_number_of_rows(rows: int, kind: str) -> None:
    """A repeated coalition gets new draws."""
    game = game_of(curved)
    thinned = SampledBackground(game, rows, generator(), added_of(game, kind))
    assert cost(thinned) == rows
    x = task(curved).x[:7]
    s = torch.rand(7, 11, COLUMNS, generator=generator()) < 0.5
    before = calls_of(game)
    assert thinned(x, s).shape == (7, 11, 3)
    assert calls_of(game) - before == 7 * 11 * rows
    null_values(thinned, x)
    assert calls_of(game) - before == 7 * 11 * rows


@pytest.mark.parametrize("kind", ["none", "right"])
def test_mixed_rows_are_built_in_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks fit into memory, and change neither the number of calls nor the expected values."""
    game = game_of(curved)
    thinned = SampledBackground(game, 3, generator(), added_of(game, kind))
    x = torch.tensor([[0.7, -1.2, 0.3, 1.9]], dtype=torch.float64)
    sizes: list[int] = []
    predict = game.predict

    def noting(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return predict(x)

    monkeypatch.setattr(game, "predict", noting)
    width = COLUMNS * (1 if kind == "none" else game.outputs)  # size of a mixed row, or of its background values
    monkeypatch.setattr("fastshapley.value_functions.background_sampling.MEMORY", 8 * 16 * 3 * width * 100)
    drawn = repeats(thinned, x, 1050)
    assert drawn.shape == (1050, 16, 3)
    assert sizes == [100 * 16 * 3] * 10 + [50 * 16 * 3]
    error = drawn.mean(0) - evaluate(game, x, every(game, 1))[0]
    assert (error.abs() <= 4.5 * drawn.std(0) / 1050**0.5 + 1e-9).all()
    assert not torch.equal(drawn[:100], drawn[100:200])  # each chunk has its own draws


def test_rows_are_evaluated_one_by_one_if_memory_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    game = game_of(additive)
    thinned = SampledBackground(game, 2, generator(), added_of(game, "right"))
    monkeypatch.setattr("fastshapley.value_functions.background_sampling.MEMORY", 1)
    x = task(additive).x[:20]
    torch.testing.assert_close(thinned(x, every(game, 20)), game(x, every(game, 20)), atol=1e-10, rtol=1e-10)


def test_each_evaluation_has_new_draws() -> None:
    game = game_of(curved)
    thinned = SampledBackground(game, 1, generator())
    x = task(curved).x[:9]
    assert not torch.equal(thinned(x, every(game, 9)), thinned(x, every(game, 9)))
