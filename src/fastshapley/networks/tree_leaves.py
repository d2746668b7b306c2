"""The leaves of a model's trees that a row comes to, as inputs of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastshapley.data.trees import NOTHING, Trees
from fastshapley.errors import FileFormatError


class TreeLeaves(nn.Module):
    """Encoded rows (n, columns), with NaN for gaps, to one leaf of each tree, (n, trees).

    Parameters
    ----------
    columns : int
        The number of columns.
    trees : int
        The number of trees.
    nodes : int
        The number of nodes of all trees together.
    depth : int
        The largest number of splits between a root and a leaf.

    Attributes
    ----------
    leaves : int
        The number of leaves of all trees together, which are numbered from zero.
    """

    def __init__(self, columns: int, trees: int, nodes: int, depth: int) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"columns": columns, "trees": trees, "nodes": nodes, "depth": depth}
        self.columns, self.depth, self.leaves = columns, depth, (nodes + trees) // 2
        # Which number decides at a node: a column, or as many further, the column with gaps above all numbers.
        self.register_buffer("source", torch.zeros(nodes, dtype=torch.int64))
        self.register_buffer("cut", torch.zeros(nodes, dtype=torch.float64))
        self.register_buffer("child", torch.zeros(2 * nodes, dtype=torch.int64))
        self.register_buffer("leaf", torch.zeros(nodes, dtype=torch.int64))
        self.register_buffer("roots", torch.zeros(trees, dtype=torch.int64))

    source: Tensor
    cut: Tensor
    child: Tensor
    leaf: Tensor
    roots: Tensor

    @classmethod
    def of(cls, trees: Trees) -> TreeLeaves:
        """Return a module for all leaves of some trees."""
        nodes, inner = np.arange(len(trees.column)), trees.column != NOTHING
        depth, level = 0, trees.roots
        while (level := level[inner[level]]).size:
            level = np.concatenate([trees.left[level], trees.right[level]])
            depth += 1
        made = cls(trees.columns, len(trees.roots), len(nodes), depth)
        source = np.where(inner, trees.column + trees.columns * trees.gap_right, 0)
        child = np.where(inner[:, None], np.stack([trees.left, trees.right], axis=1), nodes[:, None])
        made.source.copy_(torch.from_numpy(source))
        made.cut.copy_(torch.from_numpy(trees.cut))
        made.child.copy_(torch.from_numpy(child.ravel()))
        made.leaf.copy_(torch.from_numpy(np.where(inner, 0, np.cumsum(~inner) - 1)))
        made.roots.copy_(torch.from_numpy(trees.roots))
        return made

    def check(self) -> None:
        """Check weights that were read from a file.

        Raises
        ------
        FileFormatError
            If they describe no trees.
        """
        nodes = len(self.cut)
        limits = (
            (self.source, 2 * self.columns),
            (self.child, nodes),
            (self.leaf, self.leaves),
            (self.roots, nodes),
        )
        if not all(((part >= 0) & (part < limit)).all() for part, limit in limits):
            raise FileFormatError("the file is damaged: the network's trees have nodes that do not exist")

    def forward(self, x: Tensor) -> Tensor:
        """Return the leaves (n, trees) of encoded rows (n, columns)."""
        gap = x.isnan()
        x = torch.cat([x.masked_fill(gap, -torch.inf), x.masked_fill(gap, torch.inf)], dim=1)
        at = self.roots.repeat(x.shape[0])
        for _ in range(self.depth):
            source, cut = self.source.index_select(0, at), self.cut.index_select(0, at)
            right = x.gather(1, source.view(x.shape[0], -1)).flatten() > cut
            at = self.child.index_select(0, 2 * at + right.long())
        return self.leaf.index_select(0, at).view(x.shape[0], -1)
