"""Find files of other publishers in the user's folder or in the cache, or download them to the cache."""

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

from fastshapley.support.atomic_files import temporary_path, write_atomically

_TIMEOUT = 30.0  # seconds to wait for a server
_CHUNK_BYTES = 1 << 16  # bytes that are read at a time
# No network, no such file, a connection that breaks off, or an archive that is damaged or holds other files.
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

    Parameters
    ----------
    name : str
        The path of the file in a data folder, such as ``census/adult.data``.
    page : str
        The web page of the file.
    archive : str
        The URL of the zip file that holds it.
    members : tuple of str
        The path inside, through zip files in zip files.
    sha256 : str, optional
        The digest of the file. None if it is not known; then only the CRC-32 in the zip file is checked, which
        finds damage, but not another file.
    """

    name: str
    page: str
    archive: str
    members: tuple[str, ...]
    sha256: str | None = None


@dataclass(frozen=True)
class Folder:
    """A published folder.

    Parameters
    ----------
    name : str
        The name of the folder in a data folder, such as ``imagenette``. The publisher's name is found too.
    page : str
        The web page of the folder.
    archive : str
        The URL of the tar.gz file that holds it.
    root : str
        The name of the folder inside, which is the publisher's name.
    sha256 : str
        The checksum of the tar.gz file.
    """

    name: str
    page: str
    archive: str
    root: str
    sha256: str


def cache() -> Path:
    """Return the cache folder: ``$XDG_CACHE_HOME/fastshapley``, or ``~/.cache/fastshapley``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastshapley"


def places() -> list[Path]:
    """Return the data folders: ``$FASTSHAPLEY_DATA`` if it is set, then the cache."""
    configured = os.environ.get("FASTSHAPLEY_DATA")
    return [Path(configured), cache()] if configured else [cache()]


def at_hand(*names: str) -> Path | None:
    """Return the first file or folder with one of these names in the data folders, or None."""
    paths = (folder / name for folder in places() for name in names)
    return next((path for path in paths if path.exists()), None)


def find(source: Source, *, progress: bool = True) -> Path:
    """Find a file in the data folders, or download it to the cache.

    Parameters
    ----------
    source : Source
        The file. A copy that is compressed with gzip is found too.
    progress : bool, default=True
        Whether to show a progress bar of the download.

    Returns
    -------
    Path
        The path of the file.

    Raises
    ------
    FileNotFoundError
        If there is no such file, and the download fails.
    """

    def place(archive: IO[bytes], target: Path) -> None:
        write_atomically(target, lambda path: _take_out(archive, source, path))

    return at_hand(source.name, f"{source.name}.gz") or _fetch(source, place, progress)


def find_folder(folder: Folder, *, progress: bool = True) -> Path:
    """Find a folder in the data folders, or download it to the cache.

    Parameters
    ----------
    folder : Folder
        The folder.
    progress : bool, default=True
        Whether to show a progress bar of the download.

    Returns
    -------
    Path
        The path of the folder.

    Raises
    ------
    FileNotFoundError
        If there is no such folder, and the download fails.
    """

    def place(archive: IO[bytes], target: Path) -> None:
        _unpack(archive, folder, target)

    return at_hand(folder.name, folder.root) or _fetch(folder, place, progress)


def _fetch(source: Source | Folder, place: Callable[[IO[bytes], Path], None], progress: bool) -> Path:
    """Download an archive, and let ``place`` put its content into the cache."""
    target = cache() / source.name
    try:
        with tempfile.TemporaryFile() as archive:
            _download(source, archive, progress)
            place(archive, target)
    except _FAILURES as error:
        raise FileNotFoundError(
            f"{source.name} is in none of {[str(folder) for folder in places()]}, and the download from "
            f"{source.archive} failed ({error}): download it from {source.page} to {places()[0] / source.name}, or "
            "set FASTSHAPLEY_DATA to the folder that holds it"
        ) from error
    return target


def _download(source: Source | Folder, archive: IO[bytes], progress: bool) -> None:
    with _open(source.archive) as response:
        size = int(response.headers.get("Content-Length") or 0) or None
        with tqdm(total=size, desc=source.name, unit="B", unit_scale=True, disable=not progress) as bar:
            while chunk := response.read(_CHUNK_BYTES):
                archive.write(chunk)
                bar.update(len(chunk))
    if size is not None and archive.tell() != size:
        raise urllib.error.URLError(f"the connection broke off after {archive.tell()} of {size} bytes")
    archive.seek(0)


def _open(url: str) -> Any:
    try:
        return urllib.request.urlopen(url, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:  # The error is the response, which holds the connection open.
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
    """Check the tar file, unpack the folder next to its place, and then move it there."""
    _check(archive, folder.sha256)
    archive.seek(0)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(target.parent)
    temporary.mkdir()
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as opened:
            for member in opened:
                if PurePosixPath(member.name).parts[:1] != (folder.root,):
                    continue
                if not (member.isfile() or member.isdir()):  # A link could point outside of the folder.
                    raise OSError(f"{member.name} in the archive is neither a file nor a folder")
                opened.extract(member, temporary, filter="data")
        try:
            (temporary / folder.root).rename(target)
        except OSError:
            if not target.is_dir():  # Otherwise another process was first.
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check(file: Any, sha256: str) -> None:
    found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise OSError(f"the checksum is {found}, expected {sha256}")
