"""Tests of which parts of trees a network sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from fastshapley.data.model_trees import model_trees
from fastshapley.data.trees import NOTHING, Trees
from fastshapley.networks.tree_choice import DEEPEST, MOST_TREES, chosen_trees

X = np.random.default_rng(0).normal(size=(500, 4))
Y = np.sign(X[:, 0]) + X[:, 1] * X[:, 2]
FOREST = RandomForestRegressor(10, random_state=0).fit(X, Y)


def trees_of(model: object) -> Trees:
    found = model_trees(model, 4)
    assert found is not None
    return found


def leaves(trees: Trees) -> int:
    return int((trees.column == NOTHING).sum())


@pytest.mark.parametrize("most", [20, 100, 1000])
def test_no_more_leaves_are_chosen_than_asked_for(most: int) -> None:
    found = chosen_trees(trees_of(FOREST), X, most)
    assert most - 1 <= leaves(found) <= most
    assert len(found.roots) == 10


def test_all_splits_that_divide_rows_are_chosen_if_there_is_room() -> None:
    tree = DecisionTreeRegressor(max_depth=5).fit(X, Y)
    found = chosen_trees(trees_of(tree), X, 100)
    assert leaves(found) == tree.get_n_leaves()
    assert sorted(found.cut[found.column >= 0]) == sorted(c for cuts in trees_of(tree).cuts() for c in cuts.values)


def test_splits_that_divide_the_rows_most_evenly_come_first() -> None:
    """A chain of splits off single rows, below a split in the middle."""
    rows = np.arange(8.0)[:, None]
    trees = Trees.of(
        [0, NOTHING, 0, NOTHING, 0, NOTHING, NOTHING],
        [3.5, 0, 6.5, 0, 4.5, 0, 0],
        [1, NOTHING, 4, NOTHING, 5, NOTHING, NOTHING],
        [2, NOTHING, 3, NOTHING, 6, NOTHING, NOTHING],
        [False] * 7,
        1,
    )
    assert chosen_trees(trees, rows, 2).cut[chosen_trees(trees, rows, 2).column == 0].tolist() == [3.5]
    assert leaves(chosen_trees(trees, rows, 3)) == 3
    assert leaves(chosen_trees(trees, rows, 9)) == 4


def test_what_is_below_a_split_that_cannot_be_followed_is_one_leaf() -> None:
    trees = trees_of(DecisionTreeRegressor(max_leaf_nodes=30).fit(X, Y))
    column = trees.column.copy()
    column[trees.right[0]] = NOTHING
    found = chosen_trees(replace(trees, column=column), X, 100)
    assert leaves(found) < 30
    column[0] = NOTHING
    assert len(chosen_trees(replace(trees, column=column), X, 100).roots) == 0


def test_many_and_deep_trees_are_cut_down() -> None:
    many = Trees.joined([trees_of(FOREST)] * 20, 4)
    found = chosen_trees(many, X, 1 << 20)
    assert len(found.roots) == MOST_TREES
    rows = np.exp2(np.arange(40.0))[:, None]
    chain = DecisionTreeRegressor(min_samples_leaf=1).fit(rows, np.arange(40.0) ** 8)  # splits off the last rows
    deep = model_trees(chain, 1)
    assert deep is not None
    assert leaves(chosen_trees(deep, rows, 1000)) <= 2**DEEPEST


def test_a_tree_without_splits_and_no_rows_give_nothing() -> None:
    constant = trees_of(DecisionTreeRegressor().fit(X, np.zeros(500)))
    assert len(chosen_trees(constant, X, 100).roots) == 0
    assert len(chosen_trees(trees_of(FOREST), X[:1], 100).roots) == 0
