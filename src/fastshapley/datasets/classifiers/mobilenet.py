"""MobileNetV2 with its batch norms folded into the convolutions: small, and fast at inference."""

from __future__ import annotations

from torch import Tensor, nn

# For each group of blocks: the expansion of channels, the output channels, the blocks, the stride of the first.
_GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand the channels, convolve each channel separately, and reduce the channels.

    The input is (n, inputs, h, w), the output (n, outputs, h / stride, w / stride). If both have the same shape,
    the input is added to the output.

    Parameters
    ----------
    inputs, outputs : int
        The numbers of channels.
    stride : int
        The stride of the 3 x 3 convolution.
    expansion : int
        The factor by which the channels are expanded.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = expansion * inputs
        widen = [nn.Conv2d(inputs, width, 1), nn.ReLU6()] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen,
            nn.Conv2d(width, width, 3, stride, padding=1, groups=width),
            nn.ReLU6(),
            nn.Conv2d(width, outputs, 1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of this layer."""
        hidden = self.conv(x)
        return x + hidden if self.residual else hidden


class FoldedMobileNetV2(nn.Module):
    """MobileNetV2, from standardised images (n, 3, h, w) to logits (n, classes).

    Parameters
    ----------
    classes : int, default=1000
        The number of classes.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU6()]
        inputs = 32
        for expansion, outputs, count, first in _GROUPS:
            for number in range(count):
                parts.append(InvertedResidual(inputs, outputs, 1 if number else first, expansion))
                inputs = outputs
        self.features = nn.Sequential(*parts, nn.Conv2d(inputs, 1280, 1), nn.ReLU6())
        self.classifier = nn.Linear(1280, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, channels, height, width)."""
        return self.classifier(self.features(images).mean((2, 3)))
