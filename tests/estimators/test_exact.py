"""Exact enumeration on games whose Shapley values are known, and against other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import shap
import shapiq
import torch
from games import GAMES, Additive, KnownGame, Moebius
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.estimators import exact
from fastshapley.value_functions import ValueFunction, grand_values, null_values

fast = settings(deadline=None, derandomize=True, max_examples=40)


@st.composite
def moebius_games(draw: st.DrawFn) -> Moebius:
    players = draw(st.integers(2, 8))
    return Moebius.random(players, outputs=2, terms=draw(st.integers(1, 12)), seed=draw(st.integers(0, 2**20)))


def values(game: ValueFunction, x: Tensor) -> Tensor:
    return torch.from_numpy(exact(game, x).values)


@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)
def test_values_equal_the_closed_form(game: KnownGame) -> None:
    x = game.rows(3)
    estimate = exact(game, x)
    np.testing.assert_allclose(estimate.values, game.shapley(x), atol=1e-12)
    assert estimate.stderr.shape == estimate.values.shape
    assert not estimate.stderr.any()
    assert estimate.evaluations.tolist() == [2**game.players] * 3
    assert estimate.converged.all()


def test_many_coalitions_or_rows_are_evaluated_in_chunks() -> None:
    game = Moebius.random(17, terms=8)  # There are more coalitions than one call takes.
    x = game.rows(2)
    torch.testing.assert_close(values(game, x), game.shapley(x))
    game = Moebius.random(14, terms=8)  # Five rows do not fit into one call.
    x = game.rows(5)
    torch.testing.assert_close(values(game, x), game.shapley(x))


@given(moebius_games())
@fast
def test_values_sum_to_grand_minus_null(game: Moebius) -> None:
    x = game.rows(2)
    total = grand_values(game, x) - null_values(game, x)
    torch.testing.assert_close(values(game, x).sum(1), total)


@given(moebius_games(), st.data())
@fast
def test_equal_players_get_equal_values(game: Moebius, data: st.DataObject) -> None:
    """A game added to itself with two players exchanged treats both alike."""
    i, j = data.draw(st.lists(st.integers(0, game.players - 1), min_size=2, max_size=2, unique=True))
    exchanged = game.members.clone()
    exchanged[:, [i, j]] = game.members[:, [j, i]]
    both = Moebius(torch.cat([game.members, exchanged]), torch.cat([game.dividends, game.dividends]))
    phi = values(both, game.rows(2).repeat(1, 2))
    torch.testing.assert_close(phi[:, i], phi[:, j])


@given(moebius_games(), st.data())
@fast
def test_a_player_without_interactions_gets_its_own_value(game: Moebius, data: st.DataObject) -> None:
    """A player that always adds the same amount gets that amount."""
    i = data.draw(st.integers(0, game.players - 1))
    members = game.members.clone()
    members[:, i] = 0
    alone = torch.eye(game.players, dtype=torch.float64)[[i]]
    game = Moebius(torch.cat([alone, members]), torch.cat([torch.tensor([[2.0, -3.0]]), game.dividends]))
    phi = values(game, torch.ones(1, len(game.members), dtype=torch.float64))
    torch.testing.assert_close(phi[0, i], torch.tensor([2.0, -3.0], dtype=torch.float64))


@given(moebius_games(), st.integers(0, 2**20), st.floats(-3, 3))
@fast
def test_values_are_linear_in_the_game(game: Moebius, seed: int, factor: float) -> None:
    other = Moebius.random(game.players, outputs=2, seed=seed)

    class Mixture:
        players, outputs = game.players, 2

        def __call__(self, x: Tensor, s: Tensor) -> Tensor:
            return game(x[:, : len(game.members)], s) + factor * other(x[:, len(game.members) :], s)

    x, y = game.rows(2), other.rows(2, seed=1)
    torch.testing.assert_close(values(Mixture(), torch.cat([x, y], 1)), values(game, x) + factor * values(other, y))


def test_values_agree_with_shapiq() -> None:
    game = Moebius.random(6, seed=3)
    x = game.rows(1)

    def by_shapiq(coalitions: NDArray[np.bool_]) -> NDArray[np.float64]:
        return game(x, torch.from_numpy(coalitions)[None])[0, :, 0].numpy()

    theirs = shapiq.ExactComputer(by_shapiq, n_players=6)("SV").get_n_order_values(1)
    np.testing.assert_allclose(exact(game, x).values[0, :, 0], theirs, atol=1e-6)


def test_values_agree_with_shap() -> None:
    generator = np.random.default_rng(0)
    background, rows = generator.normal(size=(4, 5)), generator.normal(size=(3, 5))

    def model(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([x[:, 0] * x[:, 1] + x[:, 2] ** 2, np.tanh(x.sum(1))], axis=1)

    class Interventional:
        players, outputs = 5, 2

        def __call__(self, x: Tensor, s: Tensor) -> Tensor:
            mixed = torch.where(s[:, :, None], x[:, None, None], torch.from_numpy(background))
            y = torch.from_numpy(model(mixed.reshape(-1, 5).numpy()))
            return y.reshape(*mixed.shape[:3], 2).mean(2)

    theirs = shap.explainers.Exact(model, shap.maskers.Independent(background))(rows)
    np.testing.assert_allclose(exact(Interventional(), torch.from_numpy(rows)).values, theirs.values, atol=1e-6)


def test_a_single_player_gets_the_whole_total() -> None:
    game = Additive(1, outputs=2)
    x = game.rows(3)
    estimate = exact(game, x)
    np.testing.assert_allclose(estimate.values, game.shapley(x))
    assert estimate.evaluations.tolist() == [2, 2, 2]


def test_too_many_players_raise_and_the_message_names_the_kernel_estimator() -> None:
    game = Additive(21)
    with pytest.raises(
        InputError, match=r"value_function has 21 players, and exact enumeration takes at most 20.*kernel"
    ):
        exact(game, game.rows(1))
