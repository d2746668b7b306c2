"""Rows that are read when they are needed, for data that do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader


class Stream:
    """The rows of a torch Dataset, read through a DataLoader.

    It has the methods of a tensor that training uses.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        The dataset, with a length and items by number.
    read : callable
        Returns the tensor of an item, given the item and its number.
    numbers : Tensor
        The numbers of the items that are rows of this stream.
    shape : tuple of int
        The shape of one row.
    workers : int
        The number of processes that read ahead.
    device : torch.device or str
        Where the rows are put.
    """

    def __init__(
        self,
        dataset: Any,
        read: Callable[[Any, int], Tensor],
        numbers: Tensor,
        shape: tuple[int, ...],
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.dataset, self.read, self.numbers, self.shape = dataset, read, numbers, shape
        self.workers, self.device = workers, torch.device(device)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        """Return some of the rows as one tensor."""
        items = [self.item(number) for number in self.numbers[_on_cpu(rows)].tolist()]
        return (torch.stack(items) if items else torch.zeros(0, *self.shape)).to(self.device)

    def item(self, number: int) -> Tensor:
        """Return one row by its number in the dataset."""
        try:
            return self.read(self.dataset[number], number)
        except Exception as error:
            error.add_note(f"in item {number} of the Dataset")
            raise

    def split(self, size: int) -> Iterator[Tensor]:
        """Return an iterator over all rows in their order, in tensors of ``size`` rows."""
        if len(self) == 0:
            return iter([self[:0]])
        return (part for _, part in self.batches(torch.arange(len(self)).split(size)))

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Return an iterator over batches: the row numbers of each, and the rows."""
        parts: DataLoader[Tensor] = DataLoader(
            _Items(self),  # type: ignore[arg-type]
            batch_sampler=[batch.tolist() for batch in numbers],
            num_workers=self.workers,
            collate_fn=torch.stack,
            generator=torch.Generator(),  # Without one, it draws a seed from torch's global generator.
        )
        return zip(numbers, (part.to(self.device) for part in parts), strict=True)

    def some(self, rows: Tensor) -> Stream:
        """Return a stream of some of the rows."""
        numbers = self.numbers[_on_cpu(rows)]
        return Stream(self.dataset, self.read, numbers, self.shape, self.workers, self.device)

    def to(self, device: torch.device) -> Stream:
        """Return the same stream with its rows on another device."""
        return Stream(self.dataset, self.read, self.numbers, self.shape, self.workers, device)


class _Items:
    """The items that a DataLoader reads, in its own process or in others."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, row: int) -> Tensor:
        return self.stream.item(int(self.stream.numbers[row]))


def _on_cpu(rows: slice | Tensor) -> slice | Tensor:
    return rows.cpu() if isinstance(rows, Tensor) else rows


Rows = Tensor | Stream  # rows in memory, or rows that are read when they are needed


def some(x: Rows, rows: Tensor) -> Rows:
    """Return some of the rows; for a stream, a stream."""
    return x.some(rows) if isinstance(x, Stream) else x[rows]


def batches(x: Rows, numbers: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    """Return batches of row numbers with their rows; a stream reads ahead."""
    if isinstance(x, Stream):
        return x.batches(numbers)
    return ((rows, x[rows]) for rows in numbers)
