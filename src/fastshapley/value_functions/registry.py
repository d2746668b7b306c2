"""The value functions by name, for users' short names and for files. A new one needs one line here."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone
from torch import Tensor

from fastshapley.errors import FileFormatError
from fastshapley.value_functions.base_game import BaseGame, GameContext
from fastshapley.value_functions.baseline import Baseline
from fastshapley.value_functions.conditional import Conditional
from fastshapley.value_functions.marginal import Marginal
from fastshapley.value_functions.missing import Missing
from fastshapley.value_functions.protocol import ValueFunction
from fastshapley.value_functions.surrogate import Surrogate

GAMES: dict[str, type[BaseGame]] = {
    game.kind: game for game in (Conditional, Surrogate, Marginal, Baseline, Missing)
}
AUTO = "auto"  # the value function that suits the data, see `automatic_game`
SHORT_NAMES = tuple(kind for kind, game in GAMES.items() if game.has_short_name)


def automatic_game(kind: str, recipe: Any) -> str:
    """Return the name of the default value function.

    Parameters
    ----------
    kind : str
        The kind of the data.
    recipe : object
        The recipe as a user passes it. The paper's has the paper's game.
    """
    return Conditional.kind if kind == "table" and recipe != "paper" else Surrogate.kind


def new_game(value_function: str | BaseGame) -> BaseGame:
    """Return a game that is not fitted: that of a short name, or a copy of an object."""
    if isinstance(value_function, str):
        return GAMES[value_function]()
    copy: BaseGame = clone(value_function)
    return copy


def describe_game(game: ValueFunction) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a file holds of a game: a configuration of plain JSON values, and tensors."""
    return game.describe() if isinstance(game, BaseGame) else ({"kind": BaseGame.kind}, {})


def restore_game(config: dict[str, Any], tensors: dict[str, Tensor], context: GameContext) -> Any:
    """Return the game that `describe_game` described.

    Parameters
    ----------
    config, tensors
        What `describe_game` returned.
    context : GameContext
        What a file does not hold.

    Raises
    ------
    FileFormatError
        If something that the user must pass is missing.
    """
    if config["kind"] in GAMES:
        return GAMES[config["kind"]].restore(config, tensors, context)
    if context.given is None:
        raise FileFormatError("the explainer's value function is an object of your own: pass it as value_function=")
    return context.given


def setting_of(config: dict[str, Any], given: Any) -> Any:
    """Return a value function of a file as a user writes it, so that another fit learns a game of its own.

    Parameters
    ----------
    config : dict
        The configuration that `describe_game` returned.
    given : object
        What the user passed to restore the game; None for nothing.
    """
    return GAMES[config["kind"]].setting(given) if config["kind"] in GAMES else given
