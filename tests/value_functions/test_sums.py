"""Tests of whose output the values of a game sum to."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Exported
from games import Additive
from problems import explainer, numbers

from fastshapley import FastSHAP
from fastshapley.errors import ModelError
from fastshapley.value_functions.sums import check_evaluable, graph_sums_to, sums_to


def test_values_of_a_conditional_game_sum_to_the_model_if_it_is_there(conditional: Exported) -> None:
    there, absent = conditional.explainer.value_function_, FastSHAP.load(conditional.saved).value_function_
    assert sums_to(there) == sums_to(absent, known=True) == "model"
    assert sums_to(absent) == graph_sums_to(there) == "surrogate"


def test_values_of_other_games_sum_to_what_they_know(exported: Exported) -> None:
    surrogate, users = exported.explainer.value_function_, Additive(3)
    assert sums_to(surrogate) == graph_sums_to(surrogate) == "surrogate"
    assert sums_to(users) == graph_sums_to(users) == "game"


def test_values_of_a_game_that_only_the_model_can_evaluate_always_sum_to_the_model(tmp_path: Path) -> None:
    X = numbers()
    fitted = explainer(lambda rows: rows[:, 0], value_function="baseline").fit(X)
    fitted.save(tmp_path / "file")
    for game in (fitted.value_function_, FastSHAP.load(tmp_path / "file").value_function_):
        assert sums_to(game) == graph_sums_to(game) == "model"


def test_a_game_without_its_model_cannot_be_evaluated(conditional: Exported, exported: Exported) -> None:
    check_evaluable(conditional.explainer.value_function_)
    check_evaluable(FastSHAP.load(exported.saved).value_function_)  # a surrogate needs no model
    with pytest.raises(ModelError, match=r"conditional value function calls the model.*FastSHAP.load\(path, model"):
        check_evaluable(FastSHAP.load(conditional.saved).value_function_)
