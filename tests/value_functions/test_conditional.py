"""Tests of the conditional game: the model in it, its draws, its limits and its files."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from problems import QUICK, people, people_model
from torch import Tensor

from fastshapley import Layers, Recipe, Targets, Training
from fastshapley.coalitions import enumerate_coalitions
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import FileFormatError, InputError, ModelError
from fastshapley.estimators import exact
from fastshapley.estimators.kernel import leverage_values
from fastshapley.players import Features, Groups
from fastshapley.training.checkpoint import Checkpoint
from fastshapley.training.run import Run
from fastshapley.value_functions import Conditional, Problem
from fastshapley.value_functions.base_game import (
    GameContext,
    cost,
    imitation_of,
    new_rows_of,
    parts_of,
    training_game,
)
from fastshapley.value_functions.conditional import Correction, values_error
from fastshapley.value_functions.links import Link
from fastshapley.value_functions.registry import describe_game, restore_game

RECIPE = Recipe(
    surrogate=(Training(steps=300, batch_size=64, learning_rate=5e-3, schedule="cosine"),),
    explainer=QUICK.explainer,
    surrogate_layers=Layers(1, 32, "silu"),
    targets=Targets(coalitions=8, evaluations=2_000_000, rows=256),
)
RHO = 0.6


def normal_rows(rows: int = 600, seed: int = 0) -> NDArray[np.float64]:
    """Four normal columns with equal correlation."""
    common = np.random.default_rng(seed).normal(size=(rows, 1))
    own = np.random.default_rng(seed + 1).normal(size=(rows, 4))
    return np.asarray(np.sqrt(RHO) * common + np.sqrt(1 - RHO) * own)


def steps(rows: Any) -> NDArray[np.float64]:
    """A model that jumps, so that the surrogate is clearly off."""
    x = np.asarray(rows, dtype=np.float64)
    return 2 * np.sign(x[:, 0]) + np.floor(2 * x[:, 1]) + x[:, 2]


def two_classes(rows: Any) -> NDArray[np.float64]:
    p = 1 / (1 + np.exp(-steps(rows)))
    return np.stack([1 - p, p], axis=1)


def problem(
    model: Any, X: Any, link: Link = "identity", players: Features | Groups | None = None, **options: Any
) -> Problem:
    schema = TableSchema.of(X)
    x = schema.encode(X)[:]
    held_out = len(x) // 4
    function = ModelFunction(model, schema, x[:256])
    bound = (players or Features()).bind(schema.names)
    return Problem(function, x[held_out:], x[:held_out], bound, link, RECIPE, **options)


def fitted(model: Any = steps, X: Any = None, link: Link = "identity", **options: Any) -> Conditional:
    return Conditional(**options).fit(problem(model, normal_rows() if X is None else X, link), Run(0))


@pytest.fixture(scope="module")
def game() -> Conditional:
    return fitted()


def every(players: int, rows: int) -> Tensor:
    return enumerate_coalitions(players).expand(rows, -1, -1)


def encoded(X: Any, rows: int = 8) -> Tensor:
    return TableSchema.of(X).encode(X)[:][:rows]


def test_the_grand_coalition_is_the_model_and_the_empty_one_its_mean(game: Conditional) -> None:
    x = encoded(normal_rows())
    v = game(x, every(4, len(x)))
    np.testing.assert_allclose(v[:, -1, 0], steps(x.numpy()), atol=1e-9)
    np.testing.assert_allclose(game.grand(x)[:, 0], steps(x.numpy()), atol=1e-9)
    mean = steps(normal_rows()[150:]).mean()
    np.testing.assert_allclose(v[:, 0, 0], mean, atol=1e-9)
    np.testing.assert_allclose(game.null, mean, atol=1e-9)


def test_values_are_closer_to_the_truth_than_those_of_the_surrogate(game: Conditional) -> None:
    """The truth is E[f | x_s] from 4000 draws of the normal distribution given x_s."""
    x = encoded(normal_rows(seed=5), 40)
    truth = exact(_TrueGame(), x).values
    errors = [float(np.square(exact(each, x).values - truth).sum()) for each in (game, game.surrogate_)]
    assert errors[0] < 0.5 * errors[1]
    assert errors[0] < 0.05 * np.square(truth).sum()


class _TrueGame:
    players, outputs = 4, 1

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        normal = np.random.default_rng(9).normal(size=(4000, 4))
        covariance = np.full((4, 4), RHO) + (1 - RHO) * np.eye(4)
        found = np.empty((*s.shape[:2], 1))
        for i, row in enumerate(x.numpy()):
            for j, known in enumerate(s[i].numpy()):
                rows = np.repeat(row[None], len(normal), 0)
                if not known.all():
                    hidden = ~known
                    weight = covariance[np.ix_(hidden, known)] @ np.linalg.pinv(covariance[np.ix_(known, known)])
                    spread = covariance[np.ix_(hidden, hidden)] - weight @ covariance[np.ix_(known, hidden)]
                    root = np.linalg.cholesky(spread + 1e-12 * np.eye(len(spread)))
                    rows[:, hidden] = row[known] @ weight.T + normal[:, hidden] @ root.T
                found[i, j] = steps(rows).mean()
        return torch.from_numpy(found)


def test_the_same_question_gets_the_same_answer_in_any_company(game: Conditional) -> None:
    x = encoded(normal_rows(), 6)
    s = every(4, 6)
    together = game(x, s)
    assert torch.equal(game(x, s), together)
    one_by_one = torch.cat([game(x[i : i + 1], s[i : i + 1].flip(1)).flip(1) for i in range(6)])
    torch.testing.assert_close(one_by_one, together, atol=1e-5, rtol=1e-5)


def test_the_same_seed_gives_the_same_game(game: Conditional) -> None:
    x = encoded(normal_rows())
    assert torch.equal(fitted()(x, every(4, len(x))), game(x, every(4, len(x))))


def test_its_parts_sum_to_the_game(game: Conditional) -> None:
    """The correction has one draw for most evaluations. Means over rows differ by at most 4 standard errors."""
    x = encoded(normal_rows(seed=7), 400)
    parts = parts_of(game, 64)
    assert [type(part.game) for part in parts] == [type(game.surrogate_), Correction]
    assert parts[1].coalitions < parts[0].coalitions
    source = torch.Generator().manual_seed(0)
    found = [leverage_values(part.game, x, part.coalitions // 2, source)[0] for part in parts]
    total = torch.stack(found).sum(0)
    difference = (total - torch.from_numpy(exact(game, x).values))[..., 0]
    assert (difference.mean(0).abs() < 4 * difference.std(0) / len(x) ** 0.5 + 1e-9).all()
    whole = (total.sum(1) - (game.grand(x) - game.null)).abs()
    assert whole.max() < 1e-6


@pytest.mark.parametrize("samplers", [("normal",), ("normal", "copula")])
def test_in_training_equal_rows_have_draws_of_their_own(samplers: tuple[str, ...]) -> None:
    """Draws that equal rows share would be noise that more rows do not average out.

    These samplers know what to expect of their donors, so their controls do not change the mean.
    """
    game = fitted(samplers=samplers)
    x = encoded(normal_rows(seed=3), 1).repeat(2000, 1)
    s = every(4, len(x))[:, 1:-1]
    v = game.thinned(16, torch.Generator().manual_seed(0))(x, s)[..., 0]
    spread = v.std(0)
    assert (spread[~s[0, :, :3].all(1)] > 0).all()  # The model does not use the last column.
    # All donors as draws: the mean that the draws of any number estimate without bias.
    full = copy.copy(game)
    full.draws_ = (0, *[len(game.donors_)] * 3, 1)
    expected = full(x[:1], s[:1])[0, :, 0]
    assert ((v.mean(0) - expected).abs() < 5 * spread / len(x) ** 0.5 + 1e-6).all()


def test_in_training_a_control_takes_off_most_of_the_noise(game: Conditional) -> None:
    """The model is nearly linear. Without the control, the draws are the same, and have their whole noise."""
    x = encoded(normal_rows(seed=3), 1).repeat(2000, 1)
    s = every(4, len(x))[:, 1:-1]
    plain = copy.copy(game)
    plain.plan_ = replace(game.plan_, controls=(0.0,) * 5)
    controlled, noisy = (
        each.thinned(16, torch.Generator().manual_seed(0))(x, s)[..., 0].var(0).mean() for each in (game, plain)
    )
    assert controlled < 0.5 * noisy


def test_new_rows_are_like_those_at_hand(game: Conditional) -> None:
    """Their means and covariances agree with those of the data to 5 standard errors of 600 rows."""
    x = encoded(normal_rows(), 600)
    found = game.new_rows(x, 4000, torch.Generator().manual_seed(0))
    assert found is not None
    assert found.shape == (4000, 4)
    assert not (found[:, None] == x[None, :50]).all(2).any(1).all()
    again = game.new_rows(x, 4000, torch.Generator().manual_seed(0))
    assert again is not None
    assert torch.equal(found, again)
    np.testing.assert_allclose(found.mean(0), x.mean(0), atol=5 / 600**0.5)
    np.testing.assert_allclose(torch.cov(found.T), torch.cov(x.T), atol=5 * (2 / 600) ** 0.5)


def test_a_game_that_knows_no_distribution_has_no_new_rows() -> None:
    found = Conditional().fit(problem(steps, normal_rows(), evaluations=2000), Run(0))
    assert found.new_rows(encoded(normal_rows()), 10, torch.Generator()) is None
    assert new_rows_of(found.surrogate_, encoded(normal_rows()), 10, torch.Generator()) is None


def test_probabilities_of_classes_sum_to_one() -> None:
    X = normal_rows()
    found = fitted(two_classes)
    x = encoded(X)
    v = found(x, every(4, len(x)))
    torch.testing.assert_close(v.sum(2), torch.ones(len(x), 16, dtype=torch.float64))
    assert v.min() >= 0
    assert v.max() <= 1


def test_behind_a_link_an_average_is_a_probability() -> None:
    found = fitted(two_classes, link="logit")
    x = encoded(normal_rows(seed=3), 50)
    v = found(x, every(4, len(x)))
    assert v.isfinite().all()
    torch.testing.assert_close(v[..., 0], -v[..., 1], atol=1e-6, rtol=0)
    np.testing.assert_allclose(v[:, -1, 1], steps(x.numpy()), atol=1e-6)
    assert cost(found.thinned(64, torch.Generator())) < cost(found)


def test_columns_of_every_kind_gaps_and_groups() -> None:
    X, y = people(400)
    model = people_model(X, y)
    groups = Groups({"person": ["age", "city"]})
    found = Conditional().fit(problem(model, X, players=groups), Run(0))
    x = TableSchema.of(X).encode(X)[:][:50]
    v = found(x, every(found.players, len(x)))
    np.testing.assert_allclose(v[:, -1], model.predict_proba(X[:50]), atol=1e-6)
    assert v.isfinite().all()


def test_few_calls_leave_the_surrogate_with_the_model_for_whole_rows(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        found = Conditional().fit(problem(steps, normal_rows(), evaluations=2000), Run(0))
    assert "whole rows only" in caplog.text
    assert found.is_surrogate
    assert training_game(found) is found.surrogate_
    assert found.game_errors is None
    x = encoded(normal_rows())
    inner = every(4, len(x))[:, 1:-1]
    torch.testing.assert_close(found(x, inner), found.surrogate_(x, inner).double())
    np.testing.assert_allclose(found.grand(x)[:, 0], steps(x.numpy()), atol=1e-9)


def test_a_model_that_fails_on_drawn_rows_is_asked_for_whole_rows_only(caplog: pytest.LogCaptureFixture) -> None:
    """Such as a pipeline whose encoder has not seen all values of a column."""
    X = normal_rows()
    seen = {row.tobytes() for row in X}

    def picky(rows: Any) -> NDArray[np.float64]:
        if not all(row.tobytes() in seen for row in np.ascontiguousarray(rows)):
            raise ValueError("unknown row")
        return steps(rows)

    with caplog.at_level(logging.WARNING):
        found = fitted(picky, X)
    assert "fails on drawn rows" in caplog.text
    assert found.is_surrogate
    x = encoded(X)
    np.testing.assert_allclose(found.grand(x)[:, 0], steps(x.numpy()), atol=1e-9)


@pytest.mark.parametrize("evaluations", [700, 20_000, 200_000])
def test_calls_stay_within_their_limit(evaluations: int) -> None:
    given = problem(steps, normal_rows(), evaluations=evaluations)
    before = given.model.evaluations
    Conditional().fit(given, Run(0))
    assert given.model.evaluations - before <= evaluations


def test_one_player_and_a_constant_model() -> None:
    one = fitted(lambda rows: np.asarray(rows)[:, 0], normal_rows()[:, :1])
    x = encoded(normal_rows()[:, :1])
    np.testing.assert_allclose(one(x, every(1, len(x)))[:, 1, 0], x[:, 0], atol=1e-9)
    constant = fitted(lambda rows: np.full(len(rows), 3.0))
    x = encoded(normal_rows())
    np.testing.assert_allclose(constant(x, every(4, len(x))), 3.0, atol=1e-6)


def test_a_sampler_of_the_users_is_asked() -> None:
    X = np.random.default_rng(0).normal(size=(600, 4))
    asked: list[tuple[int, ...]] = []

    def sample(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        asked.append(tuple(s.shape))
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)

    found = fitted(steps, X, samplers=sample)
    assert asked
    assert asked[0][1] == 4
    x = encoded(X)
    np.testing.assert_allclose(found.grand(x)[:, 0], steps(x.numpy()), atol=1e-9)
    assert len(found.samplers_) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samplers": "gaussian"}, "samplers is 'gaussian'"),
        ({"samplers": ()}, "samplers is \\(\\)"),
        ({"draws": 0}, "draws is 0"),
        ({"donors": 2.5}, "donors is 2.5"),
    ],
)
def test_wrong_parameters_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        fitted(**options)


def context(found: Conditional, model: Any = None, given: Any = None) -> GameContext:
    return GameContext(found.schema_, found.partition_, torch.device("cpu"), model, given=given)


def test_a_restored_game_gives_the_same_values(game: Conditional) -> None:
    x = encoded(normal_rows())
    again = restore_game(*describe_game(game), context(game, steps))
    assert torch.equal(again(x, every(4, len(x))), game(x, every(4, len(x))))
    assert again.game_errors == pytest.approx(game.game_errors)
    assert again.fidelity_by_size == game.fidelity_by_size


def test_without_its_model_it_says_so_once_and_falls_back(
    game: Conditional, caplog: pytest.LogCaptureFixture
) -> None:
    again = restore_game(*describe_game(game), context(game))
    x = encoded(normal_rows())
    with caplog.at_level(logging.WARNING):
        found = again.grand(x)
        again.grand(x)
    torch.testing.assert_close(found, game.surrogate_.grand(x).double())
    assert caplog.text.count("The explainer has no model") == 1
    with pytest.raises(ModelError, match=r"FastSHAP\.load"):
        again(x, every(4, len(x)))


def test_a_file_of_a_users_sampler_asks_for_it() -> None:
    def sample(x: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype)

    found = fitted(samplers=sample)
    described = describe_game(found)
    with pytest.raises(FileFormatError, match=r"value_function="):
        restore_game(*described, context(found, steps))
    again = restore_game(*described, context(found, steps, sample))
    x = encoded(normal_rows())
    assert torch.equal(again(x, every(4, len(x))), found(x, every(4, len(x))))


def test_an_update_learns_new_rows(game: Conditional) -> None:
    moved = normal_rows(seed=11) + 3.0
    given = problem(steps, moved)
    updated = game.update(given, Run(0))
    assert imitation_of(updated) is not game.surrogate_
    assert float(updated.null) == pytest.approx(steps(moved[150:]).mean())
    assert float(game.null) == pytest.approx(steps(normal_rows()[150:]).mean())


def test_a_resumed_fit_does_not_call_the_model_again(tmp_path: Any) -> None:
    first = problem(steps, normal_rows())
    Conditional().fit(first, Run(0, Checkpoint(tmp_path)))
    second = problem(steps, normal_rows())
    before = second.model.evaluations
    Conditional().fit(second, Run(0, Checkpoint(tmp_path)))
    assert second.model.evaluations == before


def test_errors_of_values_follow_from_those_of_the_game() -> None:
    """For additive errors, e(s) has k (d - k) / (d (d - 1)) of the values' squared error."""
    players = 9
    sizes = list(range(1, players))
    doubts = [k * (players - k) / (players * (players - 1)) for k in sizes]
    assert values_error(doubts, sizes, players) == pytest.approx(1.0)
