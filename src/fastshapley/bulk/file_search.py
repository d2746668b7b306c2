"""Find Parquet and CSV files by path, folder, glob or URI, and read their columns."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from fastshapley.bulk.csv_files import csv_schema
from fastshapley.errors import InputError, PartError

logger = logging.getLogger(__name__)

READERS = 16  # threads that open files: most of the time is spent waiting
_SUFFIXES = (".parquet", ".pq", ".csv", ".csv.gz")
_ENDINGS = ", ".join(_SUFFIXES)


@dataclass(frozen=True)
class Files:
    """Files on one file system.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system.
    paths : tuple of str
        The path of each file.
    stamps : tuple of str
        The version of each file, from `stamp_of`.
    schemas : tuple of pyarrow.Schema
        The columns of each file.
    """

    system: fs.FileSystem
    paths: tuple[str, ...]
    stamps: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]


def is_parquet(path: str) -> bool:
    """Return whether the name of a file is that of a Parquet file."""
    return path.lower().endswith((".parquet", ".pq"))


def locate(place: str | os.PathLike[str]) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path on it.

    Parameters
    ----------
    place : str or os.PathLike
        A local path, or a URI such as ``s3://bucket/folder``.

    Returns
    -------
    system : pyarrow.fs.FileSystem
        The file system.
    path : str
        The absolute path on that file system.

    Raises
    ------
    InputError
        If pyarrow does not support the URI.
    """
    text = os.fspath(place)
    if "://" in text:
        try:
            system, path = fs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, OSError, ImportError, ValueError) as error:
            reason = str(error).replace(text, without_secrets(text))
            raise InputError(f"{without_secrets(text)} is not a URI that pyarrow can open: {reason}") from None
        return system, path.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))


def without_secrets(place: str | os.PathLike[str]) -> str:
    """Return a path or URI for messages, without the user, the password and the options that a URI may have."""
    scheme, separator, rest = os.fspath(place).partition("://")
    if not separator:
        return scheme
    host, slash, path = rest.partition("?")[0].partition("/")
    return scheme + separator + host.rpartition("@")[2] + slash + path


def stamp_of(file: fs.FileInfo) -> str:
    """Return eight hexadecimal digits that change when the file changes."""
    return hashlib.sha256(f"{file.size} {file.mtime_ns}".encode()).hexdigest()[:8]


def find_files(source: Any, besides: str = "") -> Files:
    """Find the Parquet and CSV files that a source stands for, and read their columns.

    Parameters
    ----------
    source : str, os.PathLike, list of these, or Files
        A path, a folder, a glob, or a list of them. Files in folders are found at any depth, except for hidden
        ones, whose names start with ``_`` or ``.``. Files that were found before are returned as they are.
    besides : str, default=""
        A folder whose files are left out.

    Returns
    -------
    Files
        The files, each once, in the order of their places.

    Raises
    ------
    InputError
        If the source is not a path or has no files.
    PartError
        If a file cannot be read.
    """
    if isinstance(source, Files):
        return source
    places = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(places, list | tuple) or not all(isinstance(p, str | os.PathLike) for p in places):
        raise InputError(
            f"source is a {type(source).__name__}: pass a path, a folder, a glob, or a list of them. To explain a "
            "table in memory, call explainer(X)"
        )
    if not places:
        raise InputError("source is empty: pass a path, a folder or a glob")
    stamps: dict[str, str] = {}
    system = locate(places[0])[0]
    for place in places:
        own, path = locate(place)
        if own != system:
            raise InputError(
                f"source has {without_secrets(place)} and {without_secrets(places[0])}, which are on different "
                "file systems: explain them in separate runs"
            )
        stamps |= {file.path: stamp_of(file) for file in _files_at(system, path, without_secrets(place), besides)}
    paths = tuple(stamps)
    with ThreadPoolExecutor(READERS) as pool:
        schemas = tuple(pool.map(partial(_columns_of, system), paths))
    return Files(system, paths, tuple(stamps.values()), schemas)


def _files_at(system: fs.FileSystem, path: str, place: str, besides: str) -> list[fs.FileInfo]:
    """Return the files that one place stands for, sorted by path."""
    try:
        files = _expand(system, path, place)
    except OSError as error:
        raise PartError(f"{place} cannot be read: {error}") from error
    outside = [file for file in files if not file.path.startswith(besides.rstrip("/") + "/")] if besides else files
    if files and not outside:
        raise InputError(f"{place} is inside the output folder {besides}: choose another output folder")
    if not files:
        raise InputError(f"no file at {place}: pass a file, a folder or a glob of files that end in {_ENDINGS}")
    return sorted(outside, key=lambda file: file.path)


def _expand(system: fs.FileSystem, path: str, place: str) -> list[fs.FileInfo]:
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        if not _is_supported(path):
            raise InputError(f"{place} is not a supported file: its name must end in one of {_ENDINGS}")
        return [info]
    if info.type == fs.FileType.Directory:
        return _inside(system, path)
    if not glob.has_magic(path):
        return []
    in_folders, files = [], []
    for match in _matches(system, path):
        if match.type == fs.FileType.Directory and not match.base_name.startswith(("_", ".")):
            in_folders += _inside(system, match.path)
        elif match.type == fs.FileType.File:
            files.append(match)
    return in_folders + _supported(files, place)


def _inside(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """Return the files in a folder at any depth, except for hidden ones."""
    files = [
        file
        for file in system.get_file_info(fs.FileSelector(folder, recursive=True))
        if file.type == fs.FileType.File
        and not any(piece.startswith(("_", ".")) for piece in file.path[len(folder) :].split("/"))
    ]
    return _supported(files, folder)


def _is_supported(path: str) -> bool:
    return path.lower().endswith(_SUFFIXES)


def _supported(files: Sequence[fs.FileInfo], place: str) -> list[fs.FileInfo]:
    if others := sorted(file.path for file in files if not _is_supported(file.path)):
        logger.warning(
            "skipping %d files in %s whose names do not end in one of %s, such as %s",
            *(len(others), place, _ENDINGS, others[:3]),
        )
    return [file for file in files if _is_supported(file.path)]


def _matches(system: fs.FileSystem, pattern: str) -> list[fs.FileInfo]:
    """Return the files and folders that a glob matches. pyarrow has no globs of its own."""
    if isinstance(system, fs.LocalFileSystem):
        return system.get_file_info([os.path.abspath(path) for path in glob.glob(pattern, recursive=True)])
    pieces = pattern.split("/")
    base = "/".join(pieces[: next(i for i, piece in enumerate(pieces) if glob.has_magic(piece))])
    inside = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    if "**" in pieces:
        patterns = (pattern, pattern.replace("**/", ""))
        return [file for file in inside if any(fnmatchcase(file.path, wanted) for wanted in patterns)]
    depth = pattern.count("/")
    return [file for file in inside if file.path.count("/") == depth and fnmatchcase(file.path, pattern)]


def _columns_of(system: fs.FileSystem, path: str) -> pa.Schema:
    """Return the columns of a file. The types of CSV columns are those of the first rows."""
    try:
        if is_parquet(path):
            with system.open_input_file(path) as file:
                return pq.read_schema(file)
        return csv_schema(system, path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PartError(f"{path} cannot be read: {error}") from error
