"""Tests of parameter validation: the error for an invalid parameter names the parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from games import Additive

from fastshapley.fit.settings import Settings
from fastshapley.value_functions import Marginal, Surrogate
from fastshapley.value_functions.base_game import is_fitted


def model(rows: Any) -> Any:
    return rows[:, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": "sometimes"}, r"normalize is 'sometimes': use 'always'"),
        ({"link": "probit"}, r"link is 'probit': use one of"),
        ({"penalty": -1}, r"penalty is -1: use a number that is not negative"),
        ({"players": 3}, r"players is 3: use Groups"),
        ({"output_names": "yes"}, r"output_names is 'yes': use a list of strings"),
        ({"output_names": ["no", 1]}, r"output_names is \['no', 1\]: use a list of strings"),
        ({"output_names": ["no", "no"]}, r"output_names is .*: each name must be different"),
        ({"recipe": "quick"}, r"recipe is 'quick': use 'default'"),
        ({"time_budget": 0}, r"time_budget is 0: use a positive number"),
        ({"evaluation_budget": "many"}, r"evaluation_budget is 'many'"),
    ],
)
def test_the_error_for_an_invalid_parameter_names_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(model, **options).check("surrogate")


@pytest.mark.parametrize("game", ["copula", Marginal, object()])
def test_an_unknown_value_function_is_refused(game: Any) -> None:
    with pytest.raises(ValueError, match=r"value_function is .* use one of"):
        Settings(model).check(game)


def test_a_model_is_needed_unless_the_game_is_fitted() -> None:
    Settings().check(Additive(3))
    with pytest.raises(ValueError, match=r"model is None: pass the model"):
        Settings().check(Surrogate())


def test_is_fitted_is_true_only_for_games_that_can_be_evaluated() -> None:
    assert is_fitted(Additive(3))
    assert not is_fitted(Additive)
    assert not is_fitted(Surrogate())


def test_the_device_is_the_given_one_or_the_default() -> None:
    assert Settings(device="meta").resolved_device() == torch.device("meta")
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert Settings().resolved_device().type == expected
