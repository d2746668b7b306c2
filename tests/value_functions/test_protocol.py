"""Tests of evaluating value functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from game_problems import RUN, encoded, normal_frame, problem
from games import Moebius
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.value_functions import (
    Baseline,
    Marginal,
    Missing,
    Surrogate,
    ValueFunction,
    evaluate,
    grand_values,
    null_values,
)
from fastshapley.value_functions.links import Link


@pytest.mark.parametrize("link", ["identity", "logit"])
@pytest.mark.parametrize("kind", ["surrogate", "marginal", "baseline", "missing"])
def test_null_and_grand_are_the_values_of_the_empty_and_full_coalition(kind: str, link: Link) -> None:
    X = normal_frame()
    model = HistGradientBoostingClassifier(max_iter=5).fit(X, X.a > 0)
    games: dict[str, Any] = {
        "surrogate": Surrogate(training=()),
        "marginal": Marginal(5),
        "baseline": Baseline(),
        "missing": Missing(),
    }
    game = games[kind].fit(problem(model, X, link=link), RUN)
    assert isinstance(game, ValueFunction)
    x = encoded(X[:5])
    s = torch.zeros(5, 2, 4, dtype=torch.bool)
    s[:, 1] = True
    v = evaluate(game, x, s)
    torch.testing.assert_close(null_values(game, x), v[:, 0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(grand_values(game, x), v[:, 1], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(v[:, 0], v[:, 1])


def test_a_custom_game_needs_no_null_or_grand() -> None:
    game = Moebius.random(3, outputs=2)
    x = game.rows(4)
    assert not null_values(game, x).any()
    torch.testing.assert_close(grand_values(game, x), x @ game.dividends)


class Users:
    players, outputs = 2, 1

    def __init__(self, result: Any, null: Any = None) -> None:
        self.result, self.null = result, null

    def __call__(self, x: Tensor, s: Tensor) -> Any:
        return self.result

    def grand(self, x: Tensor) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(3, 4), r"returned \(3, 4\): expected a tensor of shape \(3, 4, 1\)"),
        (np.zeros((3, 4, 1)), "returned a ndarray"),
        (
            torch.tensor([0.0, torch.nan, torch.inf])[:, None, None].expand(3, 4, 1),
            r"not finite for 2 rows, numbers \[1, 2\]",
        ),
    ],
    ids=["shape", "type", "not finite"],
)
def test_evaluate_refuses_invalid_results(result: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(Users(result), torch.zeros(3, 2), torch.zeros(3, 4, 2, dtype=torch.bool))


def test_invalid_null_and_grand_values_are_refused() -> None:
    game = Users(torch.zeros(3, 2), null=torch.zeros(2))
    with pytest.raises(InputError, match=r"null has shape \(2,\) where \(1,\)"):
        null_values(game, torch.zeros(3, 2))
    with pytest.raises(InputError, match=r"grand .* returned \(3, 2\): expected a tensor of shape \(3, 1\)"):
        grand_values(game, torch.zeros(3, 2))


def test_values_do_not_require_gradients() -> None:
    game = Users(torch.zeros(1, 1, requires_grad=True))
    assert not grand_values(game, torch.zeros(1, 2)).requires_grad
