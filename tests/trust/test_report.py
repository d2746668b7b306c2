"""How much of the truth a report is measured against."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from games import Additive, Moebius
from problems import numbers
from torch import Tensor

from fastshapley import FastSHAP, Recipe, Targets, Training
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.estimators import Estimate
from fastshapley.objective import normalize
from fastshapley.players import Features
from fastshapley.training.run import Run
from fastshapley.trust.report import Report, measure, true_values
from fastshapley.value_functions import Marginal, Problem, ValueFunction
from fastshapley.value_functions.protocol import total_values


def evenly(game: ValueFunction) -> Callable[[Tensor], Tensor]:
    """Values that are the same for all players, and sum to grand minus null."""

    def explain(x: Tensor) -> Tensor:
        return normalize(
            torch.zeros(len(x), game.players, game.outputs, dtype=torch.float64), total_values(game, x)
        )

    return explain


@pytest.mark.parametrize("background", [1, 10])
@pytest.mark.parametrize("columns", [4, 12], ids=["exact", "estimated"])
@pytest.mark.parametrize(
    "options",
    [
        {"calls": math.inf, "pace": 1e-3, "seconds": 20.0},
        {"calls": 20_000, "pace": 1e-9, "seconds": math.inf},
        {"calls": 10**6, "pace": 1e-3, "seconds": 20.0},
    ],
    ids=["time", "calls", "both"],
)
def test_the_truth_takes_what_the_model_may_be_called_with(
    options: dict[str, Any], columns: int, background: int
) -> None:
    """Twenty thousand rows, by time or by number, whatever the background; and most of them are used."""
    X = numbers(3000, columns)
    schema = TableSchema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: np.sin(rows).prod(1), schema, x[:10])
    game = Marginal(background).fit(Problem(model, x, x, Features().bind(schema.names)), Run(0))
    before = model.evaluations
    found = true_values(evenly(game), game, x, torch.Generator(), **options)
    assert found is not None
    assert 10_000 <= model.evaluations - before <= 20_000


def test_no_time_gives_no_truth() -> None:
    X = numbers(100)
    schema = TableSchema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: rows[:, 0], schema, x[:10])
    game = Marginal(10).fit(Problem(model, x, x, Features().bind(schema.names)), Run(0))
    before = model.evaluations
    too_few = {"calls": math.inf, "pace": 1.0, "seconds": 15.0 * 10}  # of 16 coalitions
    assert true_values(evenly(game), game, x, torch.Generator(), **too_few) is None
    assert model.evaluations == before


def test_of_few_players_all_coalitions_are_the_cheapest_truth() -> None:
    """Three players have 8 coalitions: 20 rows exactly rather than one by sampling."""
    game = Additive(3)
    found = true_values(evenly(game), game, game.rows(128), torch.Generator(), calls=163, pace=1e-9, seconds=60.0)
    assert found is not None
    rows, truth, how = found
    assert len(rows) == 20
    assert how.startswith("exact")
    assert truth.stderr.max() == 0


@pytest.fixture(scope="module")
def game() -> Moebius:
    return Moebius.random(15, outputs=2, seed=1)


def test_a_rough_truth_gives_the_same_squared_error_as_the_exact_one(game: Moebius) -> None:
    """Within 4 standard errors of the difference over rows."""
    x = game.rows(2000)
    generator = torch.Generator().manual_seed(0)
    found = true_values(evenly(game), game, x, generator, calls=800_000, pace=1e-9, seconds=60.0)
    assert found is not None
    rows, truth, how = found
    assert "pairs of coalitions a row" in how
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


GOOD = Report(
    rows=100,
    truth="exact",
    truth_error=0.0,
    l1=0.1,
    l2=0.05,
    l2_interval=0.01,
    relative_squared_error=0.01,
    cosine=0.99,
    sign_agreement=0.98,
    fidelity=0.97,
    mean_squared_error=0.003,
    mean_squared_error_interval=0.001,
    fidelity_by_size={"0 %": 0.0, "100 %": 0.97},
    surrogate_error=1e-4,
)


def test_a_good_report_has_no_warnings() -> None:
    assert GOOD.warnings() == []
    assert "!" not in str(GOOD)
    assert "mean squared error             0.003 +- 0.001" in str(GOOD)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relative_squared_error": 0.36}, "off by 60 % of their size"),
        ({"sign_agreement": 0.8}, "20 % of the large values have the wrong sign"),
        ({"fidelity": 0.5}, "explain another model"),
        ({"held_out": False}, "measured on rows that were trained on"),
        ({"rows": 5}, "measured on 5 rows, which is little to go by"),
    ],
)
def test_a_poor_one_says_why_and_what_to_do(changes: dict[str, Any], words: str) -> None:
    poor = replace(GOOD, **changes)
    assert len(poor.warnings()) == 1
    assert words in poor.warnings()[0]
    assert words in str(poor)
    assert words in poor._repr_html_()


def test_notebooks_get_a_table() -> None:
    text = replace(GOOD, truth="<exact>")._repr_html_()
    assert text.count("<tr>") == len(GOOD.lines())
    assert "&lt;exact&gt;" in text


def test_reports_go_through_json() -> None:
    assert Report(**json.loads(json.dumps(GOOD.to_dict()))) == GOOD


def test_one_row_has_no_interval() -> None:
    values = np.ones((1, 3, 1))
    truth = Estimate(values, np.zeros_like(values), np.array([8]), np.array([True]))
    assert "+-" not in str(measure(values, truth, "exact"))


def test_fifty_rows_warn_and_many_do_not(caplog: pytest.LogCaptureFixture) -> None:
    """By the logger as well as by the report."""

    def model(X: Any) -> Any:
        return np.sin(2 * X[:, 0]) * X[:, 1] + X[:, 2] * np.abs(X[:, 3]) + X[:, 4] + X[:, 5]

    steps = Training(steps=1500, batch_size=64, learning_rate=5e-3, schedule="cosine")
    recipe = Recipe(surrogate=(steps,), explainer=steps, targets=Targets(coalitions=8, rows=1))
    options: dict[str, Any] = {"value_function": "baseline", "recipe": recipe, "random_state": 0, "progress": False}
    with caplog.at_level("WARNING"):
        well = FastSHAP(model, **options).fit(numbers(4000, 6)).report_
    assert well is not None
    assert well.warnings() == []
    assert not caplog.records
    with caplog.at_level("WARNING"):
        badly = FastSHAP(model, **options).fit(numbers(50, 6)).report_
    assert badly is not None
    assert badly.warnings()
    assert badly.warnings()[0] in caplog.text
