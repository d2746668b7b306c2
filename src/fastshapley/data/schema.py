"""What a kind of data must say about itself: one abstract class, with one final class for each kind.

`fastshapley.data.kinds` lists the kinds. The rest of the library asks a schema and does not ask which kind it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.data.players import Partition, Players
from fastshapley.data.stream import Rows
from fastshapley.errors import InputError
from fastshapley.explanation import Values
from fastshapley.support.shap_import import shap


class Schema(ABC):
    """The layout of the data that an explainer is fitted to, and all that depends on the kind of data.

    A schema encodes the user's data as one tensor (n, ...) or as a stream of rows, and decodes such a tensor to the
    user's own type.

    Attributes
    ----------
    kind : str
        The name of the kind of data, as `Players.kind` and the registries of networks have it.
    noun : str
        The data in an error message, such as ``"a table"``.
    suits_one_thread : bool
        Whether the networks for this kind are so small that a second thread slows them down.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    suits_one_thread: ClassVar[bool]

    # -- the user's data and tensors

    @classmethod
    @abstractmethod
    def of(cls, X: Any) -> Self:
        """Return the schema of the user's data."""

    @abstractmethod
    def agreed(self, everyone: Sequence[Self]) -> Self:
        """Return the one schema that fits the rows of all processes.

        Parameters
        ----------
        everyone : sequence of Schema
            The schemas of all processes, including this one.

        Raises
        ------
        InputError
            If the rows of some processes have another layout.
        """

    @abstractmethod
    def encode(self, X: Any, argument: str = "X") -> Rows:
        """Return the user's data as one tensor or as a stream of rows.

        Parameters
        ----------
        X : object
            Data of the layout that the schema describes.
        argument : str
            The name of the argument that an error message shows.

        Raises
        ------
        InputError
            If the data have another layout.
        """

    @abstractmethod
    def decode(self, x: Tensor) -> Any:
        """Return encoded rows as the user's own type, which is what the user's model is called with."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain JSON values; a kind that is added later names itself under ``"kind"``."""

    @classmethod
    @abstractmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the schema that `to_dict` described."""

    # -- players

    def bind(self, players: Players | None) -> Partition:
        """Return the players of data with this layout.

        Parameters
        ----------
        players : Players or None
            What the user asked for; None for the default.

        Raises
        ------
        InputError
            If the players are for another kind of data, or do not fit the layout.
        """
        if players is not None and players.kind != self.kind:
            raise InputError(f"players is {players!r}, but the value function was fitted to {self.noun}")
        return self._bind(players)

    @abstractmethod
    def _bind(self, players: Any) -> Partition:
        """Return the players; they are known to be for this kind of data."""

    @abstractmethod
    def players_of(self, partition: Partition) -> Players | None:
        """Return the players as a user would write them; None for the default."""

    # -- rows

    @property
    @abstractmethod
    def discrete(self) -> tuple[bool, ...]:
        """Whether each column holds categories or booleans; empty for data without columns."""

    @abstractmethod
    def augment(self, x: Tensor, count: int, generator: torch.Generator, owner: Sequence[int]) -> Tensor:
        """Return ``count`` new rows near the encoded rows ``x``.

        Parameters
        ----------
        x : Tensor
            Encoded rows (n, ...).
        count : int
            The number of new rows.
        generator : torch.Generator
            The source of random numbers.
        owner : sequence of int
            The player of each column or pixel, as in `Partition.owner`.
        """

    @abstractmethod
    def baseline_row(self, x: Rows, players: Partition, values: Mapping[str, Any] | None) -> Tensor:
        """Return the one row (1, ...) whose entries replace hidden ones.

        Parameters
        ----------
        x : Tensor or Stream
            Encoded rows.
        players : Partition
            The players.
        values : mapping or None
            Values of some columns; the others take the default of this kind of data.
        """

    @abstractmethod
    def missing_row(self, x: Rows) -> Tensor:
        """Return one row (1, ...) in which every entry is missing."""

    def new_gaps(self, x: Rows, known: Collection[int]) -> list[str]:
        """Return the names of columns with gaps, apart from the columns with the numbers ``known``."""
        return []

    def missing_categories(self, x: Tensor) -> list[str]:
        """Return the names of columns of categories that have gaps in the encoded rows ``x``."""
        return []

    def one_hot_groups(self, x: Rows) -> dict[str, list[str]]:
        """Return the columns of each category that looks one-hot encoded in the encoded rows ``x``."""
        return {}

    # -- summaries, which rows are compared by when they drift

    @property
    @abstractmethod
    def summary_names(self) -> tuple[str, ...]:
        """The names of the columns of `summarise`."""

    @property
    @abstractmethod
    def summary_discrete(self) -> tuple[bool, ...]:
        """Whether each column of `summarise` holds categories or booleans."""

    @abstractmethod
    def summarise(self, x: Tensor) -> Tensor:
        """Return a few numbers for each encoded row, (n, summaries)."""

    @abstractmethod
    def examples(self, sample: Tensor, count: int) -> Tensor:
        """Return ``count`` encoded rows to try a network on; ``sample`` holds summaries of known rows."""

    def ranges(self, sample: Tensor) -> list[list[float] | None] | None:
        """Return the range of each column of ``sample``; None for data without columns."""
        return None

    # -- explanations

    @abstractmethod
    def explanation(
        self, x: Rows, values: Values, players: Partition, *, upsample: bool = False
    ) -> shap.Explanation:
        """Return the explanation of encoded rows.

        Parameters
        ----------
        x : Tensor or Stream
            Encoded rows (n, ...).
        values : Values
            Their values.
        players : Partition
            The players.
        upsample : bool
            Whether each player's value is divided among its pixels.

        Raises
        ------
        InputError
            If ``upsample`` is set and the data have no pixels.
        """

    @abstractmethod
    def shaped_values(self, values: Tensor, players: Partition, *, upsample: bool = False) -> NDArray[np.float64]:
        """Return values (n, players, outputs) in the shape of `shap_values`; ``upsample`` as for `explanation`."""
