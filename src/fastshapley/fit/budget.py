"""How a fit divides its time and its evaluations. Every share of either is in this file.

A fit goes through setup, game, network, error bars and report. With ``time_budget``, each phase gets a share of the
time that is left when it starts, so that a phase that ends early leaves its time to the later ones:

===================  ======================================================================================
``GAME_TIME``        training the surrogate; half of it may be spent on calling the model (``LABEL_TIME``)
``NETWORK_TIME``     evaluating coalitions and training the explainer network
``VALIDATION_TIME``  share of the network's time for the coalitions that choose the best epoch
``COALITION_TIME``   share of the network's time for the coalitions that it learns from
``ERROR_BAR_TIME``   learning the error bars, after the network
the rest             the report
===================  ======================================================================================

With ``evaluation_budget``, a game of the model's own is given ``TRAINING_EVALUATIONS`` of what is left for the
network's coalitions, a tenth of these (``VALIDATION_EVALUATIONS``) for validation, half of the rest for the error
bars (``ERROR_BAR_EVALUATIONS``), and what is then left for the report. Evaluating a surrogate calls no model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction
from fastshapley.errors import InputError
from fastshapley.training.recipes import Recipe, Targets
from fastshapley.value_functions.background_sampling import can_be_thinned
from fastshapley.value_functions.base_game import called_model, calls_model, cost, is_surrogate
from fastshapley.value_functions.protocol import ValueFunction

# Shares of the time that is left when a phase starts.
GAME_TIME = 0.4  # to train the surrogate
LABEL_TIME = 0.5  # share of the surrogate's time for calling the model
NETWORK_TIME = 0.85  # to evaluate coalitions and train the explainer network
LEAST_NETWORK_TIME = 0.5  # the same, where the report needs more time than usual
TRIAL_TIME = 0.02  # share of the time in which some coalitions may be evaluated to find that out
VALIDATION_TIME = 0.1  # share of the network's time for the coalitions that choose the best epoch
COALITION_TIME = 0.4  # share of the network's time for the coalitions that it learns from
ERROR_BAR_TIME = 0.5  # share of the time after the network; the report has the rest

# Shares of `Targets.seconds`, which bounds the time for coalitions without a time_budget.
VALIDATION_SECONDS = 1 / 120  # evaluating the validation coalitions

# Shares of the evaluations that are left.
RESERVED_EVALUATIONS = 0.25  # kept back from the surrogate's labels, for the report
TRAINING_EVALUATIONS = 0.65  # for the coalitions that the network learns from
VALIDATION_EVALUATIONS = 0.1  # share of the training evaluations for the coalitions that choose the best epoch
BACKGROUND_EVALUATIONS = 0.025  # share of the training evaluations for each of two looks at the background rows
ERROR_BAR_EVALUATIONS = 0.5  # share of what is left after training
REPORT_EVALUATIONS = 0.15  # share of the whole budget, for games of the user's own, whose calls we do not count

SAMPLING_EFFORT = 0.05  # share of the usual error bar evaluations where no network is trained
FEWEST_LABELS = 20  # model outputs that a surrogate needs
FEWEST_EVALUATIONS = 1000  # evaluations that a network needs to learn anything


def check_budget(evaluations: float | None, trial: int) -> None:
    """Check that a budget is enough to try the model on ``trial`` rows and to learn anything.

    Raises
    ------
    InputError
        If it is not.
    """
    if evaluations is not None and evaluations < trial + FEWEST_LABELS:
        raise InputError(
            f"evaluation_budget is {evaluations}: at least {trial + FEWEST_LABELS} are needed to try the model, to "
            "learn from it and to measure the error"
        )


def validation_rows(value_function: ValueFunction, recipe: Recipe) -> int:
    """Return how many validation rows the evaluations of a recipe allow."""
    if recipe.targets is None:
        return recipe.validation_rows
    evaluations = recipe.targets.evaluations // round(1 / VALIDATION_EVALUATIONS)
    affordable = evaluations // (cost(value_function) * recipe.validation_coalitions)
    return min(recipe.validation_rows, max(1, affordable))


def validation_seconds(targets: Targets | None, left: float) -> float:
    """Return the time for validation coalitions, if ``left`` seconds are left."""
    most = math.inf if targets is None else VALIDATION_SECONDS * targets.seconds
    return min(most, VALIDATION_TIME * left)


def coalition_seconds(targets: Targets, left: float) -> float:
    """Return the time for the coalitions that a network learns from, if ``left`` seconds are left."""
    return min(targets.seconds, COALITION_TIME * left)


@dataclass(frozen=True)
class Budget:
    """How many rows the user's model may be called with.

    For a game of the user's own, which hides its model, coalitions are counted instead. Evaluations of a surrogate,
    which stands in for the model, are free.

    Attributes
    ----------
    evaluations : int or None
        The limit. None means that there is none.
    counted : tuple of (ModelFunction, int)
        Models whose calls count, and how often each had been called before the fit.
    """

    evaluations: int | None
    counted: tuple[tuple[ModelFunction, int], ...] = ()

    def left(self) -> float:
        """Return how many evaluations are left, at least 0."""
        if self.evaluations is None:
            return math.inf
        return max(0.0, self.evaluations - sum(model.evaluations - before for model, before in self.counted))

    def counting(self, game: ValueFunction) -> Budget:
        """Return the budget that also counts the calls of the model of a game that was passed in fitted."""
        model = called_model(game)
        if model is None or model in dict(self.counted):
            return self
        return replace(self, counted=(*self.counted, (model, model.evaluations)))

    def for_labels(self, report_rows: Tensor) -> float:
        """Return how many rows may be labelled for a surrogate; some are kept back for the report."""
        return self.left() - int(min(len(report_rows), RESERVED_EVALUATIONS * self.left()))

    def for_report(self, game: ValueFunction) -> float:
        """Return how many evaluations the report may take."""
        if self._is_free(game):
            return math.inf
        return self.left() if calls_model(game) else REPORT_EVALUATIONS * (self.evaluations or 0)

    def for_error_bars(self, game: ValueFunction) -> float:
        """Return how many evaluations may be spent on learning the error bars."""
        if self._is_free(game):
            return math.inf
        return ERROR_BAR_EVALUATIONS * self.left() if calls_model(game) else 0.0

    def bound(self, recipe: Recipe, game: ValueFunction) -> Recipe:
        """Return the recipe with no more evaluations than are left.

        Raises
        ------
        InputError
            If the recipe has no limit of evaluations, or if too few are left to learn anything.
        """
        if self._is_free(game) or game.players == 1:
            return recipe
        if recipe.targets is None:
            raise InputError(
                "evaluation_budget: this recipe draws fresh coalitions in every step, without a limit. Use "
                "recipe='default', or a time_budget"
            )
        each = 1 if can_be_thinned(game) else cost(game)
        if self.left() < FEWEST_EVALUATIONS * each:
            raise InputError(
                f"evaluation_budget is {self.evaluations}, and {self.left():.0f} are left for a game that takes "
                f"{each} per coalition: at least {FEWEST_EVALUATIONS * each} are needed"
            )
        evaluations = int(min(recipe.targets.evaluations, TRAINING_EVALUATIONS * self.left()))
        return replace(recipe, targets=replace(recipe.targets, evaluations=evaluations))

    def _is_free(self, game: ValueFunction) -> bool:
        return self.evaluations is None or is_surrogate(game)
