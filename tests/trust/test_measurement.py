"""Tests of the true values that a report compares with, and of the fidelity of the game to the model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from games import Additive, Moebius
from problems import explainer, numbers
from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.objective import normalize
from fastshapley.players import Features
from fastshapley.training.run import Run
from fastshapley.trust import effort
from fastshapley.trust.effort import Allowance
from fastshapley.trust.measurement import MeasuredNetwork, measure_network, true_values
from fastshapley.trust.report import measure
from fastshapley.value_functions import Marginal, Problem, ValueFunction
from fastshapley.value_functions.protocol import total_values


def evenly(game: ValueFunction) -> Callable[[Tensor], Tensor]:
    """Return a function whose values are equal for all players and sum to grand minus null."""

    def explain(x: Tensor) -> Tensor:
        return normalize(
            torch.zeros(len(x), game.players, game.outputs, dtype=torch.float64), total_values(game, x)
        )

    return explain


@pytest.mark.parametrize("background", [1, 10])
@pytest.mark.parametrize("columns", [4, 12], ids=["exact", "estimated"])
@pytest.mark.parametrize(
    "allowance",
    [
        Allowance(calls=math.inf, pace=1e-3, seconds=20.0),
        Allowance(calls=20_000, pace=1e-9, seconds=math.inf),
        Allowance(calls=10**6, pace=1e-3, seconds=20.0),
    ],
    ids=["time", "calls", "both"],
)
def test_true_values_use_most_of_the_allowed_calls(allowance: Allowance, columns: int, background: int) -> None:
    """The limit is 20,000 rows, by time or by number, for any background.

    If the pace turns out to be faster than expected, there is time for more.
    """
    X = numbers(3000, columns)
    schema = TableSchema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: np.sin(rows).prod(1), schema, x[:10])
    game = Marginal(background).fit(Problem(model, x, x, Features().bind(schema.names)), Run(0))
    before = model.evaluations
    found = true_values(evenly(game), game, x, torch.Generator(), allowance)
    assert found is not None
    assert 10_000 <= model.evaluations - before <= min(allowance.calls, effort.REPORT_EVALUATIONS)


def test_more_rows_are_measured_if_the_game_is_faster_than_expected() -> None:
    """The expected pace allows 3 rows of 640 evaluations; the game takes microseconds."""
    game = Additive(players=20)
    expected = Allowance(pace=0.01, seconds=20.0)
    found = true_values(evenly(game), game, game.rows(50), torch.Generator().manual_seed(0), expected)
    assert found is not None
    assert len(found.rows) == len(found.estimate.values) == len(found.estimate.stderr) == 50
    limited = replace(expected, calls=2000)
    few = true_values(evenly(game), game, game.rows(50), torch.Generator().manual_seed(0), limited)
    assert few is not None
    assert len(few.rows) == 3


def test_without_time_there_are_no_true_values() -> None:
    X = numbers(100)
    schema = TableSchema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: rows[:, 0], schema, x[:10])
    game = Marginal(10).fit(Problem(model, x, x, Features().bind(schema.names)), Run(0))
    before = model.evaluations
    too_few = Allowance(pace=1.0, seconds=15.0 * 10)  # Ten calls for each of 15 of the 16 coalitions.
    assert true_values(evenly(game), game, x, torch.Generator(), too_few) is None
    assert model.evaluations == before


def test_a_used_up_time_budget_leaves_time_for_a_report() -> None:
    game = Additive(players=4)
    found = true_values(evenly(game), game, game.rows(5), torch.Generator(), Allowance(pace=1e-3, seconds=0.0))
    assert found is not None
    assert len(found.rows) == 5


def test_few_players_get_exact_values() -> None:
    """Three players have 8 coalitions: 163 calls give 20 exact rows rather than one estimated row."""
    game = Additive(3)
    found = true_values(evenly(game), game, game.rows(128), torch.Generator(), Allowance(163, 60.0, 1e-9))
    assert found is not None
    assert len(found.rows) == 20
    assert found.description == "exact, all 8 coalitions"
    assert found.estimate.stderr.max() == 0


@pytest.fixture(scope="module")
def game() -> Moebius:
    return Moebius.random(15, outputs=2, seed=1)


def test_estimated_and_exact_true_values_give_the_same_squared_error(game: Moebius) -> None:
    """The mean difference is within 4 standard errors, with rows as the unit."""
    x = game.rows(2000)
    generator = torch.Generator().manual_seed(0)
    found = true_values(evenly(game), game, x, generator, Allowance(800_000, 60.0, 1e-9))
    assert found is not None
    rows, truth, how = found.rows, found.estimate, found.description
    assert re.fullmatch(r"unbiased estimate from \d+ coalition pairs per row", how)
    values, right = evenly(game)(rows).numpy(), game.shapley(rows).numpy()
    nothing = np.zeros_like(right)
    rough = measure(values, truth, how)
    precise = measure(values, replace(truth, values=right, stderr=nothing), "exact")
    squares = np.square(values - truth.values).sum((1, 2)) - np.square(truth.stderr).sum((1, 2))
    difference = squares - np.square(values - right).sum((1, 2))
    assert abs(difference.mean()) < 4 * difference.std() / len(rows) ** 0.5
    assert rough.mean_squared_error == pytest.approx(precise.mean_squared_error, rel=0.05)
    assert rough.relative_squared_error == pytest.approx(precise.relative_squared_error, rel=0.05)
    assert rough.truth_error > 0 == precise.truth_error


def measured_network(value_function: str) -> tuple[MeasuredNetwork, Tensor]:
    """Return a fitted network with its game and model, and encoded rows."""
    X = numbers(300)

    def model(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows[:, 0] * rows[:, 1] + rows[:, 2])

    fitted = explainer(model, value_function=value_function).fit(X)
    x = fitted.schema_.encode(X)[:]
    function = ModelFunction(model, fitted.schema_, x[:10])
    game = fitted.value_function_
    if value_function == "baseline":
        function = game.model_
    return MeasuredNetwork(fitted.network_, game, function), x


def test_a_surrogate_is_compared_with_the_model() -> None:
    measured, x = measured_network("surrogate")
    found = measure_network(measured, x[:40], Run(0), Allowance(), math.inf)
    assert found.report is not None
    assert found.report.fidelity is not None
    assert found.report.fidelity < 1
    assert found.report.fidelity_by_size is not None
    assert list(found.report.fidelity_by_size) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    squares = float(found.model_distances.square().mean())
    assert found.report.game_error == pytest.approx(squares)
    assert "surrogate" in found.report.game_error_source
    assert found.model_distances.shape == (40,)


def test_the_model_is_called_no_more_often_than_allowed() -> None:
    measured, x = measured_network("surrogate")
    assert measured.model is not None
    before = measured.model.evaluations
    found = measure_network(measured, x[:40], Run(0), Allowance(), 7)
    assert found.model_distances.shape == (7,)
    assert measured.model.evaluations - before == 7
    none = measure_network(measured, x[:40], Run(0), Allowance(), 0)
    assert none.report is not None
    assert none.report.fidelity is None
    assert len(none.model_distances) == 0


def test_calls_of_the_game_count_as_calls_of_the_model() -> None:
    """The game has another model. Its calls for the true values leave fewer calls for the fidelity."""
    measured, x = measured_network("baseline")
    other = ModelFunction(lambda rows: rows[:, 0], TableSchema.of(numbers(300)), x[:10])
    model = measured.game.model_  # type: ignore[attr-defined]
    before = model.evaluations
    measure_network(replace(measured, model=other), x[:40], Run(0), Allowance(), math.inf)
    spent = model.evaluations - before
    assert spent >= 40
    found = measure_network(replace(measured, model=other), x[:40], Run(0), Allowance(), spent + 5)
    assert found.model_distances.shape == (5,)


def test_a_game_of_the_model_itself_has_perfect_fidelity() -> None:
    measured, x = measured_network("baseline")
    found = measure_network(measured, x[:40], Run(0), Allowance(), math.inf)
    assert found.report is not None
    assert (found.report.fidelity, found.report.game_error) == (1.0, 0.0)
    assert len(found.model_distances) == 0


def test_without_calls_there_is_no_report(caplog: pytest.LogCaptureFixture) -> None:
    measured, x = measured_network("baseline")
    with caplog.at_level("WARNING"):
        found = measure_network(measured, x[:40], Run(0), Allowance(calls=10), math.inf)
    assert found.report is None
    assert "There is no report" in caplog.text


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_model_that_is_not_deterministic_is_noticed(noise: float) -> None:
    """The variance of 64 differences is within five standard errors of twice the noise's."""
    generator = np.random.default_rng(0)
    measured, x = measured_network("surrogate")
    assert measured.model is not None
    model = ModelFunction(
        lambda rows: rows[:, 0] + noise * generator.normal(size=len(rows)), TableSchema.of(numbers(300)), x[:10]
    )
    found = measure_network(replace(measured, model=model), x[:80], Run(0), Allowance(), math.inf).report
    assert found is not None
    assert found.model_noise == pytest.approx(noise**2, rel=5 * math.sqrt(2 / 64))
    assert any("not deterministic" in text for text in found.warnings()) == (noise > 0)
    assert found.relative_model_noise == found.model_noise / found.mean_squared_value  # no names of players here
    assert replace(found, player_names=("a", "b")).relative_model_noise == found.relative_model_noise / 2
