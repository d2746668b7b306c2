"""Tests of ImageSchema: every container gives the same pixels, and other data is refused with a clear message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from image_items import IMAGES, Endless, Items, labelled
from torch import Tensor
from torch.utils.data import DataLoader

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.stream import Stream
from fastshapley.errors import InputError

SCHEMA = ImageSchema.of(IMAGES)


def whole(rows: Any) -> Tensor:
    """All rows of a tensor or stream."""
    found = rows[:]
    assert isinstance(found, Tensor)
    return found


CONTAINERS: dict[str, tuple[Any, str, str]] = {
    "tensor": (IMAGES, "tensor", "float32"),
    "float64 tensor": (IMAGES.double(), "tensor", "float64"),
    "tensor with gradients": (IMAGES.clone().requires_grad_(), "tensor", "float32"),
    "array": (IMAGES.numpy(), "array", "float32"),
    "float64 array": (IMAGES.double().numpy(), "array", "float64"),
    "array with strides": (IMAGES.numpy().copy()[::-1][::-1], "array", "float32"),
    "list of arrays": (list(IMAGES.numpy()), "array", "float32"),
    "Dataset": (Items(), "dataset", "float32"),
    "Dataset of arrays": (Items(make=lambda image, _: image.numpy()), "dataset", "float32"),
    "Dataset with labels": (Items(make=labelled), "dataset", "float32"),
    "Dataset of lists": (Items(make=lambda image, number: [image, number]), "dataset", "float32"),
    "float64 Dataset": (Items(IMAGES.double()), "dataset", "float64"),
    "DataLoader": (DataLoader(Items(make=labelled), batch_size=3, shuffle=True), "dataset", "float32"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_images_in_any_container_become_a_float32_tensor(name: str) -> None:
    X, container, dtype = CONTAINERS[name]
    schema = ImageSchema.of(X)
    assert (schema.container, schema.shape, schema.dtype) == (container, (3, 4, 6), dtype)
    seen = IMAGES[:16] if container == "dataset" else IMAGES
    assert (schema.low, schema.high) == pytest.approx((float(seen.min()), float(seen.max())))
    assert schema.discrete == ()
    x = schema.encode(X)
    assert isinstance(x, Stream if container == "dataset" else Tensor)
    assert whole(x).dtype == torch.float32
    assert torch.equal(whole(x), IMAGES)
    assert not whole(x).requires_grad


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_schema_encodes_images_in_a_different_container(name: str) -> None:
    assert torch.equal(whole(SCHEMA.encode(CONTAINERS[name][0])), IMAGES)


@pytest.mark.parametrize("name", CONTAINERS)
def test_decoded_images_have_the_container_and_dtype_of_the_input(name: str) -> None:
    X, container, dtype = CONTAINERS[name]
    decoded = ImageSchema.of(X).decode(IMAGES)
    assert isinstance(decoded, np.ndarray if container == "array" else Tensor)
    assert str(decoded.dtype).removeprefix("torch.") == dtype
    assert np.array_equal(np.asarray(decoded, dtype=np.float32), IMAGES.numpy())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_replaced_by_its_dataset_and_its_number_of_workers(workers: int) -> None:
    """Rows come in the order of the dataset, whatever the order and batches of the loader."""
    loader = DataLoader(Items(make=labelled), batch_size=7, shuffle=True, drop_last=True, num_workers=workers)
    x = ImageSchema.of(loader).encode(loader)
    assert isinstance(x, Stream)
    assert x.workers == workers
    assert torch.equal(torch.cat(list(x.split(6))), IMAGES)


@pytest.mark.parametrize("name", ["tensor", "float64 array", "Dataset"])
def test_a_schema_can_be_saved_as_json(name: str) -> None:
    schema = ImageSchema.of(CONTAINERS[name][0])
    assert ImageSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_a_later_batch_may_be_empty() -> None:
    assert SCHEMA.encode(IMAGES[:0]).shape == (0, 3, 4, 6)


def test_a_batch_of_one_image_is_accepted() -> None:
    assert torch.equal(ImageSchema.of(IMAGES[:1]).encode(IMAGES[:1])[:], IMAGES[:1])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_any_number_of_channels_is_accepted(channels: int) -> None:
    assert ImageSchema.of(torch.rand(2, channels, 8, 9)).shape == (channels, 8, 9)


def test_brighter_images_are_accepted() -> None:
    """Only a different pixel encoding is refused."""
    assert torch.equal(SCHEMA.encode(2 * IMAGES - 0.5)[:], 2 * IMAGES - 0.5)


def test_images_of_a_single_colour_do_not_limit_the_pixel_range() -> None:
    assert torch.equal(ImageSchema.of(torch.zeros(2, 3, 4, 6)).encode(255 * IMAGES)[:], 255 * IMAGES)


def changing(image: Tensor, number: int) -> Tensor:
    return image + torch.rand(())


def of_two_sizes(image: Tensor, number: int) -> Tensor:
    return image[:, : 3 + number % 2]


LAYOUTS: dict[str, tuple[Any, str]] = {
    "channels last": (torch.zeros(2, 8, 9, 3), r"shape \(2, 8, 9, 3\), channels last: .*X.permute\(0, 3, 1, 2\)"),
    "channels last, grey": (np.zeros((2, 8, 8, 1)), r"channels last: .*X.transpose\(0, 3, 1, 2\)"),
    "bytes": ((255 * IMAGES).byte(), "dtype uint8: pass the floats that the network takes, for instance X / 255"),
    "bytes in an array": ((255 * IMAGES).byte().numpy(), "dtype uint8"),
    "whole numbers": (np.zeros((2, 3, 4, 6), dtype=np.int64), "dtype int64"),
    "one image": (IMAGES[0], r"shape \(3, 4, 6\): pass images of shape .*one image is X\[None\]"),
    "a table": (np.zeros((5, 4)), r"shape \(5, 4\): pass images"),
    "text": (np.full((2, 3, 4, 6), "a"), "dtype <U1: pass images as numbers"),
    "not a number": (IMAGES.where(IMAGES < 0.99, torch.nan), "X has pixels that are not finite"),
    "infinite": (IMAGES.where(IMAGES < 0.99, torch.inf).numpy(), "X has pixels that are not finite"),
}
DATASETS: dict[str, tuple[Any, str]] = {
    "of bytes": (Items((255 * IMAGES).byte()), "dtype uint8"),
    "channels last": (Items(torch.zeros(2, 8, 8, 3)), "channels last"),
    "with a gap": (Items(IMAGES.where(IMAGES < 0.99, torch.nan)), "pixels that are not finite"),
    "of batches": (Items(IMAGES[None]), r"is of shape \(20, 3, 4, 6\): the Dataset must return tensors"),
    "of numbers": (Items(make=lambda _, number: number), "is a int: the Dataset must return tensors"),
    "of text": (Items(make=lambda _, number: f"{number}.png"), "is a str: the Dataset must return tensors"),
    "of dictionaries": (
        Items(make=lambda image, _: {"image": image}),
        "is a dict: the Dataset must return",
    ),
    "label first": (Items(make=lambda image, number: (number, image)), "is a int: .*, or tuples that start"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_that_are_not_images_are_refused(name: str) -> None:
    X, message = LAYOUTS[name]
    with pytest.raises(InputError, match=message):
        ImageSchema.of(X)
    with pytest.raises(InputError, match=message.replace("X", "X_val")):
        SCHEMA.encode(X, "X_val")


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_without_images_are_refused(name: str) -> None:
    X, message = DATASETS[name]
    with pytest.raises(InputError, match=message):
        ImageSchema.of(X)
    with pytest.raises(InputError, match=f"item 0 of X_val .*{message}"):
        whole(SCHEMA.encode(X, "X_val"))


def test_a_dataset_of_pil_images_is_refused() -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = Items(make=lambda *_: image.new("RGB", (6, 4)))
    with pytest.raises(InputError, match="is a Image: the Dataset must return tensors"):
        ImageSchema.of(pictures)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (IMAGES[:0], "X has no rows"),
        (Items(IMAGES[:0]), "X has no rows"),
        (Endless(), "X is a Endless: pass a tensor, an array, or a Dataset with a length"),
        (DataLoader(Endless()), "X is a Endless: pass a tensor, an array, or a Dataset with a length"),
        (None, "X is a NoneType: pass a tensor"),
        (Items(make=changing), "returns a different image each time: turn its random transforms off"),
        (Items(make=of_two_sizes), r"shapes \(3, 3, 6\) and \(3, 4, 6\): resize them to one"),
    ],
    ids=[
        "no rows",
        "no items",
        "endless",
        "loader of an endless dataset",
        "None",
        "random transforms",
        "two sizes",
    ],
)
def test_images_that_cannot_be_used_for_a_fit_are_refused(X: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ImageSchema.of(X)


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.numpy(), Items], ids=["tensor", "array", "dataset"])
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 6, 4), r"images of shape \(3, 6, 4\) where \(3, 4, 6\) is expected"),
        (torch.zeros(2, 1, 4, 6), r"images of shape \(1, 4, 6\) where \(3, 4, 6\) is expected"),
        (255 * IMAGES, r"pixels from .* at fit they were from .*: scale .* / 255"),
        (20 * IMAGES - 15, "scale .* as the images at fit,"),
    ],
    ids=["height and width swapped", "grey", "0 to 255", "other standardisation"],
)
def test_images_that_differ_from_those_at_fit_are_refused(
    make: Callable[[Tensor], Any], images: Tensor, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        whole(SCHEMA.encode(make(images)))


# edge cases


def test_a_later_dataset_may_be_empty() -> None:
    assert whole(SCHEMA.encode(Items(IMAGES[:0]))).shape == (0, 3, 4, 6)


@pytest.mark.parametrize("X", [Endless(), DataLoader(Endless()), None], ids=["endless", "loader", "None"])
def test_a_dataset_without_a_length_is_refused_after_fit(X: Any) -> None:
    with pytest.raises(InputError, match="or a Dataset with a length"):
        SCHEMA.encode(X)


def test_a_read_only_array_is_accepted() -> None:
    """np.load with mmap_mode="r" returns such arrays."""
    array = IMAGES.numpy().copy()
    array.flags.writeable = False
    assert torch.equal(ImageSchema.of(array).encode(array)[:], IMAGES)


def test_the_error_for_a_list_of_images_of_two_sizes_asks_to_resize_them() -> None:
    try:
        ImageSchema.of([np.zeros((1, 8, 8)), np.zeros((1, 9, 9))])
    except InputError as error:
        assert "resize them to one" in str(error)  # noqa: PT017  (an InputError is a ValueError)


def test_a_dataset_may_start_with_dark_images() -> None:
    dark = torch.cat([0.05 * IMAGES[:16], IMAGES[16:]])
    assert torch.equal(whole(ImageSchema.of(dark).encode(dark)), dark)
    X = Items(dark)
    assert torch.equal(whole(ImageSchema.of(X).encode(X)), dark)


def test_a_random_flip_is_detected_on_any_image() -> None:
    """Each image flips with probability 1/2, so 16 images that are read twice are all equal once in 65536 times."""
    generator = torch.Generator().manual_seed(2)

    def flipped(image: Tensor, number: int) -> Tensor:
        return image.flip(2) if torch.rand((), generator=generator) < 0.5 else image

    found = 0
    for _ in range(20):
        try:
            ImageSchema.of(Items(make=flipped))
        except InputError:
            found += 1
    assert found == 20
