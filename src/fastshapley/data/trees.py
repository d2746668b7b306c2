"""The trees of one model, read from the model itself.

Packages compare differently: ``x < t`` or ``x <= t``, in float32 or in float64. Here, every split is a cut c that
divides the float64 numbers as the package does: x goes right if ``x > c``.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LARGEST = np.finfo(np.float64).max
NOTHING = -1  # the column of a leaf and of a split that cannot be followed; the child of a leaf


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


@dataclass(frozen=True)
class Trees:
    """Binary trees, node by node.

    Attributes
    ----------
    column : ndarray of int
        The column that a node splits. `NOTHING` for leaves, and for splits that cannot be followed, such as those
        of categories.
    cut : ndarray of float
        Numbers above the cut go right. A split of gaps from numbers has the largest or the smallest number.
    left, right : ndarray of int
        The nodes below a node; `NOTHING` for leaves.
    gap_right : ndarray of bool
        Whether gaps go right.
    roots : ndarray of int
        The first node of each tree. Nodes that no root leads to are splits of which no more is known.
    columns : int
        The number of columns of the rows.
    """

    column: Ints
    cut: Floats
    left: Ints
    right: Ints
    gap_right: Bools
    roots: Ints
    columns: int

    @classmethod
    def of(
        cls,
        column: ArrayLike,
        cut: ArrayLike,
        left: ArrayLike,
        right: ArrayLike,
        gap_right: ArrayLike,
        columns: int,
    ) -> Self:
        """Return one tree, whose first node is the root."""
        cuts, below = (
            np.clip(np.asarray(cut, dtype=np.float64), -LARGEST, LARGEST),
            np.asarray(left, dtype=np.int64),
        )
        column = np.where((below >= 0) & ~np.isnan(cuts), np.asarray(column, dtype=np.int64), NOTHING)
        gaps = np.asarray(gap_right, dtype=bool)
        return cls(column, cuts, below, np.asarray(right, dtype=np.int64), gaps, np.zeros(1, np.int64), columns)

    @classmethod
    def joined(cls, parts: Sequence[Trees], columns: int) -> Self:
        """Return the trees of several models of the same columns."""
        starts = np.cumsum([0, *(len(part.column) for part in parts)])[:-1]

        def below(name: str) -> Ints:
            each = [np.asarray(getattr(part, name)) for part in parts]
            return _concatenated(
                [np.where(nodes >= 0, nodes + start, NOTHING) for nodes, start in zip(each, starts, strict=True)]
            )

        return cls(
            _concatenated([part.column for part in parts]),
            np.concatenate([np.zeros(0), *(part.cut for part in parts)]),
            below("left"),
            below("right"),
            np.concatenate([np.zeros(0, dtype=bool), *(part.gap_right for part in parts)]),
            below("roots"),
            columns,
        )

    def cuts(self) -> list[Cuts]:
        """Return the cuts of each column between numbers."""
        between = np.abs(self.cut) < LARGEST
        return [Cuts.of(self.cut[between & (self.column == j)]) for j in range(self.columns)]

    def moved(self, places: ArrayLike, columns: int) -> Self:
        """Return the trees for rows in which column j is at ``places[j]``; `NOTHING` if it cannot be followed."""
        known = np.append(np.asarray(places, dtype=np.int64), NOTHING)  # NOTHING stays NOTHING.
        return replace(self, column=known[self.column], columns=columns)


def read_trees(model: Any) -> Trees | None:
    """Return the trees of a model.

    Parameters
    ----------
    model : object
        A model of XGBoost, LightGBM or CatBoost, or a single tree or histogram boosting of scikit-learn.

    Returns
    -------
    Trees or None
        None if the model is of another kind.
    """
    package = type(model).__module__.partition(".")[0]
    if package == "xgboost":
        return _xgboost(model)
    if package == "lightgbm":
        return _lightgbm(model)
    if package == "catboost":
        return _catboost(model)
    if package == "sklearn" and hasattr(model, "tree_"):
        return _sklearn(model.tree_)
    if package == "sklearn" and hasattr(model, "_predictors"):
        return _histogram_boosting(model)
    return None


def _concatenated(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _xgboost(model: Any) -> Trees | None:
    """XGBoost goes right if float32(x) >= t."""
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    learner = json.loads(bytes(booster.save_raw(raw_format="json")))["learner"]
    found = learner["gradient_booster"]
    found = found.get("gbtree", found).get("model", {})  # DART has the trees one level deeper.
    if "trees" not in found:
        return None  # a linear model
    columns = int(learner["learner_model_param"]["num_feature"])

    def one(tree: dict[str, Any]) -> Trees:
        categorical = np.asarray(tree["split_type"], dtype=bool)
        column = np.where(categorical, NOTHING, np.asarray(tree["split_indices"]))
        cut = _single_cuts(np.asarray(tree["split_conditions"], dtype=np.float32))
        gap_right = ~np.asarray(tree["default_left"], dtype=bool)
        return Trees.of(column, cut, tree["left_children"], tree["right_children"], gap_right, columns)

    return Trees.joined([one(tree) for tree in found["trees"]], columns)


def _lightgbm(model: Any) -> Trees:
    """LightGBM goes right if x > t. A child below zero is a leaf: -1 the first one, -2 the second one."""
    booster = model.booster_ if hasattr(model, "booster_") else model
    columns = booster.num_feature()
    parts = []
    for text in booster.model_to_string().split("\nTree=")[1:]:
        fields = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        if int(fields["num_leaves"]) < 2:
            continue
        names = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
        column, cut, kind, left, right = (np.array(fields[name].split(), dtype=np.float64) for name in names)
        kinds, inner = kind.astype(np.int64), len(column)
        # Bits of the kind: 1 for categories, 2 if gaps go left, 4 and 8 for what a gap is: nothing, zero or NaN.
        gap_right = np.where(kinds >> 2 & 3, kinds & 2 == 0, cut < 0)  # Without gaps in training, a gap is zero.
        leaves = np.full(inner + 1, NOTHING)
        left, right = (np.append(np.where(child < 0, inner - 1 - child, child), leaves) for child in (left, right))
        column = np.append(np.where(kinds & 1, NOTHING, column), leaves)
        gap_right = np.append(gap_right, leaves < NOTHING)
        parts.append(Trees.of(column, np.append(cut, leaves), left, right, gap_right, columns))
    return Trees.joined(parts, columns)


def _catboost(model: Any) -> Trees:
    """CatBoost goes right if float32(x) > t."""
    columns = len(model.feature_names_)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        found = json.loads(path.read_text())
    numbers = {each["feature_index"]: each for each in found["features_info"].get("float_features", [])}

    def one(tree: dict[str, Any]) -> Trees:
        nodes: list[tuple[int, float, int, int, bool]] = []

        def add(node: dict[str, Any]) -> int:
            here, split = len(nodes), node.get("split")
            nodes.append((NOTHING, 0.0, NOTHING, NOTHING, False))
            if split is not None:
                below = add(node["left"]), add(node["right"])
                column, border, gap_right = NOTHING, 0.0, False
                if split["split_type"] == "FloatFeature":
                    number, border = numbers[split["float_feature_index"]], split["border"]
                    column, gap_right = number["flat_feature_index"], number["nan_value_treatment"] == "AsTrue"
                nodes[here] = (column, border, *below, gap_right)
            return here

        add(tree)
        column, border, left, right, gap_right = zip(*nodes, strict=True)
        return Trees.of(column, _single_cuts(_above(np.array(border))), left, right, gap_right, columns)

    grown = found.get("trees") or [_nested(tree["splits"]) for tree in found["oblivious_trees"]]
    return Trees.joined([one(tree) for tree in grown], columns)


def _nested(splits: Sequence[Any]) -> dict[str, Any]:
    """Return a tree, node in node, all of whose nodes at one level have the same split."""
    if not splits:
        return {}
    below = _nested(splits[1:])
    return {"split": splits[0], "left": below, "right": below}


def _sklearn(tree: Any) -> Trees:
    """Return a tree of scikit-learn, which goes right if float32(x) > t."""
    cut = _single_cuts(_above(tree.threshold))
    left, right = tree.children_left, tree.children_right
    return Trees.of(tree.feature, cut, left, right, tree.missing_go_to_left == 0, tree.n_features)


def _histogram_boosting(model: Any) -> Trees:
    """Histogram boosting goes right if x > t; it sees the categories first, and then the numbers."""
    columns = model.n_features_in_
    order = np.arange(columns)
    if model.is_categorical_ is not None and getattr(model, "_preprocessor", None) is not None:
        order = np.argsort(~model.is_categorical_, kind="stable")

    def one(nodes: NDArray[Any]) -> Trees:
        column = np.where(nodes["is_categorical"], NOTHING, order[nodes["feature_idx"].astype(np.int64)])
        left, right = (
            np.where(nodes["is_leaf"], NOTHING, nodes[name].astype(np.int64)) for name in ("left", "right")
        )
        return Trees.of(column, nodes["num_threshold"], left, right, nodes["missing_go_to_left"] == 0, columns)

    return Trees.joined([one(tree.nodes) for stage in model._predictors for tree in stage], columns)


def _above(thresholds: NDArray[Any]) -> NDArray[np.float32]:
    """Return the smallest float32 numbers that are greater than the thresholds."""
    single = thresholds.astype(np.float32)
    with np.errstate(over="ignore"):  # Nothing but infinity is above the largest number.
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
