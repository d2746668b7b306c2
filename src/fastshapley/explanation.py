"""Values as a `shap.Explanation`, with the user's own names and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.data.column import Column
from fastshapley.data.players import Partition
from fastshapley.data.table_schema import Schema
from fastshapley.errors import InputError
from fastshapley.support.shap_import import shap


@dataclass(frozen=True)
class Values:
    """Values of rows (n, players, outputs), base values (n, outputs), and the values' standard errors, if known.

    ``names`` are the outputs', (outputs,), or (n, outputs) if each row has outputs of its own. With ``squeezed``,
    a single output has no axis, and no name.
    """

    values: Tensor
    base: Tensor
    stderr: Tensor | None
    names: Sequence[str] | NDArray[np.str_]
    squeezed: bool = True

    def chosen(self, outputs: Any) -> Values:
        """The values of some outputs, by number or name, or by what a chain of shap's makes of a row's."""
        if isinstance(outputs, shap.utils.OpChain):
            totals = (self.base + self.values.sum(1)).cpu().numpy()
            rows = [outputs.apply(shap.Explanation(row)).values for row in totals]
            picked = np.array(rows, dtype=np.int64).reshape(len(rows), -1 if rows else 1)
        else:
            picked = np.tile(chosen_outputs(list(self.names), outputs), (len(self.values), 1))
        alike = len(picked) > 0 and bool((picked == picked[0]).all())
        names = np.array(self.names)[picked[0] if alike else picked]
        index = torch.from_numpy(picked).to(self.values.device)
        each = index[:, None].expand(-1, self.values.shape[1], -1)
        stderr = None if self.stderr is None else self.stderr.gather(2, each)
        return Values(self.values.gather(2, each), self.base.gather(1, index), stderr, names, squeezed=False)

    def explanation(self, show: Callable[[Tensor], NDArray[np.float64]], **more: Any) -> shap.Explanation:
        """A `shap.Explanation`; ``show`` puts values where they lie, with the outputs in the last axis."""
        shaped, names = (squeeze if self.squeezed else np.asarray), np.array(self.names)
        named = names if names.ndim == 2 else names.tolist()  # a list of all rows', an array of each row's own
        return shap.Explanation(
            values=shaped(show(self.values)),
            base_values=shaped(self.base.cpu().numpy()),
            error_std=None if self.stderr is None else shaped(show(self.stderr)),
            output_names=None if self.squeezed and len(named) == 1 else named,
            **more,
        )


def explanation(x: Tensor, found: Values, schema: Schema, players: Partition) -> shap.Explanation:
    """The explanation of encoded rows ``x``.

    ``data`` holds numbers, so that plots can colour by them; where some players stand for categories or for several
    columns, ``display_data`` holds what a person should read: words for these, and the numbers of the others.
    """
    data, display = _data(x.cpu().numpy(), schema, players)
    names = list(players.names)
    return found.explanation(lambda v: v.cpu().numpy(), data=data, display_data=display, feature_names=names)


def image_explanation(x: Tensor, found: Values, players: Partition, *, upsample: bool) -> shap.Explanation:
    """The explanation of images ``x`` (n, channels, height, width).

    Images have their channels last, as plots have them, and lie between 0 and 1: others are scaled to that.
    """
    data = x.movedim(1, -1).cpu().numpy()
    if len(data) and (data.min() < 0 or data.max() > 1):
        data = (data - data.min()) / max(float(data.max() - data.min()), 1e-12)
    upsample = upsample or players.grid is None
    return found.explanation(lambda v: maps(v, players, upsample=upsample)[..., None, :], data=data)


def chosen_outputs(names: Sequence[str], outputs: Sequence[str | int] | None) -> tuple[int, ...]:
    """The numbers of the outputs that are wanted, by default all: given by name, or by number.

    >>> chosen_outputs(["no", "perhaps", "yes"], ["yes", 0])
    (2, 0)
    """
    names = list(names)
    if outputs is None:
        return tuple(range(len(names)))
    if isinstance(outputs, str) or np.ndim(outputs) != 1 or len(outputs) == 0:
        raise InputError(f"outputs is {outputs!r}: list one or more of {names}, each once")
    numbers = range(len(names))
    if unknown := [name for name in outputs if name not in names and name not in numbers]:
        raise InputError(f"outputs {unknown} are none of {names}")
    chosen = tuple(names.index(name) if name in names else int(name) for name in outputs)
    if len(set(chosen)) < len(chosen):
        raise InputError(f"outputs is {list(outputs)}: name one or more of {names}, each once")
    return chosen


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


def attribution_names(players: Sequence[str], outputs: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """The names of columns with the values of all players, then ``others``, each for all outputs.

    >>> attribution_names(["age", "job"], ["rich"])
    ['shap_age', 'shap_job']
    >>> attribution_names(["age"], ["no", "yes"])
    ['shap_age_no', 'shap_age_yes']
    """
    suffixes = [""] if len(outputs) == 1 else [f"_{output}" for output in outputs]
    return [part + suffix for part in (*(f"shap_{player}" for player in players), *others) for suffix in suffixes]


def squeeze(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """As shap has it: no axis for a single output."""
    return values[..., 0] if values.shape[-1] == 1 else values


def _data(
    x: NDArray[np.float64], schema: Schema, players: Partition
) -> tuple[NDArray[np.float64] | None, NDArray[np.object_] | None]:
    if not players.owner:
        return None, None  # players of a game of the user's own, which are not columns
    if len(players) == len(players.owner) and not schema.categorical:
        return x, None
    data, display = np.empty((len(x), len(players))), np.empty((len(x), len(players)), dtype=object)
    for player in range(len(players)):
        members = players.members(player)
        part = x[:, members]
        # of several columns, the number of the largest: for one-hot columns, of the category
        data[:, player] = part[:, 0] if len(members) == 1 else np.nan_to_num(part, nan=-np.inf).argmax(1)
        columns = [schema.columns[m] for m in members]
        # plots take a column for one of names if it holds text
        plain = len(columns) == 1 and columns[0].categories is None and not columns[0].discrete
        display[:, player] = part[:, 0] if plain else _texts(columns, part)
    return data, display


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
