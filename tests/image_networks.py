"""A small image classifier, its players, and gradient checks that several test modules share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastshapley import Superpixels
from fastshapley.players import Partition

SIZE = 8

X = torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))

STRIPES = np.arange(SIZE * SIZE).reshape(SIZE, SIZE) * 3 // 64 * 10  # three segments of different sizes


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def players(grid: int | tuple[int, int] = 4, size: tuple[int, int] = (SIZE, SIZE)) -> Partition:
    return Superpixels(grid=grid).bind_image((3, *size))


def segments(segmentation: Any = STRIPES) -> Partition:
    return Superpixels(segmentation=segmentation).bind_image((3, *np.shape(segmentation)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)) + self.short(x))


class Classifier(nn.Module):
    """A small ResNet: maps of 8 x 8, 4 x 4 and 2 x 2, mean pooling, and a linear layer."""

    def __init__(self, outputs: int = 5, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 4, 3, 1, 1)
            self.layer1 = nn.Sequential(Block(4, 4, 1), Block(4, 4, 1))
            self.layer2 = nn.Sequential(Block(4, 6, 2), Block(6, 6, 1))
            self.layer3 = nn.Sequential(Block(6, 10, 2))
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(10, outputs)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        one = self.layer1(self.conv(x))
        two = self.layer2(one)
        return {"layer1": one, "layer2": two, "layer3": self.layer3(two)}

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.maps(x)["layer3"]).flatten(1))


def by_player(values: Tensor, count: int) -> Tensor:
    """Reshape network outputs from (b, players * outputs) to (b, players, outputs)."""
    return values.unflatten(1, (count, -1))


def awaken(network: nn.Module) -> None:
    """Set parameters that start at zero to one, because zeros block the gradients of earlier layers."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.ones_(parameter)


def gradients(network: nn.Module, x: Tensor) -> dict[str, float]:
    """The largest gradient of each parameter for a random weighted sum of the values; NaN if it has none."""
    values = network(x)
    (values * normal(*values.shape)).sum().backward()
    found = network.named_parameters()
    return {name: float("nan") if p.grad is None else float(p.grad.abs().max()) for name, p in found}


def dead(network: nn.Module, x: Tensor) -> list[str]:
    """The parameters whose gradients are zero, apart from rounding errors."""
    found = gradients(network, x)
    most = np.nanmax(list(found.values()))
    return [name for name, size in found.items() if not size > 1e-6 * most]
