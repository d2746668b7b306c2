"""A small network for images from scratch.

A user writes `UNet`. Built for the players and outputs of a game, it becomes `UNetMaps`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastshapley.data.players import Partition
from fastshapley.networks.image_maps import ToPlayers, resized
from fastshapley.networks.weights import Configured


@dataclass(frozen=True)
class UNet:
    """A small explainer network for images from scratch: down to coarse maps, and back up to the grid.

    Parameters
    ----------
    width : int
        The number of channels of the first maps.
    """

    width: int = 32

    def build(self, model: Any, players: Partition, outputs: int, x: Tensor) -> UNetMaps:
        """Return the module for a game; the arguments are those of `Backbone.build`."""
        return UNetMaps(x.shape[1], outputs, players, self.width)


class UNetMaps(nn.Module, Configured):
    """The module of a `UNet`: images to values (b, players * outputs).

    Parameters
    ----------
    channels : int
        The number of channels of the images.
    outputs : int
        The number of values per player.
    players : Partition
        The players.
    width : int
        As for `UNet`.
    """

    def __init__(self, channels: int, outputs: int, players: Partition, width: int) -> None:
        super().__init__()
        self.config = {"channels": channels, "outputs": outputs, "width": width}
        self.to_players = ToPlayers(players)
        size = players.shape[1:]
        finest = players.grid or (math.isqrt(len(players)),) * 2
        # Halve until the maps match the players, then twice more, and come back up by two.
        halvings = max(0, math.floor(math.log2(min(size[0] / finest[0], size[1] / finest[1]))))
        self.stem = nn.Sequential(_block(channels, width), *[_down(width, width) for _ in range(halvings)])
        self.levels = nn.ModuleList([_block(width, width)])
        for level in range(min(2, math.floor(math.log2(max(1, min(finest)))))):
            self.levels.append(_down(width << level, width << level + 1))
        self.ups = nn.ModuleList(
            _block((width << level) + (width << level + 1), width << level) for level in range(len(self.levels) - 1)
        )
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return values (b, players * outputs) of images."""
        made = self.stem(x)
        levels: list[Tensor] = []
        for level in self.levels:
            made = level(made)
            levels.append(made)
        for up, finer in zip(reversed(self.ups), reversed(levels[:-1]), strict=True):
            made = up(torch.cat([finer, resized(made, tuple(finer.shape[2:]))], dim=1))
        result: Tensor = self.to_players(self.head(made))
        return result


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    groups = math.gcd(outputs, max(1, outputs // 8))  # Groups of 8 channels keep maps of one place apart.
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1),
        nn.GroupNorm(groups, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1),
        nn.GroupNorm(groups, outputs),
        nn.SiLU(),
    )


def _down(inputs: int, outputs: int) -> nn.Sequential:
    return _block(inputs, outputs, stride=2)
