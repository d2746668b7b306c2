"""Standardise the images of a classifier, and select some of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastshapley.errors import InputError

# Mean and standard deviation of ImageNet's red, green and blue.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Normalized(nn.Module):
    """A network that takes images (n, channels, h, w) with values from 0 to 1, and standardises them by channel.

    Parameters
    ----------
    network : torch.nn.Module
        A network of standardised images.
    mean, std : sequence of float
        The mean and the standard deviation of each channel. The default is that of ImageNet.

    Raises
    ------
    InputError
        If the two do not have the same length, or a standard deviation is not positive.
    """

    def __init__(self, network: nn.Module, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        super().__init__()
        if len(mean) != len(std):
            raise InputError(f"mean has {len(mean)} numbers and std {len(std)}: pass one per channel")
        if not all(number > 0 for number in std):
            raise InputError(f"std is {std!r}: pass numbers above 0")
        self.network = network
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    mean: Tensor
    std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, channels, height, width)."""
        # One channel would be broadcast to three, and bytes would be values up to 255, both without an error.
        if images.ndim != 4 or images.shape[1] != len(self.mean) or not images.is_floating_point():
            raise InputError(
                f"images is a {images.dtype} tensor of shape {tuple(images.shape)}: pass floats from 0 to 1 of "
                f"shape (n, {len(self.mean)}, height, width)"
            )
        return self.network((images - self.mean) / self.std)


class Selected(nn.Module):
    """A network with some of the outputs of another, in the order of ``outputs``.

    Parameters
    ----------
    network : torch.nn.Module
        A network that returns logits, (n, all).
    outputs : sequence of int
        The indices of the outputs to keep.

    Raises
    ------
    InputError
        If there are no indices, or one is negative.
    """

    def __init__(self, network: nn.Module, outputs: Sequence[int]) -> None:
        super().__init__()
        if len(outputs) == 0 or min(outputs) < 0:
            raise InputError(f"outputs is {outputs!r}: pass the indices of the outputs to keep, from 0")
        self.network = network
        self.largest = max(outputs)
        self.register_buffer("outputs", torch.tensor(outputs))

    outputs: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return the selected logits."""
        logits: Tensor = self.network(x)
        if logits.ndim != 2 or logits.shape[1] <= self.largest:
            raise InputError(
                f"network returned shape {tuple(logits.shape)}: expected (n, {self.largest + 1}) or more, "
                f"since outputs has {self.largest}"
            )
        return logits[:, self.outputs]
