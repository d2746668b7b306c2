"""Values as a `shap.Explanation`, with the user's own names and data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import shap
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.columns import Column
from fastshapley.errors import InputError
from fastshapley.players import Partition
from fastshapley.schema import Schema


def explanation(
    x: Tensor,
    values: Tensor,
    base: Tensor,
    schema: Schema,
    players: Partition,
    output_names: Sequence[str],
    stderr: Tensor | None = None,
) -> shap.Explanation:
    """The explanation of encoded rows ``x``: values (n, players, outputs) and base values (n, outputs).

    ``stderr`` are the values' standard errors, if they are known.

    ``data`` holds numbers, so that plots can colour by them; where players stand for categories or for several
    columns, ``display_data`` holds what a person should read instead.
    """
    data, display = _data(x.cpu().numpy(), schema, players)
    return shap.Explanation(
        values=squeeze(values.cpu().numpy()),
        base_values=squeeze(base.cpu().numpy()),
        data=data,
        display_data=display,
        feature_names=list(players.names),
        error_std=None if stderr is None else squeeze(stderr.cpu().numpy()),
        output_names=list(output_names) if len(output_names) > 1 else None,
    )


def image_explanation(
    x: Tensor,
    values: Tensor,
    base: Tensor,
    players: Partition,
    output_names: Sequence[str],
    stderr: Tensor | None = None,
    *,
    upsample: bool,
) -> shap.Explanation:
    """The explanation of images ``x`` (n, channels, height, width), from values (n, players, outputs).

    Images have their channels last, as plots have them, and lie between 0 and 1: others are scaled to that.
    """
    data = x.movedim(1, -1).cpu().numpy()
    if len(data) and (data.min() < 0 or data.max() > 1):
        data = (data - data.min()) / max(float(data.max() - data.min()), 1e-12)
    upsample = upsample or players.grid is None
    drawn = maps(values, players, upsample=upsample)
    off = None if stderr is None else squeeze(maps(stderr, players, upsample=upsample)[..., None, :])
    return shap.Explanation(
        values=squeeze(drawn[..., None, :]),
        error_std=off,
        base_values=squeeze(base.cpu().numpy()),
        data=data,
        output_names=list(output_names) if len(output_names) > 1 else None,
    )


def maps(values: Tensor, players: Partition, *, upsample: bool) -> NDArray[np.float64]:
    """Values (n, players, outputs) where they lie: (n, rows, columns, outputs) on a grid.

    With ``upsample`` (n, height, width, outputs), a player's value shared out among its pixels.
    """
    array: NDArray[np.float64] = values.cpu().numpy()
    if upsample:
        owner = np.array(players.owner).reshape(players.shape[1:])
        return array[:, owner] / np.bincount(owner.ravel())[owner][..., None]
    return array if players.grid is None else array.reshape(len(array), *players.grid, array.shape[2])


def taken_up(start: shap.Explanation, values: Tensor) -> tuple[Tensor, Tensor]:
    """The values of an explanation and their variances, (n, players, outputs) each, as ``values`` are."""
    if start.error_std is None:
        raise InputError("start has no error_std: pass an explanation made with errors=True, a budget or a tol")
    if np.size(start.values) != values.numel() or len(start.values) != len(values):
        raise InputError(
            f"start has values of shape {np.shape(start.values)}, which are not {tuple(values.shape)}: pass one of "
            "the same rows, as it came (not upsampled, and of all outputs)"
        )
    total = np.reshape(start.values, values.shape).sum(1)
    if not np.allclose(total, values.sum(1).cpu().numpy(), atol=1e-4 * (1 + np.abs(total).max(initial=0))):
        raise InputError(
            "start has values that sum to something else: pass one of the same rows, with anchor='game'"
        )
    found, stderr = (
        torch.as_tensor(np.reshape(a, values.shape)).to(values) for a in (start.values, start.error_std)
    )
    return found, stderr.square()


def squeeze(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """As shap has it: no axis for a single output."""
    return values[..., 0] if values.shape[-1] == 1 else values


def _data(
    x: NDArray[np.float64], schema: Schema, players: Partition
) -> tuple[NDArray[np.float64] | None, NDArray[np.str_] | None]:
    if not players.owner:
        return None, None  # players of a game of the user's own, which are not columns
    if len(players) == len(players.owner) and not schema.categorical:
        return x, None
    data = np.empty((len(x), len(players)))
    texts = []
    for player in range(len(players)):
        members = players.members(player)
        part = x[:, members]
        # of several columns, the number of the largest: for one-hot columns, of the category
        data[:, player] = part[:, 0] if len(members) == 1 else np.nan_to_num(part, nan=-np.inf).argmax(1)
        texts.append(_texts([schema.columns[m] for m in members], part))
    return data, np.stack(texts, axis=1)


def _texts(columns: Sequence[Column], part: NDArray[np.float64]) -> NDArray[np.str_]:
    """What a person reads for each row of some columns; each distinct row is put into words once."""
    if len(part) == 0:
        return np.empty(0, dtype=np.str_)
    part = np.nan_to_num(part, nan=np.inf)
    if len(columns) == 1:
        where, cells = pd.factorize(part[:, 0])  # by hashing: far quicker than sorting
        distinct = np.asarray(cells)[:, None]
    else:
        distinct, where = np.unique(part, axis=0, return_inverse=True)
    return np.array([_text(columns, row) for row in distinct], dtype=np.str_)[where.reshape(-1)]


def _text(columns: Sequence[Column], row: NDArray[np.float64]) -> str:
    if len(columns) == 1:
        return _cell(columns[0], row[0])
    if all(column.categories is None for column in columns) and set(row) <= {0.0, 1.0}:  # one-hot or flags
        shown = [column.name for column, value in zip(columns, row, strict=True) if value]
    else:
        shown = [f"{column.name}={_cell(column, value)}" for column, value in zip(columns, row, strict=True)]
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "") or "none"


def _cell(column: Column, value: float) -> str:
    if value == np.inf:  # how `_texts` has a gap
        return "missing"
    if column.categories is not None:
        return str(column.categories[int(value)])
    return str(bool(value)) if column.discrete else f"{value:.6g}"
