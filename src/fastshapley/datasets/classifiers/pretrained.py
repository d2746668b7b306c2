"""Load image classifiers with published weights from a data folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from fastshapley.datasets.classifiers.mobilenet import FoldedMobileNetV2
from fastshapley.datasets.classifiers.pixels import Normalized, Selected
from fastshapley.datasets.classifiers.resnet import CifarResNet
from fastshapley.datasets.classifiers.squeezenet import SqueezeNet
from fastshapley.datasets.download import at_hand, places
from fastshapley.datasets.image_loaders import IMAGENETTE_CLASSES
from fastshapley.errors import FileFormatError, InputError

_CIFAR = "https://github.com/akamaster/pytorch_resnet_cifar10/tree/master/pretrained_models"
_ZOO = "https://github.com/onnx/models (its parameters as a state dict)"
# How to build each network, the file of its weights, and where the file comes from.
_PUBLISHED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "resnet20": (partial(CifarResNet, 20), "weights/resnet20-12fca82f.th", _CIFAR),
    "resnet56": (partial(CifarResNet, 56), "weights/resnet56-4bfd9763.th", _CIFAR),
    "mobilenet_v2": (FoldedMobileNetV2, "weights/mobilenet_v2_folded_fp16_onnxzoo.pt", _ZOO),
    "squeezenet": (SqueezeNet, "weights/squeezenet1_1_onnxzoo.pt", _ZOO),
}


def load_classifier(name: str) -> Normalized:
    """Load a trained classifier.

    Parameters
    ----------
    name : {"resnet20", "resnet56", "mobilenet_v2", "squeezenet"}
        The first two classify CIFAR-10. The others classify Imagenette, whose ten classes are among the 1000
        classes that they were trained on.

    Returns
    -------
    Normalized
        The network in evaluation mode, from images (n, 3, h, w) with values from 0 to 1 to logits (n, 10).

    Raises
    ------
    FileNotFoundError
        If the weights are not in a data folder.
    FileFormatError
        If the file does not hold these weights.
    """
    if name not in _PUBLISHED:
        raise InputError(f"name is {name!r}: use one of {', '.join(_PUBLISHED)}")
    build, file, page = _PUBLISHED[name]
    path = at_hand(file)
    if path is None:
        raise FileNotFoundError(
            f"{file} is in none of {[str(folder) for folder in places()]}: put the file from {page} to "
            f"{places()[0] / file}, or set FASTSHAPLEY_DATA to the folder that holds it"
        )
    with torch.random.fork_rng(
        devices=[]
    ):  # A new network draws random weights, which those of the file then replace.
        network = build()
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        weights = content.get("state_dict", content)
        network.load_state_dict({key.removeprefix("module."): weight for key, weight in weights.items()})
    except Exception as error:
        raise FileFormatError(f"{path} does not hold the weights of {name} ({error}): download it again") from error
    if not isinstance(network, CifarResNet):
        network = Selected(network, [index for _, index in IMAGENETTE_CLASSES.values()])
    return Normalized(network).eval()
