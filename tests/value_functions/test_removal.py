"""Tests of the common behaviour of games that call the user's model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from game_problems import RUN, encoded, every, normal_frame, problem
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fastshapley.errors import ModelError
from fastshapley.players import Groups
from fastshapley.value_functions import (
    Baseline,
    Marginal,
    grand_values,
    null_values,
)
from fastshapley.value_functions.base_game import GameContext


@pytest.fixture(scope="module")
def classifier() -> Any:
    X = normal_frame()
    return LogisticRegression().fit(X, (X.a * X.b + X.c > 0).astype(int) + (X.d > 1))


def test_mixed_rows_are_built_in_chunks(classifier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    game = Marginal(5).fit(problem(classifier, normal_frame()), RUN)
    x = encoded(normal_frame())
    whole = game(x, every(4, len(x)))
    monkeypatch.setattr("fastshapley.value_functions.removal.MEMORY", 1000)
    torch.testing.assert_close(game(x, every(4, len(x))), whole, rtol=0, atol=1e-14)


def game_with_repeats(players: int, kind: Baseline | Marginal) -> tuple[Any, list[Any], Tensor, Tensor]:
    """A game, the rows that its model is called with, and rows with repeated coalitions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, players))
    seen: list[Any] = []
    weight = rng.normal(size=(players, 2))

    def model(rows: Any) -> Any:
        seen.append(np.array(rows))
        return np.tanh(rows @ weight)

    task = problem(model, X)
    game = kind.fit(task, RUN)
    seen.clear()
    s = torch.from_numpy(rng.random((5, 7, players)) < 0.5)
    s[0, 0], s[0, 1], s[1, 0] = True, False, s[0, 2]  # the same coalition in different rows is not a repeat
    s[2, 1] = s[2, 0]
    s[2, 1, -1] = ~s[2, 0, -1]  # only the last player differs
    s[2, 2] = s[2, 0]
    s[2, 2, 0] = ~s[2, 0, 0]  # only the first player differs
    order = torch.from_numpy(rng.permutation(21))
    return game, seen, task.x[:5], s.repeat(1, 3, 1)[:, order]


@pytest.mark.parametrize("players", [3, 4, 8, 9, 63, 64, 65, 130])
@pytest.mark.parametrize("kind", [Baseline(), Marginal(4)], ids=["baseline", "marginal"])
def test_a_repeated_coalition_of_a_row_is_evaluated_once_per_call(players: int, kind: Baseline | Marginal) -> None:
    game, seen, x, s = game_with_repeats(players, kind)
    v = game(x, s)
    distinct = sum(len(row.unique(dim=0)) for row in s)
    assert distinct < s[..., 0].numel()
    assert sum(map(len, seen)) == distinct * game.cost
    alone = torch.stack(
        [torch.cat([game(x[i : i + 1], s[i : i + 1, j : j + 1]) for j in range(21)], 1)[0] for i in range(5)]
    )
    torch.testing.assert_close(v, alone, rtol=0, atol=1e-14)


def test_grand_values_of_no_rows_are_empty(classifier: Any) -> None:
    game = Baseline().fit(problem(classifier, normal_frame()), RUN)
    x = encoded(normal_frame()[:3])
    assert game.grand(x[:0]).shape == (0, 3)


def test_the_columns_of_a_group_are_hidden_together(classifier: Any) -> None:
    X = normal_frame()
    alone = Baseline().fit(problem(classifier, X), RUN)
    grouped = Baseline().fit(problem(classifier, X, Groups({"ac": ["a", "c"]})), RUN)
    assert grouped.players == 3
    x = encoded(X[:3])
    s = every(3, 3)
    torch.testing.assert_close(grouped(x, s), alone(x, s[..., [0, 1, 0, 2]]))


def test_the_error_of_a_game_without_its_model_tells_how_to_pass_it(classifier: Any) -> None:
    game = Baseline().fit(problem(classifier, normal_frame()), RUN)
    context = GameContext(game.schema_, game.partition_, torch.device("cpu"))
    alone = Baseline.restore(*game.describe(), context)
    assert torch.equal(null_values(alone, game.rows_), game.null[None])
    with pytest.raises(ModelError, match=r"load\(path, model=model\)"):
        grand_values(alone, game.rows_)
