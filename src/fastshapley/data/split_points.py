"""Where a model's output may jump: the split points of its trees, for each column of the user's table.

Trees may be inside of ensembles, and behind steps of a pipeline that keep columns apart. What cannot be followed is
unknown, never an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastshapley.data.one_hot import chosen_names, given_names
from fastshapley.data.tree_splits import Cuts, tree_splits

logger = logging.getLogger(__name__)

Known = list[Cuts | None]  # the cuts of each column; None for a column of which they are unknown
_METHODS = {"predict", "predict_proba", "decision_function", "predict_log_proba"}  # what a user may pass of a model
_INNER = ("best_estimator_", "regressor_")  # where an estimator holds the fitted one that it wraps
_SCALERS = {"StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "PowerTransformer"}


def split_points(model: Any, columns: int) -> list[Cuts | None] | None:
    """Return the cuts at which a model's trees split each column of a table.

    Parameters
    ----------
    model : object
        The user's model, or a method of it such as ``model.predict_proba``.
    columns : int
        The number of columns of the table that the model takes.

    Returns
    -------
    list or None
        The cuts of each column; None for a column of which they are unknown. None if no tree was found.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> found = split_points(DecisionTreeRegressor().fit([[0.0, 3.0], [1.0, 3.0]], [0.0, 1.0]), 2)
    >>> [cuts.values.round(3).tolist() for cuts in found]
    [[0.5], []]
    """
    owner = getattr(model, "__self__", None)
    if owner is not None and getattr(model, "__name__", "") in _METHODS:
        model = owner
    try:
        found = _model_cuts(model)
    except Exception as error:  # A model of another version may be made otherwise; it has no known splits then.
        logger.debug("the split points of a %s are unknown: %s", type(model).__name__, error)
        return None
    return found if found is not None and len(found) == columns else None


def _model_cuts(model: Any) -> Known | None:
    """Return the cuts of the columns that a fitted estimator takes; None if no tree was found."""
    found = tree_splits(model)
    if found is not None:
        return list(found)
    if type(model).__module__.partition(".")[0] != "sklearn":
        return None
    if hasattr(model, "steps"):
        return _pipeline_cuts(model)
    for name in _INNER:
        if hasattr(model, name) and hasattr(getattr(model, name), "predict"):
            return _model_cuts(getattr(model, name))
    if hasattr(model, "calibrated_classifiers_"):
        return _merged(_model_cuts(each.estimator) for each in model.calibrated_classifiers_)
    if hasattr(model, "estimators_"):
        return _ensemble_cuts(model)
    return None


def _ensemble_cuts(model: Any) -> Known | None:
    """Return the cuts of all members of an ensemble, which may see some columns only."""
    members = model.estimators_
    parts = [_model_cuts(each) for each in (members.ravel() if isinstance(members, np.ndarray) else members)]
    places = getattr(model, "estimators_features_", None)
    if places is None:
        return _merged(parts)
    seen = zip(parts, places, strict=True)
    return _merged(None if part is None else _spread(part, at, model.n_features_in_) for part, at in seen)


def _pipeline_cuts(pipeline: Any) -> Known | None:
    *steps, (_, last) = pipeline.steps
    found = _model_cuts(last)
    return None if found is None else _before_steps(steps, found)


def _before_steps(steps: Sequence[tuple[str, Any]], cuts: Known) -> Known:
    for _, step in reversed(steps):
        cuts = _before(step, cuts)
    return cuts


def _before(step: Any, cuts: Known) -> Known:
    """Return the cuts of the columns that a fitted transformer takes, given those of the columns that it makes."""
    if step is None or step == "passthrough":
        return cuts
    if hasattr(step, "steps"):
        return _before_steps(step.steps, cuts)
    if hasattr(step, "transformers_"):
        return _before_parts(step, cuts)
    name, columns = type(step).__name__, getattr(step, "n_features_in_", len(cuts))
    ours = type(step).__module__.partition(".")[0] == "sklearn" and len(cuts) == columns
    if ours and name in _SCALERS:
        return _unscaled(step, cuts)
    same = (name == "FunctionTransformer" and step.func is None) or (
        name == "SimpleImputer" and not step.add_indicator
    )
    return cuts if ours and same else [None] * columns


def _before_parts(step: Any, cuts: Known) -> Known:
    """Return the same for a ColumnTransformer."""
    given = given_names(step, None)
    position = {str(name): j for j, name in enumerate(given)}
    parts: list[Known] = []
    for name, part, columns in step.transformers_:
        place = step.output_indices_[name]
        if part == "drop" or place.start == place.stop:
            continue
        chosen = [position[name] for name in chosen_names(given, columns)]
        parts.append(_spread(_before(part, cuts[place]), chosen, len(given)))
    return _merged(parts) or [None] * len(given)


def _unscaled(scaler: Any, cuts: Known) -> Known:
    """Return the cuts before an increasing function of each column."""
    longest = max((len(each.values) for each in cuts if each is not None), default=0)
    table = np.full((longest, len(cuts)), np.nan)
    for j, each in enumerate(cuts):
        if each is not None:
            table[: len(each.values), j] = each.values
    table = np.asarray(scaler.inverse_transform(table)) if longest else table
    return [
        None if each is None else Cuts.of(table[: len(each.values), j], each.counts) for j, each in enumerate(cuts)
    ]


def _spread(cuts: Known, places: Sequence[int], columns: int) -> Known:
    """Return the cuts of some columns at their places among all columns; the others have none."""
    found: Known = [Cuts.of([])] * columns
    for place, each in zip(places, cuts, strict=True):
        found[place] = each
    return found


def _merged(parts: Iterable[Known | None]) -> Known | None:
    """Return the cuts of several models of the same columns; known cuts count where others are unknown."""
    known = [part for part in parts if part is not None]
    return [_union(column) for column in zip(*known, strict=True)] if known else None


def _union(parts: Sequence[Cuts | None]) -> Cuts | None:
    known = [part for part in parts if part is not None and len(part.values)]
    if not known:
        return None if any(part is None for part in parts) else Cuts.of([])
    return Cuts.of(np.concatenate([part.values for part in known]), np.concatenate([part.counts for part in known]))
