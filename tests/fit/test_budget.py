"""Tests of the evaluation budget of a fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from games import Additive
from problems import QUICK, numbers

from fastshapley import Targets
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.fit.budget import Budget
from fastshapley.players import Features
from fastshapley.training.run import Run
from fastshapley.value_functions import BaseGame, Baseline, Marginal, Problem, Surrogate

X = numbers(60)
WASTEFUL = replace(QUICK, targets=Targets(evaluations=10**9))


def game_of(kind: Any) -> tuple[BaseGame, ModelFunction]:
    schema = TableSchema.of(X)
    x = schema.encode(X)
    model = ModelFunction(lambda rows: rows[:, 0], schema, x[:20])
    return kind.fit(Problem(model, x, x, Features().bind(schema.names)), Run(0)), model


def evaluations(budget: Budget, game: Any) -> int:
    targets = budget.bound(WASTEFUL, game).targets
    assert targets is not None
    return targets.evaluations


def test_without_a_budget_evaluations_are_not_limited() -> None:
    game, model = game_of(Baseline())
    budget = Budget(None, ((model, 0),))
    assert budget.left() == math.inf
    assert budget.for_report(game) == math.inf
    assert budget.bound(WASTEFUL, game) is WASTEFUL
    assert budget.bound(replace(QUICK, targets=None), game).targets is None


def test_evaluations_of_the_model_are_subtracted_from_the_budget() -> None:
    game, model = game_of(Baseline())
    budget = Budget(5000, ((model, 0),))
    assert budget.left() == 5000 - 20 - 1  # the first call of the model and the baseline row
    game(game.schema_.encode(X)[:], torch.ones(60, 1, 4, dtype=torch.bool))
    assert budget.left() == 5000 - 20 - 1 - 60
    assert Budget(50, ((model, 0),)).left() == 0


@pytest.mark.parametrize("kind", [Baseline(), Marginal(3)], ids=["baseline", "marginal"])
def test_training_and_the_report_share_the_remaining_budget(kind: Any) -> None:
    game, model = game_of(kind)
    budget = Budget(10_000, ((model, 0),))
    left = budget.left()
    assert 0.5 * left < evaluations(budget, game) < 0.9 * left
    assert budget.for_report(game) == left
    assert evaluations(Budget(10**12, ((model, 0),)), game) == 10**9  # the limit of the recipe


def test_an_infinite_budget_does_not_limit_the_recipe() -> None:
    game, model = game_of(Baseline())
    assert evaluations(Budget(math.inf, ((model, 0),)), game) == 10**9  # type: ignore[arg-type]


def test_evaluations_of_a_fitted_surrogate_are_free() -> None:
    game, model = game_of(Surrogate(training=()))
    budget = Budget(50, ((model, 0),))
    assert budget.bound(WASTEFUL, game) is WASTEFUL
    assert budget.for_report(game) == math.inf
    assert budget.bound(replace(QUICK, targets=None), game).targets is None


def test_a_custom_game_costs_one_evaluation_per_coalition() -> None:
    game = Additive(4)
    budget = Budget(10_000)
    assert budget.left() == 10_000
    learning = evaluations(budget, game)
    assert 5000 < learning < 10_000
    assert 0 < budget.for_report(game) <= 10_000 - learning


@pytest.mark.parametrize(("kind", "cost"), [(Baseline(), 1), (Marginal(3), 1)], ids=["baseline", "marginal"])
def test_a_budget_below_the_minimum_is_refused(kind: Any, cost: int) -> None:
    game, model = game_of(kind)
    gone = model.evaluations
    assert evaluations(Budget(1000 * cost + gone, ((model, 0),)), game) > 0
    message = f"evaluation_budget is {1000 * cost + gone - 1}, .* at least {1000 * cost} are needed"
    with pytest.raises(InputError, match=message):
        Budget(1000 * cost + gone - 1, ((model, 0),)).bound(WASTEFUL, game)
    with pytest.raises(InputError, match=r"evaluation_budget is 999"):
        Budget(999).bound(WASTEFUL, Additive(4))


def test_a_recipe_with_unlimited_evaluations_is_refused() -> None:
    game, model = game_of(Baseline())
    with pytest.raises(InputError, match=r"evaluation_budget: .*fresh coalitions.* or a time_budget"):
        Budget(10**6, ((model, 0),)).bound(replace(QUICK, targets=None), game)
