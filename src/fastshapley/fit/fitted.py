"""From encoded rows to values: a forward pass, that evaluations of the game or calls of the model may correct."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction, given_outputs, trial_rows
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import require_table
from fastshapley.errors import InputError
from fastshapley.estimators.model_correction import Shortfall, corrected
from fastshapley.estimators.refinement import Prior, refine
from fastshapley.explanation import taken_up
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.objective import normalize
from fastshapley.support.shap_import import shap
from fastshapley.training.checkpoint import fingerprint
from fastshapley.training.run import seed_of
from fastshapley.value_functions import Surrogate
from fastshapley.value_functions.base_game import calls_model, link_of
from fastshapley.value_functions.links import apply_link
from fastshapley.value_functions.protocol import grand_values, null_values

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP


logger = logging.getLogger(__name__)
_BATCH, _ENTRIES = 8192, 1 << 22  # rows explained in one forward pass, and their values or inputs, at most


def warn_of_gaps(schema: Schema, network: ExplainerNetwork, x: Rows) -> None:
    """Of columns that had none when the network was built, which cannot tell them from the mean."""
    if names := schema.new_gaps(x, network.known_gaps):
        logger.warning(
            "columns %s have gaps, and had none at fit: they count as the mean; fit anew to learn them", names
        )


def forward(explainer: FastSHAP, x: Rows, most: int | Literal["auto"] = "auto") -> tuple[Tensor, Tensor]:
    """Values (n, players, outputs) and base values (n, outputs), float64, of at ``most`` so many rows at once."""
    if most != "auto" and most < 1:
        raise InputError(f"batch_size is {most}: use a positive number of rows, or 'auto'")
    game = explainer.value_function_
    values, base = [], []
    each = max(game.players * game.outputs, x[:1].numel())
    for part in x.split(max(1, min(_BATCH if most == "auto" else most, _ENTRIES // each))):
        null = null_values(game, part)
        with torch.no_grad():
            phi = explainer.network_(part).double()
        if explainer.normalize_ != "never" or game.players == 1:
            phi = normalize(phi, grand_values(game, part) - null)
        values.append(phi)
        base.append(null)
    return torch.cat(values), torch.cat(base)


def refined(
    explainer: FastSHAP,
    x: Tensor,
    values: Tensor,
    *,
    budget: int | None = None,
    tol: float | None = None,
    start: shap.Explanation | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Values and their standard errors, (n, players, outputs) each, corrected if there is a budget or a tol."""
    if explainer.normalize_ == "never" and explainer.value_function_.players > 1:
        raise InputError(
            "errors, budget and tol are for values that sum to grand minus null: use normalize='always'"
        )
    if explainer.value_function_.players == 1:
        return values, torch.zeros_like(values)  # it has all of the difference
    if explainer.errors_ is None:
        raise InputError(
            "errors, budget and tol need to know how far values are off, which this explainer did not learn: "
            "fit it with recipe='default', with rows enough to hold some out, and time and evaluations left"
        )
    variance, noise = explainer.errors_(x, values)
    if start is not None:
        values, variance = taken_up(start, values)
    if budget is None and tol is None:
        return values, variance.sqrt()
    found = refine(
        explainer.value_function_,
        x,
        Prior(values, variance, noise, explainer.errors_.head.profile),
        budget=budget,
        tol=tol,
        # other coalitions than those that the values are from
        random_state=int(fingerprint(seed_of(explainer.random_state), values)[:15], 16),
        progress=progress,
    )
    return torch.from_numpy(found.values).to(values), torch.from_numpy(found.stderr).to(values)


def anchored(
    explainer: FastSHAP,
    x: Rows,
    values: Tensor,
    base: Tensor,
    anchor: str,
    predictions: Any,
    background: Any,
    calls: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values and base values that sum to the model's output, and the variance that this adds to each value."""
    game = explainer.value_function_
    if anchor != "model":
        raise InputError(f"anchor is {anchor!r}: use 'game', or 'model', with predictions or without")
    if (background is None) != (calls is None):
        raise InputError("background and calls go together: pass both, or neither")
    nothing = torch.zeros_like(values)
    if calls_model(game):
        return values, base, nothing  # the game is the model's own
    if not isinstance(game, Surrogate):
        raise InputError("anchor='model' is for a surrogate's game; one of your own knows its model's output")
    null = game.model_null.to(values)
    total, base = model_outputs(explainer, x, predictions) - null, null.expand(len(values), -1)
    if calls is None or len(x) == 0:
        return normalize(values, total), base, nothing
    schema = require_table(explainer.schema_, "background and calls are")
    if explainer.model is None:
        raise InputError("calls need the model itself: pass it to FastSHAP.load")
    rows = schema.encode(background, "background").to(x.device)
    if len(rows) == 0:
        raise InputError("background has no rows")
    generator = torch.Generator(x.device).manual_seed(seed_of(explainer.random_state))
    missed = Shortfall(_model_function(explainer, x), game, rows, schema.discrete, generator)
    values, added = corrected(missed, x[:], values, total, calls)
    return values, base, added


def model_outputs(explainer: FastSHAP, x: Rows, predictions: Any = None) -> Tensor:
    """The model's outputs behind the game's link, (n, outputs): as given, or by calling it."""
    game = explainer.value_function_
    if len(x) == 0:
        return torch.zeros(0, game.outputs, dtype=torch.float64, device=x.device)
    if predictions is None:
        return _model_function(explainer, x)(x)
    y = given_outputs(predictions, len(x), game.outputs, logits=explainer.logits).to(x.device)
    return apply_link(link_of(game), y)


def _model_function(explainer: FastSHAP, x: Rows) -> Callable[[Rows], Tensor]:
    """The model behind the game's link, from encoded rows such as ``x`` to outputs (n, outputs)."""
    if explainer.model is None:
        raise InputError("this needs the model: pass it to FastSHAP.load, or its outputs for X as predictions=")
    function = ModelFunction(explainer.model, explainer.schema_, trial_rows(x), explainer.logits)
    game = explainer.value_function_
    return lambda rows: apply_link(link_of(game), function(rows))
