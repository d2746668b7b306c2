"""Whose output the values of a game sum to, and whether the game can be evaluated."""

from __future__ import annotations

from typing import Literal

from fastshapley.errors import ModelError
from fastshapley.value_functions.base_game import called_model, calls_model, imitation_of
from fastshapley.value_functions.protocol import ValueFunction

SumsTo = Literal["model", "surrogate", "game"]


def sums_to(game: ValueFunction, *, known: bool = False) -> SumsTo:
    """Return whose output, minus its mean, the values of a game sum to.

    Parameters
    ----------
    game : ValueFunction
        The game.
    known : bool, default=False
        Whether the model's outputs are given.
    """
    return "model" if known or called_model(game) is not None else graph_sums_to(game)


def graph_sums_to(game: ValueFunction) -> SumsTo:
    """Return whose output the values of an exported graph sum to; a graph never holds the model."""
    if imitation_of(game) is not None:
        return "surrogate"
    return "model" if calls_model(game) else "game"


def check_evaluable(game: ValueFunction) -> None:
    """Check that a game which calls the model has it.

    Raises
    ------
    ModelError
        If the game was restored without its model.
    """
    if calls_model(game) and called_model(game) is None:
        raise ModelError(
            f"the {type(game).__name__.lower()} value function calls the model, which a file does not hold: use "
            "FastSHAP.load(path, model=model). budget, tol, max_evals and estimate evaluate the value function"
        )
