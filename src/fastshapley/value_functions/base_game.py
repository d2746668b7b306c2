"""What the value functions of this package have in common beyond the protocol.

`GameTraits` are the questions that the rest of the library asks about a game, with the answers for a game of the
user's own. The functions at the end ask them of any game, so that nothing else tests the type of a game.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction, Scale
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.networks.explainer_network import Classes
from fastshapley.training.recipes import Recipe, resolve
from fastshapley.training.run import Run
from fastshapley.value_functions.links import Link
from fastshapley.value_functions.protocol import ValueFunction


@dataclass(frozen=True)
class Problem:
    """What a value function is fitted to.

    Attributes
    ----------
    model : ModelFunction
        The user's model.
    x, x_val : Tensor or Stream
        Encoded rows (n, ...) for training and for validation.
    players : Partition
        The players.
    link : str
        What the game makes of the model's output.
    recipe : Recipe or None
        How networks are trained; None for the default.
    evaluations : float
        The number of further rows that the model may be called with.
    label_time : float
        The share of the time left that calls of the model may take, where a game learns from its outputs.
    surrogate_time : float
        The share of the time left for a surrogate that is only a part of the game.
    choice_calls : float
        The share of the calls left by which games are compared.
    """

    model: ModelFunction
    x: Rows
    x_val: Rows
    players: Partition
    link: Link = "identity"
    recipe: Recipe | None = None
    evaluations: float = math.inf
    label_time: float = 0.5
    surrogate_time: float = 0.5
    choice_calls: float = 0.1

    def resolved_recipe(self) -> Recipe:
        """Return the recipe, by default the one for this kind and amount of data."""
        images = self.model.schema.kind == "image"
        return self.recipe or resolve("default", len(self.x), len(self.players), images=images)


@dataclass(frozen=True)
class GameContext:
    """What a game is restored with, besides its own configuration and tensors.

    Attributes
    ----------
    schema : Schema
        The layout of the rows.
    partition : Partition
        The players.
    device : torch.device
        Where the game runs.
    model : object
        The user's model, if there is one.
    logits : bool
        Whether the model returns logits.
    given : object
        The user's own network or value function, which a file does not hold.
    """

    schema: Schema
    partition: Partition
    device: torch.device
    model: Any = None
    logits: bool = False
    given: Any = None


@dataclass(frozen=True)
class Part:
    """A game that is one of several whose sum is another game.

    Attributes
    ----------
    game : ValueFunction
        The game.
    coalitions : int
        How many coalitions per row its values are estimated from.
    """

    game: ValueFunction
    coalitions: int


class GameTraits:
    """What the rest of the library asks about a game; the defaults are the answers for a game of the user's.

    Attributes
    ----------
    link : str
        What the game makes of the model's output.
    scale : str
        What the outputs are before the link; see `ModelFunction`.
    cost : int
        The number of rows that the model, or a network in its place, is called with for one evaluation.
    concurrent : bool
        Whether several threads may evaluate the game at once.
    is_surrogate : bool
        Whether a network stands in for the model, so that evaluations do not call the model.
    calls_model : bool
        Whether evaluations call a `ModelFunction`, which counts its calls.
    shared_coalitions : int
        The number of rows that should have the same coalitions, because they are evaluated faster together.
    """

    link: Link = "identity"
    scale: Scale = "real"
    cost: int = 1
    concurrent: bool = False
    is_surrogate: bool = False
    calls_model: ClassVar[bool] = False
    shared_coalitions: int = 1

    @property
    def called_model(self) -> ModelFunction | None:
        """The function that evaluations call; None if there is none, or if the game was restored without it."""
        return None

    @property
    def can_be_thinned(self) -> bool:
        """Whether the game is a plain average over rows, so that a few random ones are unbiased."""
        return False

    def thinned(self, coalitions: int, generator: torch.Generator) -> ValueFunction:
        """Return the game at the smallest cost, for a number of coalitions per row and a source of random numbers.

        Only a game that ``can_be_thinned`` and has no fixed background rows is asked.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be thinned")

    def parts(self, coalitions: int) -> tuple[Part, ...]:
        """Return games whose sum this is, for a number of coalitions per row.

        The Shapley values of a sum are the sum of the values, and each part may be estimated in its own way. By
        default the game is its only part.
        """
        return (Part(self, coalitions),)  # type: ignore[arg-type]

    def new_rows(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor | None:
        """Return new rows that could be among the rows ``x``; None if the game knows no distribution of rows."""
        return None

    @property
    def imitation(self) -> ValueFunction | None:
        """The game whose grand values imitate the model's outputs; None if the game has no such part."""
        return None

    def is_game_of(self, model: ModelFunction | None) -> bool:
        """Return whether the grand values are the outputs of this very model."""
        return False

    @property
    def game_errors(self) -> tuple[float, ...] | None:
        """The estimated mean squared error of a row that the exact values of the game have, as values of the model.

        There is one for each output. None if the game does not know it. Zero if the values are defined by the game.
        """
        return None

    @property
    def fidelity_by_size(self) -> dict[str, float] | None:
        """The R2 of the output to the model's on held-out rows, by the share of players that are known."""
        return None

    def tuned_model(self, model: Any) -> Any:
        """Return the user's model, or a copy of it that was trained on inputs with hidden parts."""
        return model

    def weights(self) -> list[Tensor]:
        """Return the trained weights of the game, by which two states of it are told apart."""
        return []


class BaseGame(BaseEstimator, GameTraits, ABC):
    """A value function of this package: it is fitted to a model, and says itself how it is saved and restored.

    A new value function is a file with a subclass, and one line in `fastshapley.value_functions.registry`.

    Attributes
    ----------
    kind : str
        The name of the class in files; ``"custom"`` for a class that a file cannot hold.
    has_short_name : bool
        Whether ``kind`` may also be passed as ``value_function=``.
    fits_together : bool
        Whether several processes fit the game together, each with rows of its own; otherwise all rows are gathered.
    schema_, partition_ : Schema, Partition
        The layout and the players that the game was fitted to.
    """

    kind: ClassVar[str] = "custom"
    has_short_name: ClassVar[bool] = False
    fits_together: ClassVar[bool] = False

    players: int
    outputs: int
    null: Tensor
    schema_: Schema
    partition_: Partition

    @abstractmethod
    def fit(self, problem: Problem, run: Run) -> BaseGame:
        """Learn from the rows of a problem, and return the game.

        Parameters
        ----------
        problem : Problem
            The model, the rows and the players.
        run : Run
            The seed, the time and the place for unfinished work.
        """

    def update(self, problem: Problem, run: Run) -> BaseGame:
        """Return the game for new rows and for the model as it is now; this object stays as it is.

        The arguments are those of `fit`. By default the game does not change.
        """
        return self

    @abstractmethod
    def grand(self, x: Tensor) -> Tensor:
        """Return v(x, 1), (n, outputs)."""

    @abstractmethod
    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs)."""

    def describe(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return what `restore` needs: a configuration of plain JSON values, with the ``"kind"``, and tensors."""
        return {"kind": self.kind}, {}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor], context: GameContext) -> BaseGame:
        """Return the fitted game that `describe` described.

        Parameters
        ----------
        config, tensors
            What `describe` returned.
        context : GameContext
            What a file does not hold.

        Raises
        ------
        FileFormatError
            If something that the user must pass is missing.
        """
        raise NotImplementedError(f"{cls.__name__} cannot be restored")

    @classmethod
    def setting(cls, given: Any) -> Any:
        """Return the value function as a user writes it, so that another fit learns a game of its own.

        Parameters
        ----------
        given : object
            What the user passed to restore the game; None for nothing.
        """
        return given if given is not None else cls.kind if cls.has_short_name else cls()

    def __sklearn_clone__(self) -> Self:
        # The clone of scikit-learn would unfit a fitted model among the parameters.
        return type(self)(**self.get_params(deep=False))


_USERS_GAME = GameTraits()


def _traits(game: ValueFunction) -> GameTraits:
    return game if isinstance(game, GameTraits) else _USERS_GAME


def link_of(game: ValueFunction) -> Link:
    """Return what a game makes of the model's output."""
    return _traits(game).link


def scale_of(game: ValueFunction) -> Scale:
    """Return what the outputs of a game are before the link."""
    return _traits(game).scale


def cost(game: ValueFunction) -> int:
    """Return the number of rows that the model, or a network in its place, is called with for one evaluation."""
    return _traits(game).cost


def shared_coalitions(game: ValueFunction) -> int:
    """Return the number of rows that should have the same coalitions: they are evaluated faster together."""
    return _traits(game).shared_coalitions


def is_concurrent(game: ValueFunction) -> bool:
    """Return whether several threads may evaluate a game at once."""
    return _traits(game).concurrent


def is_noisy(game: ValueFunction) -> bool:
    """Return whether evaluations in training are noisy: few terms of an average."""
    return _traits(game).can_be_thinned


def is_surrogate(game: ValueFunction) -> bool:
    """Return whether a network stands in for the model, so that evaluations do not call the model."""
    return _traits(game).is_surrogate


def called_model(game: ValueFunction) -> ModelFunction | None:
    """Return the model function that evaluations call; None if there is none at hand."""
    return _traits(game).called_model


def calls_model(game: ValueFunction) -> bool:
    """Return whether evaluations call a model function, which counts its calls."""
    return _traits(game).calls_model


def is_game_of(game: ValueFunction, model: ModelFunction | None) -> bool:
    """Return whether the grand values of a game are the outputs of this very model."""
    return _traits(game).is_game_of(model)


def fidelity_by_size_of(game: ValueFunction) -> dict[str, float] | None:
    """Return the R2 of a game's output to the model's by the share of known players; None if it does not know."""
    return _traits(game).fidelity_by_size


def game_errors_of(game: ValueFunction) -> tuple[float, ...] | None:
    """Return the estimated mean squared error of a row of a game's exact values by output; None if unknown."""
    return _traits(game).game_errors


def imitation_of(game: ValueFunction) -> ValueFunction | None:
    """Return the part of a game whose grand values imitate the model's outputs; None if it has no such part."""
    return _traits(game).imitation


def training_game(game: ValueFunction) -> ValueFunction:
    """Return the game that a network learns: where a game calls the model for whole rows only, its imitation."""
    imitation = imitation_of(game)
    return imitation if is_surrogate(game) and imitation is not None else game


def tuned_model(game: ValueFunction, model: Any) -> Any:
    """Return the user's model, or a copy of it that was trained on inputs with hidden parts."""
    return _traits(game).tuned_model(model)


def thinned(game: ValueFunction, coalitions: int, generator: torch.Generator) -> ValueFunction:
    """Return a game at the smallest cost, for a number of coalitions per row and a source of random numbers."""
    return _traits(game).thinned(coalitions, generator)


def parts_of(game: ValueFunction, coalitions: int) -> tuple[Part, ...]:
    """Return games whose sum a game is, for a number of coalitions per row."""
    return game.parts(coalitions) if isinstance(game, GameTraits) else (Part(game, coalitions),)


def new_rows_of(game: ValueFunction, x: Tensor, count: int, generator: torch.Generator) -> Tensor | None:
    """Return new rows that could be among the rows ``x``; None if the game knows no distribution of rows."""
    return _traits(game).new_rows(x, count, generator)


def weights_of(game: ValueFunction) -> list[Tensor]:
    """Return the trained weights of a game, by which two states of it are told apart."""
    return _traits(game).weights()


def classes_of(game: ValueFunction) -> Classes:
    """Return what is known about the values of the outputs: those of probabilities sum to zero over the classes."""
    if scale_of(game) != "probabilities" or link_of(game) == "log":
        return "free"
    if game.outputs == 2:
        return "mirror"
    return "zero-sum" if link_of(game) == "identity" else "free"


def is_fitted(value_function: Any) -> bool:
    """Return whether an object can be evaluated as a game."""
    if isinstance(value_function, type):
        return False
    return hasattr(value_function, "players") and hasattr(value_function, "outputs")
