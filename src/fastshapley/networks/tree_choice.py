"""Which parts of a model's trees a network sees."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastshapley.data.trees import NOTHING, Trees

SEEN_ROWS = 4096  # rows, at most, that tell which splits matter
MOST_TREES = 128  # trees, at most
DEEPEST = 12  # levels of a tree, at most


def chosen_trees(trees: Trees, rows: NDArray[np.float64], most: int) -> Trees:
    """Return the tops of the trees, with those splits that leave many rows on both sides.

    Parameters
    ----------
    trees : Trees
        The trees.
    rows : ndarray
        Rows (n, columns), with NaN for gaps.
    most : int
        The largest number of leaves of all trees together.

    Returns
    -------
    Trees
        Each of them splits at least once.
    """
    if len(trees.roots) > MOST_TREES:
        order = np.random.default_rng(0).permutation(len(trees.roots))
        trees = replace(trees, roots=np.sort(trees.roots[order[:MOST_TREES]]))
    count, depth = _visits(trees, rows[:: -(-len(rows) // SEEN_ROWS)])
    trees = _without_idle_splits(trees, count)
    smaller = np.minimum(count[trees.left], count[trees.right])
    split = (trees.column != NOTHING) & (depth < DEEPEST) & (smaller > 0)
    queue = [(-smaller[root], root) for root in trees.roots.tolist() if split[root]]
    heapq.heapify(queue)
    kept: set[int] = set()
    leaves = 0
    while queue:
        _, node = heapq.heappop(queue)
        leaves += 1 if depth[node] else 2
        if leaves > most:
            break
        kept.add(node)
        for below in (int(trees.left[node]), int(trees.right[node])):
            if split[below]:
                heapq.heappush(queue, (-smaller[below], below))
    return _tops(trees, kept)


def _visits(trees: Trees, rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many rows come to each node, and the depth of each node that a row comes to."""
    count, depth = np.zeros(len(trees.column), dtype=np.int64), np.zeros(len(trees.column), dtype=np.int64)
    at = np.tile(trees.roots, (len(rows), 1))
    for level in range(DEEPEST + 1):
        count += np.bincount(at[at >= 0], minlength=len(count))
        depth[at[at >= 0]] = level
        column = trees.column[at]
        values = np.take_along_axis(rows, np.maximum(column, 0), axis=1)
        right = np.where(np.isnan(values), trees.gap_right[at], values > trees.cut[at])
        at = np.where((at >= 0) & (column != NOTHING), np.where(right, trees.right[at], trees.left[at]), NOTHING)
    return count, depth


def _without_idle_splits(trees: Trees, count: NDArray[np.int64]) -> Trees:
    """Return the trees without the splits that send all rows to the same side."""
    left, right = count[trees.left], count[trees.right]
    following = np.append(np.arange(len(count)), NOTHING)
    idle = (trees.column != NOTHING) & (count > 0) & ((left == 0) != (right == 0))
    following[:-1][idle] = np.where(right > 0, trees.right, trees.left)[idle]
    while (following[following] != following).any():
        following = following[following]
    return replace(trees, left=following[trees.left], right=following[trees.right], roots=following[trees.roots])


def _tops(trees: Trees, kept: set[int]) -> Trees:
    """Return the trees with only the kept splits, and leaves below them."""
    inner = np.array(sorted(kept), dtype=np.int64)
    below = np.stack([trees.left[inner], trees.right[inner]]).ravel()
    nodes = np.unique(np.concatenate([inner, below]))
    place = np.full(len(trees.column) + 1, NOTHING)
    place[nodes] = np.arange(len(nodes))
    split = np.isin(nodes, inner)
    return Trees(
        np.where(split, trees.column[nodes], NOTHING),
        trees.cut[nodes],
        np.where(split, place[trees.left[nodes]], NOTHING),
        np.where(split, place[trees.right[nodes]], NOTHING),
        trees.gap_right[nodes],
        place[trees.roots[np.isin(trees.roots, inner)]],
        trees.columns,
    )
