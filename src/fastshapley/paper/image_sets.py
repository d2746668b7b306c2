"""The image sets of the paper's experiments, and the classifiers that are explained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fastshapley.datasets.image_loaders import Imagenette, load_cifar10

_SEED = 0


@dataclass(frozen=True)
class ImageSet:
    """An image set and its classifiers.

    Parameters
    ----------
    name : str
        The name of the set.
    size : int
        The width and the height of the images, in pixels.
    grid : int
        The number of superpixels per side.
    classifier : str
        The classifier to explain.
    other : str
        The classifier that the second evaluator starts from.
    images : int
        The number of images for training and validation.
    epochs : int
        The number of epochs of the surrogate and the evaluators.
    tuning : int, default=0
        The number of epochs of training on the labels, for a classifier of larger images.
    """

    name: str
    size: int
    grid: int
    classifier: str
    other: str
    images: int
    epochs: int
    tuning: int = 0


SETS = {
    "cifar10": ImageSet("cifar10", 32, 16, "resnet20", "resnet56", images=30_000, epochs=5),
    "imagenette": ImageSet("imagenette", 98, 14, "squeezenet", "mobilenet_v2", images=3000, epochs=16, tuning=8),
}


@dataclass(frozen=True)
class Photographs:
    """Images with values from 0 to 1, (n, 3, size, size), and their labels.

    ``x``, ``x_val`` and ``x_test`` are for training, validation and tests. Each training image is followed by its
    mirror image.
    """

    x: Tensor
    labels: Tensor
    x_val: Tensor
    labels_val: Tensor
    x_test: Tensor
    classes: tuple[str, ...]


@cache
def load_images(chosen: ImageSet, images: int | None, tests: int) -> Photographs:
    """Load a random selection of an image set, by a fixed seed.

    Parameters
    ----------
    chosen : ImageSet
        The image set.
    images : int or None
        The number of images for training and validation, or None for all. A tenth of them is for validation.
    tests : int
        The number of test images.

    Returns
    -------
    Photographs
        The images.
    """
    if chosen.name == "cifar10":
        train_set, test_set = load_cifar10("train"), load_cifar10("test")
        x, labels, classes = train_set.images.float() / 255, train_set.labels, train_set.classes
        x_test = test_set.images.float() / 255
    else:
        files, test_files = Imagenette("train", chosen.size), Imagenette("val", chosen.size)
        x, x_test = (torch.stack([part[i][0] for i in range(len(part))]) for part in (files, test_files))
        labels, classes = files.labels, files.classes
    generator = torch.Generator().manual_seed(_SEED)
    order = torch.randperm(len(x), generator=generator)[:images]
    held = max(1, len(order) // 10)
    some = torch.randperm(len(x_test), generator=generator)[:tests]
    val, rest = order[:held], order[held:]
    mirrored = torch.stack([x[rest], x[rest].flip(3)], dim=1).flatten(0, 1)
    twice = labels[rest].repeat_interleave(2)
    return Photographs(mirrored, twice, x[val], labels[val], x_test[some], classes)


def training_rows(chosen: ImageSet, images: int | None) -> int:
    """Return the number of training images of `load_images`, without loading them."""
    count = min(chosen.images, images or chosen.images)
    return 2 * (count - max(1, count // 10))
