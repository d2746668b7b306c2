"""Values of encoded rows with standard errors, corrected by evaluations, or anchored to the model's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.explain.anchoring import Anchor, ModelOutputs, anchor_values
from fastshapley.explain.correction import Correction, correct
from fastshapley.fit.fitted import Fitted
from fastshapley.value_functions.base_game import called_model, calls_model
from fastshapley.value_functions.protocol import grand_values


@dataclass(frozen=True)
class Precision:
    """What is asked for besides the network's own values. The options are those of a call of `FastSHAP`.

    Attributes
    ----------
    errors : bool or "game"
        Whether there are standard errors, about the Shapley values of the model or of the game.
    budget : int or None
        Evaluations per row, on average, to correct the values with.
    tol : float or None
        The largest standard error that is accepted, as a share of the range of a row's values.
    anchor : {"game", "model"}
        Whose output the values sum to.

    Raises
    ------
    InputError
        If an option has a value that it cannot have.
    """

    errors: bool | Literal["game"] = False
    budget: int | None = None
    tol: float | None = None
    anchor: Literal["game", "model"] = "game"

    def __post_init__(self) -> None:
        if self.errors not in (True, False, "game"):
            raise InputError(f"errors is {self.errors!r}: use True, False or 'game'")
        if self.budget is not None and not self.budget >= 1:
            raise InputError(f"budget is {self.budget}: pass the evaluations per row, at least 1")
        if self.tol is not None and not self.tol > 0:
            raise InputError(f"tol is {self.tol}: pass a positive share of the range of a row's values")
        if self.anchor not in ("game", "model"):
            raise InputError(f"anchor is {self.anchor!r}: use 'game' or 'model'")

    @property
    def gives_errors(self) -> bool:
        """Whether the values have standard errors."""
        return bool(self.errors) or self.budget is not None or self.tol is not None

    @property
    def is_usual(self) -> bool:
        """Whether nothing is asked for but the network's own values."""
        return not self.gives_errors and self.anchor == "game"


def precise_values(outputs: ModelOutputs, x: Tensor, precision: Precision, seed: int) -> tuple[Tensor, ...]:
    """Explain encoded rows.

    Parameters
    ----------
    outputs : ModelOutputs
        The explainer, and the user's model.
    x : Tensor of shape (n, columns)
        The encoded rows.
    precision : Precision
        What is asked for.
    seed : int
        The seed of the coalitions. These also depend on the rows.

    Returns
    -------
    values : Tensor
        Values (n, players, outputs).
    base, predictions : Tensor
        Base values, and what the values and base values sum to, (n, outputs).
    stderr : Tensor
        Standard errors (n, players, outputs), if they were asked for. They are NaN for rows outside of the range of
        the training rows that were not corrected.

    Raises
    ------
    InputError
        If the explainer has no error bars, or the game has no model to be anchored to.
    """
    fitted = outputs.fitted
    values, base, stderr = *fitted.forward(x, grand=_grand(outputs, x, precision)), None
    if precision.gives_errors:
        correction = Correction(precision.budget, precision.tol, random_state=seed, warns=False)
        values, stderr = correct(fitted, x, values, correction)
    if precision.anchor == "model":
        values, base, added = anchor_values(Anchor(outputs, random_state=seed), x, values, base)
        stderr = None if stderr is None else (stderr.square() + added).sqrt()
    predictions = base + values.sum(1) if fitted.normalized else grand_values(fitted.game, x)
    if stderr is None:
        return values, base, predictions
    return values, base, predictions, about_model(fitted, stderr) if precision.errors != "game" else stderr


def about_model(fitted: Fitted, stderr: Tensor) -> Tensor:
    """Return standard errors about the values of the model, where the error of the game is known."""
    if not fitted.knows_game_error or fitted.errors is None:
        return stderr
    return (stderr.square() + fitted.errors.game_variance.to(stderr)).sqrt()


def _grand(outputs: ModelOutputs, x: Tensor, precision: Precision) -> Tensor | None:
    """Return the model's outputs where values must sum to them and the game has lost its model."""
    game = outputs.fitted.game
    if precision.anchor == "model" and calls_model(game) and called_model(game) is None:
        return outputs(x, None)
    return None
