"""Rows that are read when they are needed: what training asks of a tensor, for data that memory cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader


class Stream:
    """The rows of a torch Dataset, read through a DataLoader.

    ``read`` makes a tensor of one item of the dataset, of ``shape``, given its number, or raises; ``numbers`` are
    those of the items. ``workers`` processes read ahead.
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
        """The rows themselves, as one tensor."""
        items = [self.item(number) for number in self.numbers[_on_cpu(rows)].tolist()]
        return (torch.stack(items) if items else torch.zeros(0, *self.shape)).to(self.device)

    def item(self, number: int) -> Tensor:
        """One row by its number in the dataset."""
        try:
            return self.read(self.dataset[number], number)
        except Exception as error:
            error.add_note(f"in item {number} of the Dataset")
            raise

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows in their order, in tensors of ``size`` rows."""
        if len(self) == 0:
            return iter([self[:0]])
        return (part for _, part in self.batches(torch.arange(len(self)).split(size)))

    def batches(self, numbers: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows of each of these batches of row numbers, with the numbers."""
        parts: DataLoader[Tensor] = DataLoader(
            _Items(self),  # type: ignore[arg-type]
            batch_sampler=[batch.tolist() for batch in numbers],
            num_workers=self.workers,
            collate_fn=torch.stack,
            generator=torch.Generator(),  # or it would draw a seed for its workers from torch's own
        )
        return zip(numbers, (part.to(self.device) for part in parts), strict=True)

    def some(self, rows: Tensor) -> Stream:
        """A stream of some of the rows."""
        numbers = self.numbers[_on_cpu(rows)]
        return Stream(self.dataset, self.read, numbers, self.shape, self.workers, self.device)

    def to(self, device: torch.device) -> Stream:
        return Stream(self.dataset, self.read, self.numbers, self.shape, self.workers, device)


class _Items:
    """What a DataLoader reads from, in its own process or in others."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __getitem__(self, row: int) -> Tensor:
        return self.stream.item(int(self.stream.numbers[row]))


def _on_cpu(rows: slice | Tensor) -> slice | Tensor:
    return rows.cpu() if isinstance(rows, Tensor) else rows


Rows = Tensor | Stream  # what is held in memory, or read when it is needed


def some(x: Rows, rows: Tensor) -> Rows:
    """Some of the rows; of a stream a stream."""
    return x.some(rows) if isinstance(x, Stream) else x[rows]


def batches(x: Rows, numbers: Sequence[Tensor]) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches of row numbers with their rows; a stream reads ahead."""
    if isinstance(x, Stream):
        return x.batches(numbers)
    return ((rows, x[rows]) for rows in numbers)
