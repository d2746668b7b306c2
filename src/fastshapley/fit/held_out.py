"""Dividing rows into training and held-out rows, so that no copy of a training row is held out."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.data.stream import Rows, some
from fastshapley.training.checkpoint import fingerprint
from fastshapley.training.run import Run

HELD_OUT = 0.2  # share of the rows that is held out when no validation rows are given
COPIED = 0.5  # share of the pairs that agree in all columns but one, from which equal rows count as copies
FEW_VALUES = 32  # values of an only column up to which equal rows are not copies
COMPARED_ROWS = 50_000  # rows that are searched for copies


def hold_out(x: Rows, run: Run, share: float = HELD_OUT, most: float = math.inf) -> tuple[Rows, Rows]:
    """Divide rows at random. Copies of a row stay together, but not rows that are equal by chance.

    Parameters
    ----------
    x : Tensor or Stream
        The rows.
    run : Run
        The random numbers.
    share : float
        The share that is held out.
    most : float
        The largest number of rows that are held out.

    Returns
    -------
    kept, held : Tensor or Stream
        The other rows and the held-out rows. Both are all rows where there are too few to divide.
    """
    order = torch.randperm(len(x), generator=run.generator("hold out"), device=x.device)
    held = min(int(share * len(x)), int(min(most, len(x))))
    if isinstance(x, Tensor):
        if run.processes.size > 1:  # by content: another process may have the row next time
            draws = _draws(x, run.seed, share)
            order, below = draws.argsort(), int((draws < share).sum())
            held = int(min(most, below)) if 0 < below < len(x) else held
        if held and not equal_by_chance(x):
            order, held = _equal_together(x, order, held)
    return (some(x, order[held:]), some(x, order[:held])) if held else (x, x)


def equal_by_chance(x: Tensor) -> bool:
    """Return whether equal rows are equal because columns take few values, not because rows were copied.

    If it happens by chance, new rows will be equal to old ones, and so held-out rows must be. Two copies agree in
    every column: among the pairs of rows that agree in all columns but one, nearly all agree in that one too,
    whichever it is. Rows that agree by chance in all columns but one often differ in the last one.

    Parameters
    ----------
    x : Tensor of shape (n, columns) or images
        The rows. Equal images are always copies.
    """
    if x.ndim > 2:
        return False
    rows = (x[:COMPARED_ROWS] + 0.0).cpu().numpy()
    if rows.shape[1] == 1:
        return len(np.unique(rows)) <= FEW_VALUES
    weights = 2 * np.arange(rows.shape[1], dtype=np.uint64) + np.uint64(1)
    columns = [pd.util.hash_array(column) * weight for column, weight in zip(rows.T, weights, strict=True)]
    whole = np.sum(columns, axis=0)
    equal = _pairs(whole)
    return equal > 0 and any(COPIED * _pairs(whole - column) > equal for column in columns)


def _pairs(keys: NDArray[np.uint64]) -> int:
    """Return how many pairs of keys are equal."""
    counts = np.unique(keys, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def different_rows(x: Tensor) -> Tensor:
    """Return the rows without copies; rows that are equal by chance stay."""
    if equal_by_chance(x):
        return x
    contents = _contents(x)
    first = torch.full((len(x),), len(x), device=x.device).scatter_reduce(
        0, contents, torch.arange(len(x), device=x.device), "amin"
    )
    return x[first[first < len(x)].sort().values]


def rows_in(x_val: Rows, x: Rows) -> Tensor:
    """Return which validation rows are also training rows, (n,); rows of streams are not compared."""
    if not isinstance(x_val, Tensor) or not isinstance(x, Tensor):
        return torch.zeros(len(x_val), dtype=torch.bool)
    contents = _contents(torch.cat([x, x_val]))
    return torch.isin(contents[len(x) :], contents[: len(x)])


def _equal_together(x: Tensor, order: Tensor, held: int) -> tuple[Tensor, int]:
    """Return an order in which equal rows follow each other, and how many to hold out so that none are divided."""
    contents = _contents(x)
    if not held or int(contents.max()) + 1 == len(x):
        return order, held
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    first = torch.full_like(order, len(order)).scatter_reduce(0, contents, place, "amin")
    order = first[contents].argsort(stable=True)
    ends = (contents[order].diff() != 0).nonzero()[:, 0] + 1  # how many rows come before another content
    if not len(ends):
        return order, 0
    return order, int(ends[(ends - held).abs().argmin()])


def _contents(x: Tensor) -> Tensor:
    """Return a number for the content of each row, (n,), which equal rows share."""
    flat = (x.flatten(1) + 0.0).cpu().numpy()  # Zero has no sign.
    if x.ndim > 2:
        keys = np.array([hash(row.tobytes()) for row in flat])
    else:
        keys = pd.util.hash_pandas_object(pd.DataFrame(flat), index=False).to_numpy()
    return torch.from_numpy(pd.factorize(keys)[0]).to(x.device)


def _draws(x: Tensor, seed: int, share: float) -> Tensor:
    """Return a number between 0 and 1 for each row, which depends on its content, (n,)."""
    hashes = pd.util.hash_pandas_object(pd.DataFrame(x.flatten(1).cpu().numpy()), index=False)
    mixed = pd.util.hash_array(hashes.to_numpy() ^ np.uint64(int(fingerprint(seed, share)[:15], 16)))
    return torch.from_numpy(mixed / 2.0**64).to(x.device)
