"""Where the trees of one model split, read from the model itself.

Packages compare differently: ``x < t`` or ``x <= t``, in float32 or in float64. Here, every split is a cut c that
divides the float64 numbers as the package does: x is on the right side if ``x > c``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cuts:
    """The cuts of one column.

    Attributes
    ----------
    values : ndarray
        The cuts, in increasing order.
    counts : ndarray
        How many splits have each cut.
    """

    values: Floats
    counts: Floats

    @classmethod
    def of(cls, values: ArrayLike, counts: ArrayLike | None = None) -> Self:
        """Return the cuts of a column in any order; the counts of equal cuts are added up."""
        every = np.asarray(values, dtype=np.float64)
        weights = np.ones(len(every)) if counts is None else np.asarray(counts, dtype=np.float64)
        unique, place = np.unique(every, return_inverse=True)
        return cls(unique, np.bincount(place, weights, len(unique)).astype(np.float64))


def tree_splits(model: Any) -> list[Cuts] | None:
    """Return the cuts of each feature of a model of trees.

    Parameters
    ----------
    model : object
        A model of XGBoost, LightGBM or CatBoost, or a single tree or histogram boosting of scikit-learn.

    Returns
    -------
    list of Cuts or None
        Empty cuts for a feature that no tree splits on, and for categories. None if the model is of another kind.
    """
    package = type(model).__module__.partition(".")[0]
    if package == "xgboost":
        return _xgboost(model)
    if package == "lightgbm":
        return _lightgbm(model)
    if package == "catboost":
        return _catboost(model)
    if package == "sklearn" and hasattr(model, "tree_"):
        tree = model.tree_
        inner = tree.feature >= 0
        return _by_feature(tree.feature[inner], _single_cuts(_above(tree.threshold[inner])), tree.n_features)
    if package == "sklearn" and hasattr(model, "_predictors"):
        return _histogram_boosting(model)
    return None


def _by_feature(features: ArrayLike, cuts: Floats, count: int) -> list[Cuts]:
    owner = np.asarray(features, dtype=np.int64)
    finite = np.isfinite(cuts)
    return [Cuts.of(cuts[(owner == j) & finite]) for j in range(count)]


def _xgboost(model: Any) -> list[Cuts] | None:
    """XGBoost goes right if float32(x) >= t."""
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner = json.loads(bytes(booster.save_raw(raw_format="json")))["learner"]
    found = learner["gradient_booster"]
    found = found.get("gbtree", found).get("model", {})  # DART has the trees one level deeper.
    if "trees" not in found:
        return None  # a linear model
    features: list[int] = []
    thresholds: list[float] = []
    for tree in found["trees"]:
        parts = (tree["split_indices"], tree["split_conditions"], tree["left_children"], tree["split_type"])
        for feature, threshold, left, categorical in zip(*parts, strict=True):
            if left >= 0 and not categorical:
                features.append(feature)
                thresholds.append(threshold)
    cuts = _single_cuts(np.asarray(thresholds, dtype=np.float32))
    return _by_feature(features, cuts, int(learner["learner_model_param"]["num_feature"]))


def _lightgbm(model: Any) -> list[Cuts]:
    """LightGBM goes right if x > t."""
    booster = model.booster_ if hasattr(model, "booster_") else model
    text = booster.model_to_string()
    columns = [
        [float(word) for line in re.findall(rf"^{name}=(.*)$", text, re.MULTILINE) for word in line.split()]
        for name in ("split_feature", "threshold", "decision_type")
    ]
    features, thresholds, kinds = (np.asarray(column) for column in columns)
    numeric = kinds.astype(np.int64) % 2 == 0
    return _by_feature(features[numeric], thresholds[numeric], booster.num_feature())


def _catboost(model: Any) -> list[Cuts]:
    """CatBoost goes right if float32(x) > t; it does not tell how often a border is used."""
    borders = {j: _single_cuts(_above(np.asarray(found))) for j, found in model.get_borders().items()}
    return [Cuts.of(borders.get(j, [])) for j in range(len(model.feature_names_))]


def _histogram_boosting(model: Any) -> list[Cuts]:
    """Histogram boosting goes right if x > t; it sees the categories first, and then the numbers."""
    nodes = np.concatenate([tree.nodes for stage in model._predictors for tree in stage])
    nodes = nodes[(nodes["is_leaf"] == 0) & (nodes["is_categorical"] == 0)]
    features = nodes["feature_idx"].astype(np.int64)
    if model.is_categorical_ is not None and getattr(model, "_preprocessor", None) is not None:
        features = np.argsort(~model.is_categorical_, kind="stable")[features]
    return _by_feature(features, nodes["num_threshold"], model.n_features_in_)


def _above(thresholds: NDArray[Any]) -> NDArray[np.float32]:
    """Return the smallest float32 numbers that are greater than the thresholds."""
    single = thresholds.astype(np.float32)
    return np.where(single > thresholds, single, np.nextafter(single, np.float32(np.inf)))


def _single_cuts(single: NDArray[np.float32]) -> Floats:
    """Return the cuts c with x > c exactly where float32(x) >= t, for float32 numbers t.

    Rounding takes the numbers from the middle between t and the float32 number below it to t; the middle itself
    goes to the one of both whose last bit is zero.
    """
    below = np.nextafter(single, np.float32(-np.inf))
    middle = (below.astype(np.float64) + single.astype(np.float64)) / 2
    even = single.view(np.int32) % 2 == 0
    return np.where(even, np.nextafter(middle, -np.inf), middle)
