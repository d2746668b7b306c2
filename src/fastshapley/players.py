"""Players: what a coalition switches on or off.

`Features` and `Groups` are what a user writes; bound to a table's columns, each becomes a `Partition`,
which is all that the rest of the library knows about players.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastshapley.errors import InputError


@dataclass(frozen=True)
class Partition:
    """Every entry of an input belongs to one player.

    ``owner`` has the shape of one input without its batch axis and holds the number of the player that
    owns each entry.
    """

    names: tuple[str, ...]
    owner: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def mask(self, s: Tensor) -> Tensor:
        """Coalitions (..., players) to the entries they show (..., columns).

        >>> Partition(("a", "b"), (0, 1, 1)).mask(torch.tensor([False, True]))
        tensor([False,  True,  True])
        """
        if self.owner == tuple(range(len(self.names))):
            return s
        return s[..., torch.tensor(self.owner, device=s.device)]

    def members(self, player: int) -> list[int]:
        """The columns of one player."""
        return [column for column, owner in enumerate(self.owner) if owner == player]


@dataclass(frozen=True)
class Features:
    """Each column is a player."""

    def bind(self, columns: Sequence[str]) -> Partition:
        return Partition(tuple(columns), tuple(range(len(columns))))


@dataclass(frozen=True)
class Groups:
    """Columns that enter and leave together: a mapping from a player's name to its columns.

    Columns are given by name, or by position in an array. Columns that no group names stay players of
    their own. Players come in the order of their first column.

    >>> Groups({"job": ["job_clerk", "job_chef"]}).bind(["age", "job_clerk", "job_chef"]).names
    ('age', 'job')
    """

    groups: Mapping[str, Sequence[str | int]]

    def bind(self, columns: Sequence[str]) -> Partition:
        player_of: dict[int, str] = {}
        for player, members in self.groups.items():
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
        if str(member) in columns:  # a number too: a frame's columns may be numbered
            return list(columns).index(str(member))
        if isinstance(member, int | np.integer) and 0 <= member < len(columns):
            return int(member)
        raise InputError(
            f"players: group {player!r} names {member!r}, which is not a column; there are {list(columns)}"
        )
