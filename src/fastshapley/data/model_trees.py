"""The trees of the user's model, in the columns of the user's table.

Trees may be inside of ensembles, and behind steps of a pipeline that keep columns apart. What cannot be followed is
unknown, never an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastshapley.data.one_hot import chosen_names, given_names
from fastshapley.data.trees import LARGEST, NOTHING, Trees, read_trees

logger = logging.getLogger(__name__)

_METHODS = {"predict", "predict_proba", "decision_function", "predict_log_proba"}  # what a user may pass of a model
_INNER = ("best_estimator_", "regressor_")  # where an estimator holds the fitted one that it wraps
_SCALERS = {"StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "PowerTransformer"}


def model_trees(model: Any, columns: int) -> Trees | None:
    """Return a model's trees, whose splits are those of the columns of a table.

    Parameters
    ----------
    model : object
        The user's model, or a method of it such as ``model.predict_proba``.
    columns : int
        The number of columns of the table that the model takes.

    Returns
    -------
    Trees or None
        None if no tree was found.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> found = model_trees(DecisionTreeRegressor().fit([[0.0, 3.0], [1.0, 3.0]], [0.0, 1.0]), 2)
    >>> [cuts.values.round(3).tolist() for cuts in found.cuts()]
    [[0.5], []]
    """
    owner = getattr(model, "__self__", None)
    if owner is not None and getattr(model, "__name__", "") in _METHODS:
        model = owner
    try:
        found = _trees(model)
    except Exception as error:  # A model of another version may be made otherwise; it has no known trees then.
        logger.debug("the trees of a %s are unknown: %s", type(model).__name__, error)
        return None
    return found if found is not None and found.columns == columns else None


def _trees(model: Any) -> Trees | None:
    """Return the trees of a fitted estimator, for the columns that it takes."""
    found = read_trees(model)
    if found is not None:
        return found
    if type(model).__module__.partition(".")[0] != "sklearn":
        return None
    if hasattr(model, "steps"):
        return _of_pipeline(model)
    for name in _INNER:
        if hasattr(model, name) and hasattr(getattr(model, name), "predict"):
            return _trees(getattr(model, name))
    if hasattr(model, "calibrated_classifiers_"):
        return _joined(_trees(each.estimator) for each in model.calibrated_classifiers_)
    if hasattr(model, "estimators_"):
        return _of_ensemble(model)
    return None


def _joined(parts: Iterable[Trees | None]) -> Trees | None:
    """Return the trees of those parts that have any."""
    known = [part for part in parts if part is not None]
    return Trees.joined(known, known[0].columns) if known else None


def _of_ensemble(model: Any) -> Trees | None:
    """Return the trees of all members of an ensemble, which may see some columns only."""
    members = model.estimators_
    parts = [_trees(each) for each in (members.ravel() if isinstance(members, np.ndarray) else members)]
    places = getattr(model, "estimators_features_", None)
    if places is None:
        return _joined(parts)
    seen = zip(parts, places, strict=True)
    return _joined(None if part is None else part.moved(at, model.n_features_in_) for part, at in seen)


def _of_pipeline(pipeline: Any) -> Trees | None:
    *steps, (_, last) = pipeline.steps
    found = _trees(last)
    return None if found is None else _before_steps(steps, found)


def _before_steps(steps: Sequence[tuple[str, Any]], trees: Trees) -> Trees:
    for _, step in reversed(steps):
        trees = _before(step, trees)
    return trees


def _before(step: Any, trees: Trees) -> Trees:
    """Return the trees for the columns that a fitted transformer takes, given those for the columns it makes."""
    if step is None or step == "passthrough":
        return trees
    if hasattr(step, "steps"):
        return _before_steps(step.steps, trees)
    if hasattr(step, "transformers_"):
        return _before_parts(step, trees)
    name, columns = type(step).__name__, getattr(step, "n_features_in_", trees.columns)
    if type(step).__module__.partition(".")[0] == "sklearn" and trees.columns == columns:
        if name in _SCALERS:
            return _unscaled(step, trees)
        if name == "FunctionTransformer" and step.func is None:
            return trees
        if name == "SimpleImputer" and not step.add_indicator:
            return replace(trees, gap_right=np.append(step.statistics_, np.nan)[trees.column] > trees.cut)
    return trees.moved([NOTHING] * trees.columns, columns)


def _before_parts(step: Any, trees: Trees) -> Trees:
    """Return the same for a ColumnTransformer."""
    given = given_names(step, None)
    position = {str(name): j for j, name in enumerate(given)}
    found = trees.moved([NOTHING] * trees.columns, len(given))
    for name, part, columns in step.transformers_:
        place = step.output_indices_[name]
        if part == "drop" or place.start == place.stop:
            continue
        made = np.full(trees.columns, NOTHING)
        made[place] = np.arange(place.stop - place.start)
        chosen = [position[name] for name in chosen_names(given, columns)]
        before = _before(part, trees.moved(made, place.stop - place.start)).moved(chosen, len(given))
        here = before.column != NOTHING
        found = replace(
            found,
            column=np.where(here, before.column, found.column),
            cut=np.where(here, before.cut, found.cut),
            gap_right=np.where(here, before.gap_right, found.gap_right),
        )
    return found


def _unscaled(scaler: Any, trees: Trees) -> Trees:
    """Return the trees before an increasing function of each column."""
    nodes = [np.flatnonzero(trees.column == j) for j in range(trees.columns)]
    table = np.full((max(map(len, nodes), default=0), trees.columns), np.nan)
    if not len(table):
        return trees
    for j, here in enumerate(nodes):
        table[: len(here), j] = trees.cut[here]
    with np.errstate(over="ignore"):
        table, cut = np.asarray(scaler.inverse_transform(table)), trees.cut.copy()
    for j, here in enumerate(nodes):
        cut[here] = np.clip(table[: len(here), j], -LARGEST, LARGEST)
    return replace(trees, cut=cut, column=np.where(np.isnan(cut), NOTHING, trees.column))
