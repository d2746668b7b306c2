"""A budget of evaluations, and how it is shared out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction
from fastshapley.errors import InputError
from fastshapley.training.recipes import Recipe
from fastshapley.value_functions.background_sampling import can_be_thinned
from fastshapley.value_functions.base_game import called_model, calls_model, cost, is_surrogate
from fastshapley.value_functions.protocol import ValueFunction

_TRAINING, _REPORT = 0.65, 0.15  # of the evaluations; the others choose the best epoch, or are nulls and grands
_LABELS = 20  # outputs of the model, for a surrogate
_FEWEST = 1000  # evaluations of a game that teach anything at all


def check_budget(evaluations: float | None, trial: int) -> None:
    """Whether a budget does for trying the model out with ``trial`` rows, and for learning anything."""
    if evaluations is not None and evaluations < trial + _LABELS:
        raise InputError(
            f"evaluation_budget is {evaluations}: at least {trial + _LABELS} are needed to try the model out, to "
            "learn from it and to measure the error"
        )


@dataclass(frozen=True)
class Budget:
    """How many rows the user's model may be called with in all, None for as many as it takes.

    Of a game of the user's own, which hides its model, it is how many coalitions may be evaluated. Those of a
    surrogate, which stands in for the model, are free.
    """

    evaluations: int | None
    counted: tuple[tuple[ModelFunction, int], ...] = ()  # models, and how often each had been called before

    def left(self) -> float:
        if self.evaluations is None:
            return math.inf
        return max(0.0, self.evaluations - sum(model.evaluations - before for model, before in self.counted))

    def counting(self, game: ValueFunction) -> Budget:
        """The budget that also counts the calls of a game's own model, if it was given fitted."""
        model = called_model(game)
        if model is None or model in dict(self.counted):
            return self
        return replace(self, counted=(*self.counted, (model, model.evaluations)))

    def reserve(self, x: Tensor) -> int:
        """How many of the rows ``x`` to leave evaluations for: a quarter of them at most."""
        return int(min(len(x), self.left() / 4))

    def for_report(self, game: ValueFunction) -> float:
        """How many evaluations the report may take."""
        if self.evaluations is None or is_surrogate(game):
            return math.inf
        return self.left() if calls_model(game) else _REPORT * self.evaluations

    def for_errors(self, game: ValueFunction) -> float:
        """How many evaluations may be spent on learning how far values are off."""
        if self.evaluations is None or is_surrogate(game):
            return math.inf
        return self.left() / 2 if calls_model(game) else 0.0

    def bound(self, recipe: Recipe, game: ValueFunction) -> Recipe:
        """The recipe with no more evaluations than are left."""
        if self.evaluations is None or is_surrogate(game) or game.players == 1:
            return recipe
        if recipe.targets is None:
            raise InputError(
                "evaluation_budget: this recipe draws fresh coalitions in every step, and has no end of them; "
                "use recipe='default', or a time_budget"
            )
        each = 1 if can_be_thinned(game) else cost(game)
        if self.left() < _FEWEST * each:
            raise InputError(
                f"evaluation_budget is {self.evaluations}, and {self.left():.0f} are left for a game that takes "
                f"{each} for each coalition: at least {_FEWEST * each} are needed"
            )
        evaluations = int(min(recipe.targets.evaluations, _TRAINING * self.left()))
        return replace(recipe, targets=replace(recipe.targets, evaluations=evaluations))
