"""Tests of the image loaders, on real images if they are available, and on synthetic ones for errors."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from download_server import Server, kept
from paper_data import DATA, needs
from torch.utils.data import DataLoader

from fastshapley.datasets.download import Folder, cache, find_folder
from fastshapley.datasets.image_loaders import (
    CIFAR10_CLASSES,
    FOLDERS,
    IMAGENETTE_CLASSES,
    Imagenette,
    load_cifar10,
)

RECORD, RECORDS = 3073, 10_000
WNIDS = list(IMAGENETTE_CLASSES)


@needs("cifar-10-batches-bin/test_batch.bin")
def test_cifar10_has_the_published_images_and_labels() -> None:
    data = load_cifar10("test")
    assert (data.images.shape, data.images.dtype) == ((10_000, 3, 32, 32), torch.uint8)
    assert (data.labels.dtype, data.labels.bincount().tolist()) == (torch.int64, [1000] * 10)
    assert [data.classes[label] for label in data.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    folder = DATA / "cifar-10-batches-bin"
    content = (folder / "test_batch.bin").read_bytes()
    for number, channel, row, column in [(0, 0, 0, 0), (7, 1, 3, 30), (9999, 2, 31, 31)]:
        byte = content[number * RECORD + 1 + channel * 1024 + row * 32 + column]
        assert data.images[number, channel, row, column] == byte
    assert tuple((folder / "batches.meta.txt").read_text().split()) == CIFAR10_CLASSES


@needs("cifar-10-batches-bin/data_batch_1.bin")
def test_cifar10_training_images_are_those_of_all_existing_files() -> None:
    data = load_cifar10()
    files = len(list((DATA / "cifar-10-batches-bin").glob("data_batch_*.bin")))
    assert len(data.images) == len(data.labels) == RECORDS * files
    assert data.classes[data.labels[0]] == "frog"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty data folder, with an empty cache and no network access."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def write_batch(folder: Path, name: str, label: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records = np.zeros((RECORDS, RECORD), dtype=np.uint8)
    records[:, 0] = label
    records.tofile(folder / name)


def test_cifar10_files_are_read_in_the_order_of_their_numbers(data: Path) -> None:
    for number in (4, 2):
        write_batch(data / "cifar-10-batches-bin", f"data_batch_{number}.bin", number)
    labels = load_cifar10("train").labels
    assert labels.unique_consecutive(return_counts=True)[0].tolist() == [2, 4]
    assert len(labels) == 2 * RECORDS
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin has none of \['test_batch.bin'\]"):
        load_cifar10("test")


@pytest.mark.parametrize("length", [0, 5 * RECORD, RECORDS * RECORD - 1, RECORDS * RECORD + 1])
def test_a_cifar10_file_of_the_wrong_length_raises(length: int, data: Path) -> None:
    path = data / "cifar-10-batches-bin" / "test_batch.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(length))
    with pytest.raises(ValueError, match=rf"test_batch.bin has {length} bytes, but .* have 30730000"):
        load_cifar10("test")


def test_a_cifar10_file_with_an_invalid_label_raises(data: Path) -> None:
    write_batch(data / "cifar-10-batches-bin", "test_batch.bin", 10)
    with pytest.raises(ValueError, match=r"test_batch\.bin has a label 10"):
        load_cifar10("test")


@pytest.mark.parametrize(
    ("load", "name"), [(load_cifar10, "cifar10"), (Imagenette, "imagenette")], ids=["cifar10", "imagenette"]
)
def test_the_error_for_missing_files_names_the_download_and_where_to_put_it(
    load: Callable[[], Any], name: str, data: Path
) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load()
    message = str(caught.value)
    assert FOLDERS[name].page in message
    assert str(data / FOLDERS[name].name) in message


def test_bad_arguments_raise() -> None:
    split: Any = "validation"
    with pytest.raises(ValueError, match="split is 'validation': use 'train' or 'test'"):
        load_cifar10(split)
    with pytest.raises(ValueError, match="split is 'validation': use 'train' or 'val'"):
        Imagenette(split)
    with pytest.raises(ValueError, match="size is 0: pass"):
        Imagenette("val", 0)


@needs("imagenette/val/n01440764/ILSVRC2012_val_00009111.JPEG")
def test_imagenette_has_the_published_images_and_labels() -> None:
    data = Imagenette("val", 224)
    assert len(data) == len(data.labels) == sum(1 for _ in (DATA / "imagenette" / "val").rglob("*.JPEG"))
    assert [path.parent.name for path in data.paths] == [WNIDS[label] for label in data.labels]
    assert data.paths == sorted(data.paths)
    assert data.classes[0] == "tench"
    assert data.classes[9] == "parachute"
    image, label = data[0]
    assert (image.shape, image.dtype, label) == ((3, 224, 224), torch.float32, 0)
    assert 0 <= image.min() < 0.2 < 0.8 < image.max() <= 1
    assert torch.equal(image, data[0][0])
    small, _ = Imagenette("val", 56)[0]
    assert torch.allclose(small, torch.nn.functional.avg_pool2d(image, 4), atol=0.2)


@pytest.fixture
def photographs(data: Path) -> Path:
    """Return a folder like the published one, with one colour per class.

    The first image is wide, and the second is tall and grey.
    """
    image = pytest.importorskip("PIL.Image")
    folder = data / "imagenette2-320"
    for label, wnid in enumerate(WNIDS):
        (folder / "val" / wnid).mkdir(parents=True)
        image.new("RGB", (30, 20), (20 * label, 0, 0)).save(folder / "val" / wnid / "c.JPEG")
    wide = np.zeros((40, 120, 3), dtype=np.uint8)
    wide[:, 40:80, 1] = 255  # The middle is green.
    image.fromarray(wide).save(folder / "val" / WNIDS[0] / "a.JPEG")
    tall = np.full((120, 40), 200, dtype=np.uint8)
    image.fromarray(tall).save(folder / "val" / WNIDS[0] / "b.JPEG")
    (folder / "val" / WNIDS[0] / "._a.JPEG").write_bytes(b"what a Mac leaves behind")
    return folder


def test_photographs_are_scaled_cropped_and_converted_to_rgb(photographs: Path) -> None:
    data = Imagenette("val", 16)
    assert len(data) == 12
    assert [path.name for path in data.paths[:4]] == ["a.JPEG", "b.JPEG", "c.JPEG", "c.JPEG"]
    assert data.labels.tolist() == [0, 0, *range(10)]
    wide, tall, last = data[0][0], data[1][0], data[11][0]
    assert wide.shape == tall.shape == (3, 16, 16)
    assert (wide[1, :, 2:-2] > 0.9).all()
    assert (wide[[0, 2], :, 2:-2] < 0.1).all()
    assert torch.allclose(tall, torch.full((3, 16, 16), 200 / 255), atol=0.02)
    assert torch.allclose(last.mean((1, 2)), torch.tensor([180 / 255, 0.0, 0.0]), atol=0.02)


def test_photographs_can_be_loaded_in_batches_and_pickled(photographs: Path) -> None:
    data = Imagenette("val", 16)
    images, labels = next(iter(DataLoader(data, batch_size=12)))
    assert images.shape == (12, 3, 16, 16)
    assert torch.equal(labels, data.labels)
    assert torch.equal(pickle.loads(pickle.dumps(data))[3][0], images[3])


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_damaged_photograph_raises(content: bytes | None, photographs: Path) -> None:
    data = Imagenette("val", 16)
    path = data.paths[0]
    path.write_bytes(path.read_bytes()[:400] if content is None else content)
    with pytest.raises(ValueError, match=r"a\.JPEG cannot be read as an image"):
        data[0]


def test_a_class_without_photographs_raises(photographs: Path) -> None:
    (photographs / "val" / WNIDS[4] / "c.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=rf"val/{WNIDS[4]} has no files \*\.JPEG"):
        Imagenette("val")
    with pytest.raises(FileNotFoundError, match=rf"train/{WNIDS[0]} has no files \*\.JPEG"):
        Imagenette("train")


def packed(files: dict[str, bytes], **others: bytes) -> bytes:
    """Return a tar file with gzip. Each item of ``others`` is the name and type of a member that links to /etc."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, kind in others.items():
            member = tarfile.TarInfo(f"published/{name}")
            member.type, member.linkname = kind, "/etc"
            archive.addfile(member)
    return file.getvalue()


FILES = {"published/one.txt": b"1", "published/inside/two.txt": b"2", "elsewhere.txt": b"3"}


def published(server: Server, content: bytes) -> Folder:
    server.files["/set.tgz"] = content
    return Folder(
        "set",
        "https://example.org/set",
        server.url("/set.tgz"),
        "published",
        hashlib.sha256(content).hexdigest(),
    )


@pytest.mark.usefixtures("home")
def test_a_folder_is_downloaded_once(server: Server) -> None:
    folder = published(server, packed(FILES))
    path = find_folder(folder, progress=False)
    assert path == cache() / "set"
    assert sorted(kept()) == [path / "inside" / "two.txt", path / "one.txt"]
    assert (path / "inside" / "two.txt").read_bytes() == b"2"
    assert find_folder(folder, progress=False) == path
    assert server.asked == 1
    assert list(cache().iterdir()) == [path]


@pytest.mark.parametrize("name", ["set", "published"])
def test_an_existing_folder_is_not_downloaded(
    name: str, server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = published(server, packed(FILES))
    find_folder(folder, progress=False)
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(home / "data"))
    (home / "data" / name).mkdir(parents=True)
    assert find_folder(folder, progress=False) == home / "data" / name
    assert server.asked == 1


@pytest.mark.usefixtures("home")
def test_two_threads_may_download_a_folder_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published(server, packed(FILES))
    together, original = threading.Barrier(2, timeout=30), urllib.request.urlopen

    def open_together(*args: Any, **kwargs: Any) -> Any:
        together.wait()
        return original(*args, **kwargs)

    monkeypatch.setattr(urllib.request, "urlopen", open_together)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: find_folder(folder, progress=False), range(2)))
    assert found == [cache() / "set"] * 2
    assert server.asked == 2
    assert len(kept()) == 2


def wrong_checksum(server: Server) -> Folder:
    return replace(published(server, packed(FILES)), sha256="0" * 64)


def no_such_file(server: Server) -> Folder:
    return replace(published(server, packed(FILES)), archive=server.url("/gone.tgz"))


def other_folder(server: Server) -> Folder:
    return replace(published(server, packed(FILES)), root="other")


def no_archive(server: Server) -> Folder:
    return published(server, b"<html>moved</html>")


def broken_off(server: Server) -> Folder:
    server.cut = 10
    return published(server, packed(FILES))


def cut_before_it_was_published(server: Server) -> Folder:
    rng = np.random.default_rng(0)
    return published(server, packed({"published/noise": rng.bytes(100_000)})[:50_000])


def way_out(server: Server) -> Folder:
    return published(server, packed({**FILES, "published/../../../stolen.txt": b"4"}))


def link(server: Server) -> Folder:
    return published(server, packed(FILES, link=tarfile.SYMTYPE))


def hard_link(server: Server) -> Folder:
    return published(server, packed(FILES, link=tarfile.LNKTYPE))


def device(server: Server) -> Folder:
    return published(server, packed(FILES, pipe=tarfile.FIFOTYPE))


@pytest.mark.parametrize(
    "broken",
    [
        wrong_checksum,
        no_such_file,
        other_folder,
        no_archive,
        broken_off,
        cut_before_it_was_published,
        way_out,
        link,
        hard_link,
        device,
    ],
)
def test_a_failed_download_raises_and_keeps_no_file(
    broken: Callable[[Server], Folder], server: Server, home: Path
) -> None:
    """The error names the download and where to put it. No file is left in the cache or next to it."""
    with pytest.raises(FileNotFoundError) as caught:
        find_folder(broken(server), progress=False)
    message = str(caught.value)
    assert "https://example.org/set" in message
    assert str(cache() / "set") in message
    assert [path for path in home.rglob("*") if not path.is_dir()] == []
    assert not (cache() / "set").exists()


@pytest.mark.usefixtures("home")
def test_cifar10_is_downloaded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = np.zeros((RECORDS, RECORD), dtype=np.uint8)
    batch[:, 0] = 3
    content = packed({"cifar-10-batches-bin/test_batch.bin": batch.tobytes()})
    server.files["/cifar-10-binary.tar.gz"] = content
    source = replace(
        FOLDERS["cifar10"],
        archive=server.url("/cifar-10-binary.tar.gz"),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    monkeypatch.setitem(FOLDERS, "cifar10", source)
    assert load_cifar10("test").labels.unique().tolist() == [3]
    assert kept() == [cache() / "cifar-10-batches-bin" / "test_batch.bin"]
