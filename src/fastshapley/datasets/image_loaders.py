"""Load the images of the paper from the files that their publishers distribute.

Files are searched in the folder ``$FASTSHAPLEY_DATA`` and in the user's cache. Missing files are downloaded to the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fastshapley.datasets.download import Folder, find_folder
from fastshapley.errors import FileFormatError, InputError
from fastshapley.support.optional import require

FOLDERS = {
    "cifar10": Folder(
        "cifar-10-batches-bin",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "imagenette": Folder(
        "imagenette",
        "https://github.com/fastai/imagenette",
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-320.tgz",
        "imagenette2-320",
        "569b4497c98db6dd29f335d1f109cf315fe127053cedf69010d047f0188e158c",
    ),
}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Imagenette's folders in the order of its labels: the name of the class, and its index among ImageNet's 1000.
IMAGENETTE_CLASSES = {
    "n01440764": ("tench", 0),
    "n02102040": ("English springer", 217),
    "n02979186": ("cassette player", 482),
    "n03000684": ("chain saw", 491),
    "n03028079": ("church", 497),
    "n03394916": ("French horn", 566),
    "n03417042": ("garbage truck", 569),
    "n03425413": ("gas pump", 571),
    "n03445777": ("golf ball", 574),
    "n03888257": ("parachute", 701),
}
_RECORD_BYTES = 1 + 3 * 32 * 32  # the label, then the planes of red, green and blue
_RECORDS = 10_000  # records per file


@dataclass(frozen=True)
class Images:
    """Images in memory.

    Parameters
    ----------
    images : Tensor
        The images, (n, 3, height, width), uint8.
    labels : Tensor
        The labels, (n,), int64.
    classes : tuple of str
        The names of the classes.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]


def load_cifar10(split: Literal["train", "test"] = "train") -> Images:
    """Load CIFAR-10, which has images of 32 x 32 pixels.

    Parameters
    ----------
    split : {"train", "test"}, default="train"
        50,000 training images, or fewer if some of the five files are missing, or 10,000 test images.

    Returns
    -------
    Images
        The images.

    Raises
    ------
    FileNotFoundError
        If there are no files, and they cannot be downloaded.
    FileFormatError
        If a file is damaged.
    """
    names = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
    if split not in names:
        raise InputError(f"split is {split!r}: use 'train' or 'test'")
    folder = find_folder(FOLDERS["cifar10"])
    paths = [path for name in names[split] if (path := folder / name).exists()]
    if not paths:
        raise FileNotFoundError(
            f"{folder} has none of {names[split]}: put the files of {FOLDERS['cifar10'].archive} there, or delete "
            "the folder to download them"
        )
    records = torch.from_numpy(np.concatenate([_records(path) for path in paths]))
    return Images(records[:, 1:].reshape(-1, 3, 32, 32).contiguous(), records[:, 0].long(), CIFAR10_CLASSES)


def _records(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) != _RECORDS * _RECORD_BYTES:
        raise FileFormatError(
            f"{path} has {len(content)} bytes, but files of CIFAR-10's binary version have "
            f"{_RECORDS * _RECORD_BYTES}: download it again"
        )
    records = content.reshape(_RECORDS, _RECORD_BYTES)
    if records[:, 0].max() >= len(CIFAR10_CLASSES):
        raise FileFormatError(
            f"{path} has a label {records[:, 0].max()}: it is not a file of CIFAR-10's binary version"
        )
    return records


class Imagenette(Dataset[tuple[Tensor, int]]):
    """Photographs of ten of ImageNet's classes.

    An item is an image (3, size, size), float32 from 0 to 1, and its label. Items are sorted by class, then by file
    name, and read from the file each time. The shorter side is scaled to ``size``, and the longer side is cropped
    to its middle.

    Parameters
    ----------
    split : {"train", "val"}, default="train"
        The part of the data set.
    size : int, default=224
        The width and the height of the images, in pixels.

    Attributes
    ----------
    paths : list of Path
        The files.
    labels : Tensor
        The labels, (n,).
    classes : tuple of str
        The names of the classes.
    """

    classes = tuple(name for name, _ in IMAGENETTE_CLASSES.values())

    def __init__(self, split: Literal["train", "val"] = "train", size: int = 224) -> None:
        if split not in ("train", "val"):
            raise InputError(f"split is {split!r}: use 'train' or 'val'")
        if size < 1:
            raise InputError(f"size is {size!r}: pass the pixels of a side, such as 224")
        self.size = size
        self.paths: list[Path] = []
        labels = []
        folder = find_folder(FOLDERS["imagenette"]) / split
        for label, wnid in enumerate(IMAGENETTE_CLASSES):
            found = sorted((folder / wnid).glob("[!.]*.JPEG"))
            if not found:
                raise FileNotFoundError(
                    f"{folder / wnid} has no files *.JPEG: put those of {FOLDERS['imagenette'].archive} there, or "
                    f"delete {folder.parent} to download them"
                )
            self.paths += found
            labels += [label] * len(found)
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return _photograph(self.paths[number], self.size), int(self.labels[number])


def _photograph(path: Path, size: int) -> Tensor:
    """Return the middle of an image file, (3, size, size), float32 from 0 to 1."""
    Image = require("PIL.Image", "paper")
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read as an image ({error}): download it again") from error
    scale = size / min(image.size)
    width, height = (round(scale * side) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
