"""How much of the truth a report is measured against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from games import Additive
from problems import numbers

from fastshapley.models import ModelFunction
from fastshapley.players import Features
from fastshapley.report import true_values
from fastshapley.schema import Schema
from fastshapley.training import Run
from fastshapley.value_functions import Marginal, Problem


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
    schema = Schema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: np.sin(rows).prod(1), schema, x[:10])
    game = Marginal(background).fit(Problem(model, x, x, Features().bind(schema.names)), Run(0))
    before = model.evaluations
    found = true_values(game, x, 0, **options)
    assert found is not None
    assert 10_000 <= model.evaluations - before <= 20_000


def test_no_time_gives_no_truth() -> None:
    X = numbers(100)
    schema = Schema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: rows[:, 0], schema, x[:10])
    game = Marginal(10).fit(Problem(model, x, x, Features().bind(schema.names)), Run(0))
    before = model.evaluations
    assert true_values(game, x, 0, calls=math.inf, pace=1.0, seconds=15 * 10) is None  # of 16 coalitions
    assert model.evaluations == before


def test_of_few_players_all_coalitions_are_the_cheapest_truth() -> None:
    """Three players have 8 coalitions: 20 rows exactly rather than one by sampling."""
    game = Additive(3)
    found = true_values(game, game.rows(128), 0, calls=163, pace=1e-9, seconds=60.0)
    assert found is not None
    rows, truth, how = found
    assert len(rows) == 20
    assert how.startswith("exact")
    assert truth.stderr.max() == 0
