"""Players: what a coalition switches on or off.

A user writes `Features`, `Groups` or `Superpixels`. Bound to the columns of a table or to the size of images, each
becomes a `Partition`, which is all that the rest of the library knows about players.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fastshapley.data import one_hot
from fastshapley.errors import InputError
from fastshapley.support.frames import column_names


@dataclass(frozen=True)
class Partition:
    """Which player owns each entry of an input.

    Attributes
    ----------
    names : tuple of str
        The players' names.
    owner : tuple of int
        The number of the player that owns each column, or each pixel row by row. Empty if the players are not
        columns.
    shape : tuple of int
        (1, height, width) for images, empty for tables.
    grid : tuple of int or None
        The rows and columns of superpixels that form a grid.
    fill : tuple of float
        The channels of a hidden pixel.
    """

    names: tuple[str, ...]
    owner: tuple[int, ...]
    shape: tuple[int, ...] = ()
    grid: tuple[int, int] | None = None
    fill: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def mask(self, s: Tensor) -> Tensor:
        """Return the entries that coalitions show.

        Parameters
        ----------
        s : Tensor
            Coalitions (..., players), boolean.

        Returns
        -------
        Tensor
            (..., columns) for tables, (..., 1, height, width) for images.

        Examples
        --------
        >>> Partition(("a", "b"), (0, 1, 1)).mask(torch.tensor([False, True]))
        tensor([False,  True,  True])
        """
        shown = s if self._one_to_one else s[..., self._index.to(s.device)]
        return shown.unflatten(-1, self.shape) if self.shape else shown

    def members(self, player: int) -> list[int]:
        """Return the columns of one player."""
        return [column for column, owner in enumerate(self.owner) if owner == player]

    def filling(self, like: Tensor) -> Tensor:
        """Return what hidden pixels show, (1, channels, 1, 1), with the type of the images ``like``."""
        return torch.tensor(self.fill, dtype=like.dtype, device=like.device).reshape(1, -1, 1, 1)

    @cached_property
    def _one_to_one(self) -> bool:
        return self.owner == tuple(range(len(self.names)))

    @cached_property
    def _index(self) -> Tensor:
        return torch.tensor(self.owner)


class Players(ABC):
    """What a user may pass as ``players``.

    Attributes
    ----------
    kind : str
        The kind of data that the players are for, as in `Schema.kind`.
    """

    kind: ClassVar[str]


@dataclass(frozen=True)
class Features(Players):
    """Each column is a player."""

    kind = "table"

    def bind(self, columns: Sequence[str]) -> Partition:
        """Return the players of a table with these column names."""
        return Partition(tuple(columns), tuple(range(len(columns))))


@dataclass(frozen=True)
class Groups(Players):
    """Columns that enter and leave a coalition together.

    Columns outside of the groups stay players of their own. Players have the order of their first column.

    Parameters
    ----------
    groups : mapping of str to sequence
        The columns of each player, by name, or by position in an array.

    Examples
    --------
    >>> Groups({"job": ["job_clerk", "job_chef"]}).bind(["age", "job_clerk", "job_chef"]).names
    ('age', 'job')
    """

    kind = "table"

    groups: Mapping[str, Sequence[str | int]]

    @classmethod
    def from_one_hot(cls, X: Any) -> Groups:
        """Return one player for each category that is one-hot encoded in a DataFrame.

        These are columns of 0 and 1, as `pandas.get_dummies` makes them. Their names start alike, up to a
        separator, and that start is the player's name. Each row has exactly one of them, or at most one where a
        category was dropped or where there are gaps. Independent flags are not grouped. About twenty rows are
        needed to tell.

        Parameters
        ----------
        X : DataFrame
            The table with one-hot columns, of pandas, polars or pyarrow.

        Examples
        --------
        >>> import pandas as pd
        >>> X = pd.DataFrame({"age": range(24), "job": ["clerk", "chef", "nurse"] * 8})
        >>> Groups.from_one_hot(pd.get_dummies(X))
        Groups(groups={'job': ['job_chef', 'job_clerk', 'job_nurse']})
        """
        return cls(one_hot.recognised(*one_hot.columns_of(X), others=[str(key) for key in column_names(X) or ()]))

    @classmethod
    def from_transformer(cls, transformer: Any) -> Groups:
        """Return one player for each column that a fitted transformer one-hot encodes.

        The groups name columns of the table that the transformer returns, by position.

        Parameters
        ----------
        transformer : ColumnTransformer, OneHotEncoder or Pipeline
            A fitted transformer; a pipeline must end in one of the other two.

        Examples
        --------
        >>> from sklearn.preprocessing import OneHotEncoder
        >>> Groups.from_transformer(OneHotEncoder().fit([["clerk", "yes"], ["chef", "no"], ["nurse", "no"]]))
        Groups(groups={'column 0': [0, 1, 2], 'column 1': [3, 4]})
        """
        return cls(one_hot.encoded(transformer))

    def bind(self, columns: Sequence[str]) -> Partition:
        """Return the players of a table with these column names.

        Raises
        ------
        InputError
            If a group names a column that is not there, or two groups name the same column.
        """
        if not isinstance(self.groups, Mapping):
            raise InputError(f"players: Groups takes a mapping from names to columns, but got {self.groups!r}")
        player_of: dict[int, str] = {}
        for player, members in self.groups.items():
            if not isinstance(player, str):
                raise InputError(f"players: the group name {player!r} must be a string")
            if np.ndim(members) != 1 or len(members) == 0:
                raise InputError(f"players: group {player!r} must be a non-empty list of columns, got {members!r}")
            for member in members:
                column = self._position(player, member, columns)
                if column in player_of:
                    raise InputError(
                        f"players: column {columns[column]!r} is in both {player_of[column]!r} and {player!r}"
                    )
                player_of[column] = player
        names: list[str] = []
        owner = []
        for column, name in enumerate(columns):
            player = player_of.get(column, name)
            if column not in player_of and name in self.groups:
                raise InputError(f"players: group {name!r} has the name of a column outside it; rename the group")
            if player not in names:
                names.append(player)
            owner.append(names.index(player))
        return Partition(tuple(names), tuple(owner))

    def _position(self, player: str, member: str | int, columns: Sequence[str]) -> int:
        if str(member) in columns:  # The columns of a frame may be numbers, too.
            return list(columns).index(str(member))
        if isinstance(member, int | np.integer) and 0 <= member < len(columns):
            return int(member)
        raise InputError(
            f"players: group {player!r} names {member!r}, which is not a column; the columns are {list(columns)}"
        )


@dataclass(frozen=True)
class Superpixels(Players):
    """Patches of an image that enter and leave a coalition together.

    Parameters
    ----------
    grid : int or tuple of int, optional
        The number of patches in each direction, one number or (rows, columns). They must divide the height and the
        width of the images.
    segmentation : array of shape (height, width), optional
        The number of the patch of each pixel, the same for all images. Give either this or ``grid``.
    fill : float or sequence of float
        The value of a hidden pixel, one number or one per channel. Zero is the mean colour for a network that takes
        standardised images.

    Examples
    --------
    >>> Superpixels(grid=2).bind_image((3, 4, 4)).owner
    (0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3)
    """

    kind = "image"

    grid: int | tuple[int, int] | None = None
    segmentation: Any = None
    fill: float | Sequence[float] = 0.0

    def bind_image(self, shape: Sequence[int]) -> Partition:
        """Return the players of images of this shape, (channels, height, width).

        Raises
        ------
        InputError
            If the grid, the segmentation or the fill does not fit the images.
        """
        channels, height, width = shape
        fill = self._fill(channels)
        if (self.grid is None) == (self.segmentation is None):
            raise InputError(
                "players: give Superpixels either a grid, such as Superpixels(grid=14), or a segmentation"
            )
        if self.segmentation is not None:
            owner = _segments(self.segmentation, height, width)
            names = tuple(f"segment {i}" for i in range(max(owner) + 1))
            return Partition(names, owner, (1, height, width), None, fill)
        grid = self.grid if isinstance(self.grid, tuple | list) else (self.grid, self.grid)
        if len(grid) != 2 or not all(isinstance(g, int | np.integer) and g > 0 for g in grid):
            raise InputError(f"players: grid is {self.grid!r}; use an integer or a pair (rows, columns)")
        rows, columns = int(grid[0]), int(grid[1])  # type: ignore[arg-type]
        if height % rows or width % columns:
            raise InputError(
                f"players: a grid of {rows} x {columns} does not divide images of {height} x {width}; use one of "
                f"{_divisors(height)} rows and {_divisors(width)} columns"
            )
        row = np.arange(height) // (height // rows)
        column = np.arange(width) // (width // columns)
        owner = tuple((row[:, None] * columns + column).ravel().tolist())
        names = tuple(f"{i}, {j}" for i in range(rows) for j in range(columns))
        return Partition(names, owner, (1, height, width), (rows, columns), fill)

    def _fill(self, channels: int) -> tuple[float, ...]:
        fill = np.asarray(self.fill, dtype=np.float64)
        if fill.shape not in ((), (channels,)) or not np.isfinite(fill).all():
            raise InputError(
                f"players: fill is {self.fill!r}; use one number, or one for each of the {channels} channels"
            )
        return tuple(np.broadcast_to(fill, (channels,)).tolist())


def _segments(segmentation: ArrayLike, height: int, width: int) -> tuple[int, ...]:
    """Return the segment of each pixel, numbered from 0 without gaps in the order of the given numbers."""
    given = np.asarray(segmentation.cpu() if isinstance(segmentation, Tensor) else segmentation)
    if given.shape != (height, width) or given.dtype.kind not in "iu":
        raise InputError(
            f"players: segmentation has shape {given.shape} and dtype {given.dtype}; use integers of shape "
            f"({height}, {width}), one for each pixel, the same for all images"
        )
    return tuple(np.unique(given, return_inverse=True)[1].ravel().tolist())


def _divisors(number: int) -> list[int]:
    return [d for d in range(2, number + 1) if number % d == 0]
