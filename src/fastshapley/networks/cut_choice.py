"""Which split points of a model become inputs of a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.data.trees import Cuts
from fastshapley.training.process_group import ProcessGroup

SEEN_ROWS = 1 << 16  # rows, at most, that tell which cuts differ
INPUTS = 256  # cuts of all columns, about: more cost more time in the first layer than they are worth


def chosen_cuts(
    found: Sequence[Cuts], x: Tensor, categories: Sequence[int], most: int, processes: ProcessGroup
) -> list[list[float]]:
    """Return the cuts of each column that a network should see.

    Cuts between the same two neighbouring numbers of a column are the same to the rows, so one stands for them all.
    Where there are too many, columns have cuts in proportion to their splits.

    Parameters
    ----------
    found : sequence of Cuts
        The cuts of each column.
    x : Tensor
        Encoded rows (n, columns) of this process.
    categories : sequence of int
        The number of categories of each column, 0 for a column of numbers.
    most : int
        The largest number of cuts of a column.
    processes : ProcessGroup
        The processes whose rows count together.

    Returns
    -------
    list of list of float
        The cuts of each column, in increasing order.
    """
    rows = processes.gather(x[:: -(-len(x) // SEEN_ROWS)], SEEN_ROWS)[:].cpu().numpy()
    different: list[Cuts] = []
    for j, cuts in enumerate(found):
        numbers = np.unique(rows[:, j][~np.isnan(rows[:, j])])
        several = not categories[j] and len(numbers) > 2  # One of two numbers tells the side itself.
        different.append(_different(cuts, numbers) if several else Cuts.of([]))
    used = np.array([cuts.counts.sum() for cuts in different])
    fair = np.ceil(INPUTS * used / max(1.0, used.sum()))
    return [_spaced(cuts, int(min(most, share))) for cuts, share in zip(different, fair, strict=True)]


def _different(cuts: Cuts, numbers: NDArray[np.float64]) -> Cuts:
    """Return one cut, the most used one, for each two neighbouring numbers that cuts divide."""
    left = np.searchsorted(numbers, cuts.values, side="right")  # how many of the numbers are on the left side
    order = np.lexsort((-cuts.counts, left))
    places, first = np.unique(left[order], return_index=True)
    inside = (places > 0) & (places < len(numbers))
    counts = np.bincount(left, cuts.counts, len(numbers) + 1)[places].astype(np.float64)
    return Cuts(cuts.values[order][first][inside], counts[inside])


def _spaced(cuts: Cuts, most: int) -> list[float]:
    """Return some cuts with about equally many splits between them."""
    if len(cuts.values) <= most:
        return cuts.values.tolist()
    levels = (np.arange(most) + 0.5) / most * cuts.counts.sum()
    return cuts.values[np.unique(np.searchsorted(cuts.counts.cumsum(), levels))].tolist()
