"""Image classifiers with published weights, which are at hand in a folder of data."""

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
_ZOO = "https://github.com/onnx/models, its parameters as a state dict"
# how each is built, the file of its weights, and where that is from
_PUBLISHED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "resnet20": (partial(CifarResNet, 20), "weights/resnet20-12fca82f.th", _CIFAR),
    "resnet56": (partial(CifarResNet, 56), "weights/resnet56-4bfd9763.th", _CIFAR),
    "mobilenet_v2": (FoldedMobileNetV2, "weights/mobilenet_v2_folded_fp16_onnxzoo.pt", _ZOO),
    "squeezenet": (SqueezeNet, "weights/squeezenet1_1_onnxzoo.pt", _ZOO),
}


def load_classifier(name: str) -> Normalized:
    """A trained classifier, in evaluation mode: images (n, 3, h, w) of floats from 0 to 1 to logits (n, 10).

    ``"resnet20"`` and ``"resnet56"`` know CIFAR-10's classes, ``"mobilenet_v2"`` and ``"squeezenet"`` know
    Imagenette's, which are ten of the 1000 that they were trained on.
    """
    if name not in _PUBLISHED:
        raise InputError(f"name is {name!r}: use one of {', '.join(_PUBLISHED)}")
    build, file, page = _PUBLISHED[name]
    path = at_hand(file)
    if path is None:
        raise FileNotFoundError(
            f"{file} is in none of {[str(folder) for folder in places()]}: put that file, from {page}, to "
            f"{places()[0] / file}, or set FASTSHAPLEY_DATA to the folder that holds it"
        )
    with torch.random.fork_rng(devices=[]):  # new networks draw weights, which the file's then replace
        network = build()
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        weights = content.get("state_dict", content)
        network.load_state_dict({key.removeprefix("module."): weight for key, weight in weights.items()})
    except Exception as error:
        raise FileFormatError(f"{path} has no weights of {name} ({error}): fetch it again") from error
    if not isinstance(network, CifarResNet):
        network = Selected(network, [index for _, index in IMAGENETTE_CLASSES.values()])
    return Normalized(network).eval()
