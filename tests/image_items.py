"""Datasets of images that several test modules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

IMAGES = torch.rand(20, 3, 4, 6, generator=torch.Generator().manual_seed(0))


class Items(Dataset[Any]):
    """A Dataset whose items are ``make(image, number)``."""

    def __init__(
        self, images: Tensor = IMAGES, make: Callable[[Tensor, int], Any] = lambda image, _: image
    ) -> None:
        self.images, self.make = images, make

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        return self.make(self.images[number], number)


class Endless(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(IMAGES)


def labelled(image: Tensor, number: int) -> tuple[Tensor, int]:
    return image, number % 3
