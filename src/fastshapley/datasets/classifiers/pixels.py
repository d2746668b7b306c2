"""Around an image classifier: what comes before its first layer, and which of its outputs are kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastshapley.errors import InputError

# of ImageNet's red, green and blue
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Normalized(nn.Module):
    """Images (n, channels, h, w) of numbers from 0 to 1, standardised by channel for ``network``."""

    def __init__(self, network: nn.Module, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        super().__init__()
        if len(mean) != len(std):
            raise InputError(f"mean has {len(mean)} numbers and std {len(std)}: give one for each channel")
        if not all(number > 0 for number in std):
            raise InputError(f"std is {std!r}: give numbers above 0")
        self.network = network
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    mean: Tensor
    std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        # one channel would be spread over three, and bytes would be numbers up to 255: wrong without an error
        if images.ndim != 4 or images.shape[1] != len(self.mean) or not images.is_floating_point():
            raise InputError(
                f"images is a {images.dtype} tensor of shape {tuple(images.shape)}: give floats from 0 to 1 of "
                f"shape (n, {len(self.mean)}, height, width)"
            )
        return self.network((images - self.mean) / self.std)


class Selected(nn.Module):
    """Some logits of ``network``, in the order of ``outputs``: from (n, all) to (n, len(outputs))."""

    def __init__(self, network: nn.Module, outputs: Sequence[int]) -> None:
        super().__init__()
        if len(outputs) == 0 or min(outputs) < 0:
            raise InputError(f"outputs is {outputs!r}: give the numbers of the outputs to keep, from 0")
        self.network = network
        self.largest = max(outputs)
        self.register_buffer("outputs", torch.tensor(outputs))

    outputs: Tensor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        if logits.ndim != 2 or logits.shape[1] <= self.largest:
            raise InputError(
                f"network returned shape {tuple(logits.shape)}: expected (n, {self.largest + 1}) or more, as "
                f"outputs has {self.largest}"
            )
        return logits[:, self.outputs]
