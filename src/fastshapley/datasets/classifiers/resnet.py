"""Residual networks for images, with the parameter names of the published weights.

Each activation is a module that is used once, since methods that hook activations, such as DeepLift, need this.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from fastshapley.errors import InputError


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: (n, inputs, h, w) to (n, width, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = _convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of this layer."""
        hidden = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(hidden)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1 convolutions, and a shortcut.

    The input is (n, inputs, h, w), the output (n, 4 width, h / stride, w / stride). The 3 x 3 convolution has the
    stride, as in the published weights, and not the first one, as in the paper.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = _convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = _convolution(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = downsample
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of this layer."""
        hidden = self.relu1(self.bn1(self.conv1(x)))
        hidden = self.relu2(self.bn2(self.conv2(hidden)))
        return self.relu3(self.bn3(self.conv3(hidden)) + self.downsample(x))


class ResNet(nn.Module):
    """The ResNet for ImageNet, from standardised images (n, 3, h, w) to logits (n, classes).

    The parameters have torchvision's names, so its weights can be loaded.

    Parameters
    ----------
    block : type
        `BasicBlock` or `Bottleneck`.
    layers : sequence of int
        The number of blocks of each of the four stages.
    classes : int, default=1000
        The number of classes.

    Raises
    ------
    InputError
        If ``layers`` does not have four positive numbers.
    """

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], layers: Sequence[int], classes: int = 1000
    ) -> None:
        super().__init__()
        if len(layers) != 4 or min(layers) < 1:
            raise InputError(f"layers is {layers!r}: pass the number of blocks of each of four stages")
        self.conv1 = _convolution(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        growth = block.expansion
        self.layer1 = _stage(block, 64, 64, layers[0], stride=1)
        self.layer2 = _stage(block, 64 * growth, 128, layers[1], stride=2)
        self.layer3 = _stage(block, 128 * growth, 256, layers[2], stride=2)
        self.layer4 = _stage(block, 256 * growth, 512, layers[3], stride=2)
        self.fc = nn.Linear(512 * growth, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, channels, height, width)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def resnet18(classes: int = 1000) -> ResNet:
    """Return a ResNet with 18 layers."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


def resnet34(classes: int = 1000) -> ResNet:
    """Return a ResNet with 34 layers."""
    return ResNet(BasicBlock, (3, 4, 6, 3), classes)


def resnet50(classes: int = 1000) -> ResNet:
    """Return a ResNet with 50 layers."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)


def resnet101(classes: int = 1000) -> ResNet:
    """Return a ResNet with 101 layers."""
    return ResNet(Bottleneck, (3, 4, 23, 3), classes)


class CifarResNet(nn.Module):
    """The ResNet for CIFAR-10, from standardised images (n, 3, h, w) to logits (n, classes).

    Three stages of basic blocks have 16, 32 and 64 channels. The shortcuts between stages have no parameters. The
    parameters have the names of github.com/akamaster/pytorch_resnet_cifar10, so its weights can be loaded.

    Parameters
    ----------
    depth : int, default=20
        The number of layers, 6 k + 2.
    classes : int, default=10
        The number of classes.

    Raises
    ------
    InputError
        If there is no network of this depth.
    """

    def __init__(self, depth: int = 20, classes: int = 10) -> None:
        super().__init__()
        count, rest = divmod(depth - 2, 6)
        if count < 1 or rest:
            raise InputError(f"depth is {depth!r}: use 6 k + 2, such as 20, 32, 44, 56 or 110")
        self.conv1 = _convolution(3, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = _stage(BasicBlock, 16, 16, count, stride=1)
        self.layer2 = _stage(BasicBlock, 16, 32, count, stride=2, shortcut=Padding(8))
        self.layer3 = _stage(BasicBlock, 32, 64, count, stride=2, shortcut=Padding(16))
        self.linear = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, channels, height, width)."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class Padding(nn.Module):
    """A shortcut without parameters: every other pixel, with ``margin`` channels of zeros on either side."""

    def __init__(self, margin: int) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of this layer."""
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.margin, self.margin))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _stage(
    block: type[BasicBlock] | type[Bottleneck],
    inputs: int,
    width: int,
    count: int,
    stride: int,
    shortcut: nn.Module | None = None,
) -> nn.Sequential:
    """Return ``count`` blocks. The first has the stride, and a shortcut with weights unless one is given."""
    outputs = block.expansion * width
    if shortcut is None and (stride, inputs) == (1, outputs):
        shortcut = nn.Identity()
    elif shortcut is None:
        shortcut = nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
    first = block(inputs, width, stride, shortcut)
    return nn.Sequential(first, *(block(outputs, width, 1, nn.Identity()) for _ in range(count - 1)))
