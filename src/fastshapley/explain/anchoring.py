"""Making a surrogate's values sum to the output of the user's model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction, given_outputs, trial_rows
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import require_table
from fastshapley.errors import InputError
from fastshapley.estimators.model_correction import SurrogateErrorGame, correct_to_model
from fastshapley.fit.fitted import Fitted
from fastshapley.objective import normalize
from fastshapley.training.run import seed_of
from fastshapley.value_functions import Surrogate
from fastshapley.value_functions.base_game import calls_model, link_of
from fastshapley.value_functions.links import apply_link


@dataclass(frozen=True)
class ModelOutputs:
    """The user's model behind the link of a game, or what it has predicted.

    Attributes
    ----------
    fitted : Fitted
        The explainer, whose game has the link.
    model : object or None
        The user's model.
    logits : bool
        Whether it returns logits.
    """

    fitted: Fitted
    model: Any
    logits: bool = False

    def __call__(self, x: Rows, predictions: Any = None) -> Tensor:
        """Return the outputs behind the link, (n, outputs), from ``predictions`` or by calling the model."""
        game = self.fitted.game
        if len(x) == 0:
            return torch.zeros(0, game.outputs, dtype=torch.float64, device=x.device)
        if predictions is None:
            return self.function(x)(x)
        return self._linked(given_outputs(predictions, len(x), game.outputs, logits=self.logits).to(x.device))

    def function(self, x: Rows) -> Callable[[Rows], Tensor]:
        """Return the model as a function from encoded rows such as ``x`` to outputs behind the link.

        Raises
        ------
        InputError
            If there is no model.
        """
        if self.model is None:
            raise InputError("the model is needed: pass it to FastSHAP.load, or its outputs for X as predictions=")
        function = ModelFunction(self.model, self.fitted.schema, trial_rows(x), self.logits)
        return lambda rows: self._linked(function(rows))

    def _linked(self, y: Tensor) -> Tensor:
        return apply_link(link_of(self.fitted.game), y)


@dataclass(frozen=True)
class Anchor:
    """How values are made to sum to the model's output.

    Attributes
    ----------
    outputs : ModelOutputs
        The user's model.
    predictions : array or None
        Its outputs for the rows, so that it need not be called.
    background : table or None
        Rows from which what the surrogate misses is estimated; None shares it evenly among the players.
    calls : int or None
        Model calls per row for that estimate.
    random_state : int or NumPy generator, optional
        The seed of the coalitions.
    """

    outputs: ModelOutputs
    predictions: Any = None
    background: Any = None
    calls: int | None = None
    random_state: Any = None


def anchor_values(anchor: Anchor, x: Rows, values: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Make values sum to the model's output.

    Parameters
    ----------
    anchor : Anchor
        The model and what may be spent.
    x : Tensor or Stream
        Encoded rows.
    values : Tensor
        Values of the game (n, players, outputs).
    base : Tensor
        Base values of the game (n, outputs).

    Returns
    -------
    values, base : Tensor
        Values and base values that sum to the model's output.
    variance : Tensor
        The variance that this adds to each value (n, players, outputs).

    Raises
    ------
    InputError
        If the game, the data or the arguments do not allow it.
    """
    fitted = anchor.outputs.fitted
    game = fitted.game
    if (anchor.background is None) != (anchor.calls is None):
        raise InputError("background and calls go together: pass both, or neither")
    nothing = torch.zeros_like(values)
    if calls_model(game):
        return values, base, nothing  # the game is the model's own
    if not isinstance(game, Surrogate):
        raise InputError("anchor='model' is for a surrogate's game: one of your own knows its model's output")
    null = game.model_null.to(values)
    total, base = anchor.outputs(x, anchor.predictions) - null, null.expand(len(values), -1)
    if anchor.calls is None or len(x) == 0:
        return normalize(values, total), base, nothing
    schema = require_table(fitted.schema, "background and calls are")
    if anchor.outputs.model is None:
        raise InputError("calls need the model itself: pass it to FastSHAP.load")
    rows = schema.encode(anchor.background, "background").to(x.device)
    if len(rows) == 0:
        raise InputError("background has no rows")
    generator = torch.Generator(x.device).manual_seed(seed_of(anchor.random_state))
    missed = SurrogateErrorGame(anchor.outputs.function(x), game, rows, schema.discrete, generator)
    values, added = correct_to_model(missed, x[:], values, total, anchor.calls)
    return values, base, added
