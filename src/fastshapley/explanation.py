"""Values as a `shap.Explanation`, and in the shapes that shap's users know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.support.names import chosen_outputs
from fastshapley.support.shap_import import shap


class PixelOwners(Protocol):
    """What `maps` needs to know about the players of images; `Partition` has it."""

    @property
    def owner(self) -> tuple[int, ...]:
        """The player of each pixel, row by row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (1, height, width) of the pixels."""

    @property
    def grid(self) -> tuple[int, int] | None:
        """The rows and columns of the players, if they form a grid."""


@dataclass(frozen=True)
class Values:
    """The values of some rows.

    Attributes
    ----------
    values : Tensor
        Shapley values (n, players, outputs).
    base : Tensor
        Base values (n, outputs).
    stderr : Tensor or None
        The standard errors of the values, if they are known.
    names : sequence of str or ndarray
        The names of the outputs, (outputs,), or (n, outputs) if each row has outputs of its own.
    squeezed : bool
        Whether a single output has no axis and no name.
    """

    values: Tensor
    base: Tensor
    stderr: Tensor | None
    names: Sequence[str] | NDArray[np.str_]
    squeezed: bool = True

    def chosen(self, outputs: Any) -> Values:
        """Return the values of some outputs.

        Parameters
        ----------
        outputs : sequence of str or int, or shap.utils.OpChain
            The outputs by name or by position, or an operation such as ``shap.Explanation.argsort.flip[:3]`` that
            is applied to the outputs of each row.
        """
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
        """Return a `shap.Explanation`.

        Parameters
        ----------
        show : callable
            Arranges values (n, players, outputs) as the data are arranged, with the outputs in the last axis.
        **more : object
            Further arguments of `shap.Explanation`.
        """
        shaped, names = (squeeze if self.squeezed else np.asarray), np.array(self.names)
        named = names if names.ndim == 2 else names.tolist()  # an array if each row has its own
        return shap.Explanation(
            values=shaped(show(self.values)),
            base_values=shaped(self.base.cpu().numpy()),
            error_std=None if self.stderr is None else shaped(show(self.stderr)),
            output_names=None if self.squeezed and len(named) == 1 else named,
            **more,
        )


def maps(values: Tensor, players: PixelOwners, *, upsample: bool) -> NDArray[np.float64]:
    """Return values as maps.

    Parameters
    ----------
    values : Tensor
        Values (n, players, outputs).
    players : PixelOwners
        The players of the images.
    upsample : bool
        Whether each player's value is divided equally among its pixels.

    Returns
    -------
    ndarray
        (n, height, width, outputs) with ``upsample``; without it (n, rows, columns, outputs) for a grid, and
        (n, players, outputs) for segments.
    """
    array: NDArray[np.float64] = values.cpu().numpy()
    if upsample:
        owner = np.array(players.owner).reshape(players.shape[1:])
        return array[:, owner] / np.bincount(owner.ravel())[owner][..., None]
    return array if players.grid is None else array.reshape(len(array), *players.grid, array.shape[2])


def taken_up(start: shap.Explanation, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of an earlier explanation and their variances, (n, players, outputs) each.

    Parameters
    ----------
    start : shap.Explanation
        An explanation of the same rows with standard errors.
    values : Tensor
        The network's values of these rows, (n, players, outputs).

    Raises
    ------
    InputError
        If ``start`` has no standard errors, another shape, or values with another sum.
    """
    if start.error_std is None:
        raise InputError("start has no error_std: pass an explanation made with errors=True, a budget or a tol")
    if np.size(start.values) != values.numel() or len(start.values) != len(values):
        raise InputError(
            f"start has values of shape {np.shape(start.values)}, but {tuple(values.shape)} is expected: pass an "
            "explanation of the same rows with all outputs, not upsampled"
        )
    total = np.reshape(start.values, values.shape).sum(1)
    if not np.allclose(total, values.sum(1).cpu().numpy(), atol=1e-4 * (1 + np.abs(total).max(initial=0))):
        raise InputError(
            "start has values that sum to something else: pass an explanation of the same rows, with anchor='game'"
        )
    found, stderr = (
        torch.as_tensor(np.reshape(a, values.shape)).to(values) for a in (start.values, start.error_std)
    )
    return found, stderr.square()


def attribution_names(players: Sequence[str], outputs: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return the names of columns with the values of all players, then of ``others``, each for all outputs.

    Parameters
    ----------
    players : sequence of str
        The names of the players.
    outputs : sequence of str
        The names of the outputs; a single one does not appear in the result.
    others : sequence of str
        The names of further columns, such as base values.

    Examples
    --------
    >>> attribution_names(["age", "job"], ["rich"])
    ['shap_age', 'shap_job']
    >>> attribution_names(["age"], ["no", "yes"])
    ['shap_age_no', 'shap_age_yes']
    """
    suffixes = [""] if len(outputs) == 1 else [f"_{output}" for output in outputs]
    return [part + suffix for part in (*(f"shap_{player}" for player in players), *others) for suffix in suffixes]


def squeeze(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values without the axis of a single output, as shap does."""
    return values[..., 0] if values.shape[-1] == 1 else values
