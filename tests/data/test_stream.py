"""Tests of streams: rows of a Dataset that behave like rows of a tensor."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence

import pytest
import torch
from image_items import IMAGES, Items, labelled
from torch import Tensor
from torch.utils.data import DataLoader

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.stream import Rows, Stream, batches, some
from fastshapley.errors import InputError

ORDER = torch.randperm(len(IMAGES), generator=torch.Generator().manual_seed(1))
BATCHES = ORDER.split(6)  # the last batch is shorter
WORKERS = [0, 2]


def stream(workers: int = 0, dataset: Items | None = None) -> Stream:
    loader = DataLoader(dataset or Items(make=labelled), num_workers=workers)
    found = ImageSchema.of(IMAGES).encode(loader)
    assert isinstance(found, Stream)
    return found


def same_batches(found: Sequence[tuple[Tensor, Tensor]], expected: Sequence[tuple[Tensor, Tensor]]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(5), slice(3, 9), slice(None, None, 4), slice(18, 99), torch.tensor([4, 0, 4]), ORDER > 7],
    ids=["all", "first", "middle", "steps", "past the end", "numbers", "mask"],
)
def test_indexing_gives_the_same_rows_as_the_tensor(rows: slice | Tensor) -> None:
    assert torch.equal(stream()[rows], IMAGES[rows])


def test_a_stream_is_as_long_as_its_dataset() -> None:
    assert len(stream()) == len(IMAGES)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("size", [1, 6, 20, 64])
def test_split_gives_the_same_parts_as_the_tensor(size: int, workers: int) -> None:
    if workers and size == 1:
        size = 5  # worker processes are slow to start
    pairs = zip(stream(workers).split(size), IMAGES.split(size), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_the_same_as_for_the_tensor(workers: int) -> None:
    assert same_batches(list(batches(stream(workers), BATCHES)), list(batches(IMAGES, BATCHES)))


def test_some_rows_of_a_stream_are_a_stream() -> None:
    first = some(stream(), ORDER[:12])
    assert isinstance(first, Stream)
    assert len(first) == 12
    assert torch.equal(first[:], some(IMAGES, ORDER[:12])[:])
    assert torch.equal(some(first, torch.tensor([3, 1]))[:], IMAGES[ORDER[[3, 1]]])
    two = torch.tensor([11, 0])
    assert same_batches(list(first.batches([two])), [(two, IMAGES[ORDER[two]])])


def test_a_stream_keeps_its_device_and_its_number_of_workers() -> None:
    moved = some(stream(workers=2).to(torch.device("cpu")), ORDER)
    assert isinstance(moved, Stream)
    assert moved.workers == 2
    assert moved.device == torch.device("cpu")


def test_rows_are_read_only_when_they_are_needed() -> None:
    read: list[int] = []

    def noting(image: Tensor, number: int) -> Tensor:
        read.append(number)
        return image

    x = some(stream(dataset=Items(make=noting)), ORDER)
    parts = x.split(6)
    assert read == []
    next(parts)
    assert read == ORDER[:6].tolist()
    x[2:4]
    assert read[6:] == ORDER[2:4].tolist()


def test_workers_read_in_other_processes() -> None:
    def tagged(image: Tensor, number: int) -> Tensor:
        return torch.full_like(image, os.getpid() % 1000 / 1000)

    here = torch.tensor(os.getpid() % 1000 / 1000)
    processes = torch.cat(list(stream(2, Items(make=tagged)).split(4)))[:, 0, 0, 0].unique()
    assert len(processes) == 2
    assert here not in processes


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten torch's wait of five seconds per worker process, at garbage collection after an error."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    yield
    gc.collect()


def bad_number_17(image: Tensor, number: int) -> Tensor:
    return (255 * image).byte() if number == 17 else image


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("workers", WORKERS)
def test_an_item_that_is_not_an_image_is_named_by_its_number(workers: int) -> None:
    x: Rows = some(stream(workers, Items(make=bad_number_17)), ORDER)
    with pytest.raises(InputError, match="item 17 of X has dtype uint8"):
        list(x.split(8))


def broken_number_7(image: Tensor, number: int) -> Tensor:
    if number == 7:
        raise OSError("image file is truncated")
    return image


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_dataset_is_raised(workers: int) -> None:
    with pytest.raises(OSError, match="image file is truncated"):
        list(stream(workers, Items(make=broken_number_7)).split(8))


# edge cases


def test_an_error_of_the_dataset_names_the_number_of_the_item() -> None:
    try:
        stream(dataset=Items(make=broken_number_7))[:]
    except OSError as error:
        if "item 7" not in "".join([str(error), *getattr(error, "__notes__", [])]):
            raise


def test_an_empty_slice_is_an_empty_tensor() -> None:
    assert stream()[:0].shape == IMAGES[:0].shape


def test_reading_does_not_change_the_global_generator() -> None:
    state = torch.get_rng_state()
    list(stream().split(8))
    assert torch.equal(torch.get_rng_state(), state)
