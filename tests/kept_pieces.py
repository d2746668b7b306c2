"""Pieces of work that other processes can import, for the tests of the pool."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SquareFiles:
    """Work whose pieces are numbers, and which writes the square of each to a file of its own.

    Parameters
    ----------
    folder : Path
        The folder for the files.
    broken : tuple of int
        The numbers that fail.
    """

    folder: Path
    broken: tuple[int, ...] = ()

    def has(self, piece: int) -> bool:
        """Return whether the file of a number exists."""
        return (self.folder / str(piece)).exists()

    def compute(self, piece: int) -> None:
        """Write the square of a number and the process that computed it."""
        if piece in self.broken:
            raise ValueError(f"{piece} is broken")
        (self.folder / str(piece)).write_text(f"{piece**2} {os.getpid()}")

    def results(self) -> dict[int, int]:
        """Return the squares that are there."""
        return {int(path.name): int(path.read_text().split()[0]) for path in self.folder.iterdir()}

    def processes(self) -> set[int]:
        """Return the processes that computed something."""
        return {int(path.read_text().split()[1]) for path in self.folder.iterdir()}
