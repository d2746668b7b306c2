"""Files of other publishers: from the user's own folder, from the cache, or downloaded there once."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm.auto import tqdm

from fastshapley.checkpoints import write_atomically

_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 16
# no network, no such file, an answer that breaks off or is no zip file, one that is damaged or holds something else
_FAILURES = (OSError, http.client.HTTPException, zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError)


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


def cache() -> Path:
    """The folder for what was downloaded or computed once: ``$XDG_CACHE_HOME/fastshapley``, or in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastshapley"


def find(source: Source, *, progress: bool = True) -> Path:
    """The file, as it is or with gzip, in ``$FASTSHAPLEY_DATA`` or in the cache, else downloaded to the cache."""
    folders = [cache()]
    if configured := os.environ.get("FASTSHAPLEY_DATA"):
        folders.insert(0, Path(configured))
    for folder in folders:
        for path in (folder / source.name, folder / f"{source.name}.gz"):
            if path.exists():
                return path
    target = cache() / source.name
    try:
        _download(source, target, progress)
    except _FAILURES as error:
        raise FileNotFoundError(
            f"{source.name} is in none of {[str(folder) for folder in folders]}, and fetching it from "
            f"{source.archive} failed ({error}): download it from {source.page} to {folders[0] / source.name}, or "
            "set FASTSHAPLEY_DATA to the folder that holds it"
        ) from error
    return target


def _download(source: Source, target: Path, progress: bool) -> None:
    """Fetch the archive, take the file out of it, check it, and only then put it in its place."""
    with tempfile.TemporaryFile() as archive:
        with _open(source.archive) as response:
            size = int(response.headers.get("Content-Length") or 0) or None
            with tqdm(total=size, desc=source.name, unit="B", unit_scale=True, disable=not progress) as bar:
                while chunk := response.read(_CHUNK):
                    archive.write(chunk)
                    bar.update(len(chunk))
        if size is not None and archive.tell() != size:
            raise urllib.error.URLError(f"it broke off after {archive.tell()} of {size} bytes")
        write_atomically(target, lambda path: _take_out(archive, source, path))


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
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if source.sha256 not in (None, found):
        raise OSError(f"its checksum is {found} where {source.sha256} is expected")
