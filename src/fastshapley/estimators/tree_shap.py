"""The exact Shapley values of a marginal game whose model consists of trees, by shap's TreeExplainer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastshapley.data.table_schema import TableSchema
from fastshapley.support.shap_import import shap
from fastshapley.value_functions.marginal import Marginal
from fastshapley.value_functions.protocol import ValueFunction, total_values

logger = logging.getLogger(__name__)

TRIAL_ROWS = 32  # rows whose values must sum to what the game says
TOLERANCE = 1e-3  # largest squared difference of the sums, relative to the squared sums

TreeShap = Callable[[Tensor], Tensor]  # encoded rows (n, columns) -> values (n, players, outputs)


def tree_shap(value_function: ValueFunction, x: Tensor) -> TreeShap | None:
    """Return a function that computes the exact values of rows.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor
        Encoded rows (n, columns) on which the function is tried out.

    Returns
    -------
    callable or None
        None if the game is not marginal, has a link, or has players that are not columns of numbers; and if shap
        does not know the model, or computes values that do not sum to grand minus null.
    """
    game = value_function
    if not isinstance(game, Marginal) or game.model_ is None or game.link != "identity" or game.model_.logits:
        return None
    schema = game.schema_
    single = list(game.partition_.owner) == list(range(x.shape[1] if x.ndim == 2 else 0))
    if not isinstance(schema, TableSchema) or schema.categorical or not single:
        return None
    trial = x[:TRIAL_ROWS]
    total = total_values(game, trial)
    try:
        found = _explainer(game)
        gap = found(trial).sum(1) - total
    except Exception as error:  # shap raises many kinds of errors for models that it does not know.
        logger.debug("shap's TreeExplainer does not explain this model: %s", error)
        return None
    return found if float(gap.square().sum()) <= TOLERANCE * float(total.square().sum()) else None


def _explainer(game: Marginal) -> TreeShap:
    """Return shap's values as a function of encoded rows.

    They are the values of what the trees add up to. Values of a probability that is computed from this sum are
    approximate in shap, so they are not asked for.
    """
    assert game.model_ is not None
    schema, rows, model = game.schema_, game.rows_, getattr(game.model_.model, "__self__", game.model_.model)

    def plain(x: Tensor) -> Any:
        """Return rows of float32 numbers: shap compares some numbers in float32, and others in float64."""
        return np.asarray(schema.decode(x), dtype=np.float32).astype(np.float64)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shap warns about how models were made, which the user cannot change here.
        masker = shap.maskers.Independent(plain(rows), max_samples=len(rows))
        explainer = shap.TreeExplainer(model, masker, model_output="raw", feature_perturbation="interventional")

    def values(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = np.asarray(explainer.shap_values(plain(x), check_additivity=False))
        return torch.from_numpy(found.reshape(len(x), x.shape[1], game.outputs)).to(x.device)

    return values
