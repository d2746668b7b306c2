"""Files of other publishers: from the user's own folder, from the cache, or downloaded there once."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tqdm.auto import tqdm

from fastshapley.support.atomic_files import write_atomically

_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 16
# no network, no such file, an answer that breaks off or is no archive, one that is damaged or holds something else
_FAILURES = (
    OSError,
    http.client.HTTPException,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    KeyError,
    ValueError,
)


@dataclass(frozen=True)
class Source:
    """A published file.

    name: where it lies in a folder of data, as ``census/adult.data``.
    page: where a person finds it.
    archive: the address of the zip file that holds it.
    members: the way to it inside, through zip files in zip files.
    sha256: what the file should hash to, where that is known; a zip file has checksums of its own besides.
    """

    name: str
    page: str
    archive: str
    members: tuple[str, ...]
    sha256: str | None = None


@dataclass(frozen=True)
class Folder:
    """A published folder.

    name: what it is called in a folder of data, as ``imagenette``; the publisher's own name will do as well.
    page: where a person finds it.
    archive: the address of the tar file, with gzip, that holds it.
    root: its name inside.
    sha256: what the tar file should hash to.
    """

    name: str
    page: str
    archive: str
    root: str
    sha256: str


def cache() -> Path:
    """The folder for what was downloaded or computed once: ``$XDG_CACHE_HOME/fastshapley``, or in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastshapley"


def places() -> list[Path]:
    """The folders of data: ``$FASTSHAPLEY_DATA`` where that is set, then the cache."""
    configured = os.environ.get("FASTSHAPLEY_DATA")
    return [Path(configured), cache()] if configured else [cache()]


def at_hand(*names: str) -> Path | None:
    """The first file or folder of one of these names in the folders of data, or None."""
    paths = (folder / name for folder in places() for name in names)
    return next((path for path in paths if path.exists()), None)


def find(source: Source, *, progress: bool = True) -> Path:
    """The file, as it is or with gzip, in ``$FASTSHAPLEY_DATA`` or in the cache, else downloaded to the cache."""

    def place(archive: IO[bytes], target: Path) -> None:
        write_atomically(target, lambda path: _take_out(archive, source, path))

    return at_hand(source.name, f"{source.name}.gz") or _fetch(source, place, progress)


def find_folder(folder: Folder, *, progress: bool = True) -> Path:
    """The folder, in ``$FASTSHAPLEY_DATA`` or in the cache, else downloaded to the cache."""

    def place(archive: IO[bytes], target: Path) -> None:
        _unpack(archive, folder, target)

    return at_hand(folder.name, folder.root) or _fetch(folder, place, progress)


def _fetch(source: Source | Folder, place: Callable[[IO[bytes], Path], None], progress: bool) -> Path:
    """Download the archive and let ``place`` put what it holds into the cache; what fails says what to do."""
    target = cache() / source.name
    try:
        with tempfile.TemporaryFile() as archive:
            _download(source, archive, progress)
            place(archive, target)
    except _FAILURES as error:
        raise FileNotFoundError(
            f"{source.name} is in none of {[str(folder) for folder in places()]}, and fetching it from "
            f"{source.archive} failed ({error}): download it from {source.page} to {places()[0] / source.name}, or "
            "set FASTSHAPLEY_DATA to the folder that holds it"
        ) from error
    return target


def _download(source: Source | Folder, archive: IO[bytes], progress: bool) -> None:
    with _open(source.archive) as response:
        size = int(response.headers.get("Content-Length") or 0) or None
        with tqdm(total=size, desc=source.name, unit="B", unit_scale=True, disable=not progress) as bar:
            while chunk := response.read(_CHUNK):
                archive.write(chunk)
                bar.update(len(chunk))
    if size is not None and archive.tell() != size:
        raise urllib.error.URLError(f"it broke off after {archive.tell()} of {size} bytes")
    archive.seek(0)


def _open(url: str) -> Any:
    try:
        return urllib.request.urlopen(url, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:  # which is the server's answer, and holds the connection
            raise urllib.error.URLError(f"{error.code} {error.reason}") from None


def _take_out(archive: IO[bytes], source: Source, path: Path) -> None:
    *folders, last = source.members
    for member in folders:
        with zipfile.ZipFile(archive) as opened:
            archive = io.BytesIO(opened.read(member))
    with zipfile.ZipFile(archive) as opened, opened.open(last) as inside, path.open("wb") as file:
        shutil.copyfileobj(inside, file)
    if source.sha256 is not None:
        with path.open("rb") as file:
            _check(file, source.sha256)


def _unpack(archive: IO[bytes], folder: Folder, target: Path) -> None:
    """Check the tar file, unpack the folder beside its place, and only then move it there."""
    _check(archive, folder.sha256)
    archive.seek(0)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        with tarfile.open(fileobj=archive, mode="r:gz") as opened:
            for member in opened:
                if PurePosixPath(member.name).parts[:1] != (folder.root,):
                    continue
                if not (member.isfile() or member.isdir()):  # links have led out of folders before
                    raise OSError(f"{member.name} in it is neither a file nor a folder")
                opened.extract(member, temporary, filter="data")
        try:
            (Path(temporary) / folder.root).rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise


def _check(file: Any, sha256: str) -> None:
    found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise OSError(f"its checksum is {found} where {sha256} is expected")
