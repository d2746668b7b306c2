"""Marginal games of small models that several test modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from problems import numbers
from torch import Tensor

from fastshapley import Targets
from fastshapley.coalitions import enumerate_coalitions
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.estimators import exact
from fastshapley.fit.background_values import background_values
from fastshapley.players import Features, Groups
from fastshapley.training.run import Run
from fastshapley.value_functions import (
    Marginal,
    Problem,
    Removal,
    ValueFunction,
)
from fastshapley.value_functions.background_sampling import (
    Thin,
    thinning,
    unthinned,
)
from fastshapley.value_functions.links import Link

RUN = Run(seed=0)
COLUMNS = 4
BACKGROUND = 12  # rows

Model = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def curved(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Three outputs with interactions between all columns."""
    first = np.tanh(rows[:, 0] * rows[:, 1] + rows[:, 2])
    return np.stack([first, rows.sum(1) ** 2, np.sin(rows[:, 3]) * rows[:, 0] + rows[:, 2]], axis=1)


def additive(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two outputs without interactions."""
    return np.stack([rows @ [1.0, -2.0, 0.5, 0.0], np.sin(rows[:, 0]) + rows[:, 1] ** 2], axis=1)


def task(model: Any, players: Features | Groups | None = None, link: Link = "identity") -> Problem:
    X = numbers(60, COLUMNS)
    schema = TableSchema.of(X)
    x = schema.encode(X)
    bound = (players or Features()).bind(schema.names)
    return Problem(ModelFunction(model, schema, x[:5]), x, x, bound, link)


def game_of(model: Model, players: Features | Groups | None = None, background: int = BACKGROUND) -> Marginal:
    return Marginal(background).fit(task(model, players), RUN)


def thin_of(game: ValueFunction, options: Targets | None, run: Run = RUN) -> Thin:
    return unthinned(game) if options is None else thinning(game, background_values(game, options, 1e-9, run))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def calls_of(game: Removal) -> int:
    assert game.model_ is not None
    return game.model_.evaluations


def values_of(game: ValueFunction, x: Tensor) -> Tensor:
    return torch.from_numpy(exact(game, x).values)


def added_of(game: Marginal, kind: str) -> Tensor | None:
    """Background values: none, the exact Shapley values, or random numbers."""
    if kind == "none":
        return None
    if kind == "right":
        return values_of(game, game.rows_)
    return 3 * torch.randn(len(game.rows_), game.players, game.outputs, generator=generator(7), dtype=torch.float64)


def every(game: ValueFunction, rows: int) -> Tensor:
    return enumerate_coalitions(game.players).expand(rows, -1, -1)
