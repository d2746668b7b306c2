"""Values as a `shap.Explanation`, with the user's own names and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import shap
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.players import Partition
from fastshapley.schema import Schema, Table


def explanation(
    X: Table,
    x: Tensor,
    values: Tensor,
    base: Tensor,
    schema: Schema,
    players: Partition,
    output_names: Sequence[str],
) -> shap.Explanation:
    """Values (n, players, outputs) and base values (n, outputs) of the rows ``X``, encoded as ``x``.

    ``data`` holds numbers, so that plots can colour by them; where a player stands for a category or for
    several columns, ``display_data`` holds what a person should read instead.
    """
    data, display = _data(X, x, schema, players)
    return shap.Explanation(
        values=squeeze(values),
        base_values=squeeze(base),
        data=data,
        display_data=display,
        feature_names=list(players.names),
        output_names=list(output_names) if len(output_names) > 1 else None,
    )


def squeeze(values: Tensor) -> NDArray[np.float64]:
    """As shap has it: no axis for a single output."""
    array: NDArray[np.float64] = values.cpu().numpy()
    return array[..., 0] if array.shape[-1] == 1 else array


def _data(
    X: Table, x: Tensor, schema: Schema, players: Partition
) -> tuple[NDArray[np.float64] | None, NDArray[Any] | None]:
    if not players.owner:
        return None, None  # players of a game of the user's own, which are not columns
    columns = x.cpu().numpy()
    if len(players) == len(players.owner) and not schema.categorical:
        return columns, None
    shown = np.asarray(X, dtype=object)
    data = np.full((len(x), len(players)), np.nan)
    display = np.empty(data.shape, dtype=object)
    for player in range(len(players)):
        members = players.members(player)
        if len(members) == 1:
            data[:, player], display[:, player] = columns[:, members[0]], shown[:, members[0]]
        else:
            names = [schema.names[member] for member in members]
            display[:, player] = [_summary(names, row) for row in shown[:, members]]
    return data, display


def _summary(names: Sequence[str], row: NDArray[Any]) -> str:
    """A group of columns in a few words: those that are not zero, which for one-hot columns is the category."""
    present = [name for name, value in zip(names, row, strict=True) if value not in (0, False)]
    return ", ".join(present[:3]) + (", ..." if len(present) > 3 else "") or "none"
