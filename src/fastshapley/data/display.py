"""Rows of a table as a person reads them: words for categories and for players with several columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fastshapley.data.column import Column
from fastshapley.data.players import Partition

SHOWN_COLUMNS = 3  # columns of one player that are shown; the others become "..."


def display_data(
    x: NDArray[np.float64], columns: Sequence[Column], players: Partition
) -> tuple[NDArray[np.float64] | None, NDArray[np.object_] | None]:
    """Return a number and a text for each player of each row.

    Parameters
    ----------
    x : ndarray of shape (n, columns)
        Encoded rows.
    columns : sequence of Column
        The table's columns.
    players : Partition
        The players.

    Returns
    -------
    data : ndarray of shape (n, players) or None
        Numbers, by which plots colour. A player with several columns has the position of its largest column, which
        is the category of one-hot columns. None if the players are not columns.
    display : ndarray of shape (n, players) or None
        Text for players that are categories or several columns, and the numbers of the others. None if the numbers
        say everything.
    """
    if not players.owner:
        return None, None  # The players of a user's own game are not columns.
    if len(players) == len(players.owner) and all(column.categories is None for column in columns):
        return x, None
    data, display = np.empty((len(x), len(players))), np.empty((len(x), len(players)), dtype=object)
    for player in range(len(players)):
        members = players.members(player)
        part = x[:, members]
        data[:, player] = part[:, 0] if len(members) == 1 else np.nan_to_num(part, nan=-np.inf).argmax(1)
        own = [columns[member] for member in members]
        # Plots treat a column that holds text as categories, so plain numbers stay numbers.
        plain = len(own) == 1 and own[0].categories is None and not own[0].discrete
        display[:, player] = part[:, 0] if plain else _texts(own, part)
    return data, display


def _texts(columns: Sequence[Column], part: NDArray[np.float64]) -> NDArray[np.str_]:
    """Return a text for each row (n, columns); each distinct row is put into words once."""
    if len(part) == 0:
        return np.empty(0, dtype=np.str_)
    part = np.nan_to_num(part, nan=np.inf)
    if len(columns) == 1:
        where, cells = pd.factorize(part[:, 0])  # Hashing is much faster than sorting.
        distinct = np.asarray(cells)[:, None]
    else:
        distinct, where = np.unique(part, axis=0, return_inverse=True)
    return np.array([_text(columns, row) for row in distinct], dtype=np.str_)[where.reshape(-1)]


def _text(columns: Sequence[Column], row: NDArray[np.float64]) -> str:
    if len(columns) == 1:
        return _cell(columns[0], row[0])
    if all(column.categories is None for column in columns) and set(row) <= {0.0, 1.0}:  # one-hot columns or flags
        shown = [column.name for column, value in zip(columns, row, strict=True) if value]
    else:
        shown = [f"{column.name}={_cell(column, value)}" for column, value in zip(columns, row, strict=True)]
    return ", ".join(shown[:SHOWN_COLUMNS]) + (", ..." if len(shown) > SHOWN_COLUMNS else "") or "none"


def _cell(column: Column, value: float) -> str:
    if value == np.inf:  # `_texts` marks a gap by infinity
        return "missing"
    if column.categories is not None:
        return str(column.categories[int(value)])
    return str(bool(value)) if column.discrete else f"{value:.6g}"
