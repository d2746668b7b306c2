"""SqueezeNet 1.1, an ImageNet classifier of 5 MB, with torchvision's parameter names."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """Reduce the channels, then expand them by 1 x 1 and 3 x 3: (n, inputs, h, w) to (n, 2 expanded, h, w)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.relu1 = nn.ReLU()
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of this layer."""
        hidden = self.relu1(self.squeeze(x))
        return self.relu2(torch.cat([self.expand1x1(hidden), self.expand3x3(hidden)], dim=1))


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1, from standardised images (n, 3, h, w) to logits (n, classes), which are not negative.

    Parameters
    ----------
    classes : int, default=1000
        The number of classes.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2),
            nn.ReLU(),
            _pool(),
            Fire(64, 16, 64),
            Fire(128, 16, 64),
            _pool(),
            Fire(128, 32, 128),
            Fire(256, 32, 128),
            _pool(),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            Fire(512, 64, 256),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(512, classes, 1), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, channels, height, width)."""
        return self.classifier(self.features(images)).mean((2, 3))


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)
