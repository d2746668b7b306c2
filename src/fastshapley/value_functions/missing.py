"""The game of missing values: hidden entries are missing."""

from __future__ import annotations

from typing import Any, Self

from fastshapley.data.model_adapter import ModelFunction, trial_rows
from fastshapley.errors import ModelError
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import BaseGame, Problem
from fastshapley.value_functions.removal import Removal


class Missing(Removal):
    """Hidden entries are missing, for a model that was trained on rows with gaps.

    Parameters
    ----------
    model : object, optional
        A fitted model that stands in for the user's model, as a surrogate; by default the user's model itself.
    """

    kind = "missing"

    def __init__(self, model: Any = None) -> None:
        self.model = model

    def fit(self, problem: Problem, run: Run) -> Self:
        """Return the game.

        Raises
        ------
        InputError
            If the data have no gaps, as images, or the outputs do not suit the link.
        ModelError
            If the model that stands in has another number of outputs.
        """
        model, gaps = problem.model, problem.model.schema.missing_row(problem.x)
        if self.model is not None:
            model = ModelFunction(self.model, model.schema, trial_rows(problem.x))
            if model.outputs != problem.model.outputs:
                raise ModelError(
                    f"the surrogate has {model.outputs} outputs where the model has {problem.model.outputs}"
                )
        return self.assemble(model, gaps, problem.players, problem.link)

    def update(self, problem: Problem, run: Run) -> BaseGame:
        """Return the game of the model as it is now; a model that stands in stays as it is."""
        return self if self.model is not None else super().update(problem, run)
