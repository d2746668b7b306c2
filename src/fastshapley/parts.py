"""Files in parts: a file of any size is read a part at a time, by whoever has the time for it.

A part is some row groups of a Parquet file, or some bytes of a CSV file, from the start of one row to that of
another. What the parts are depends on the files alone, so that a run that was interrupted finds the same ones.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow import fs

from fastshapley.errors import InputError, PartError

_KINDS = (".parquet", ".pq", ".csv", ".csv.gz")
_SCAN = 1 << 24  # bytes of a CSV file that are looked at at once
_LOOK = 1 << 20  # of its first bytes, to learn its columns and how long rows are
_READERS = 16  # files that are looked at at once: most of it is waiting
# what stands for a gap in CSV, as pandas has it
_GAPS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
    *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
_WHOLE = -1  # the end of a file that cannot be divided


@dataclass(frozen=True)
class Part:
    """Some of a file: row groups of Parquet, or bytes of CSV, from ``start`` up to ``stop``.

    ``file`` and ``number`` are its places among the files and in its file; ``rows`` how many it has, 0 if that is
    not known.
    """

    path: str
    file: int
    number: int
    start: int
    stop: int
    rows: int = 0

    @property
    def name(self) -> str:
        return f"{self.file:05}-{self.number:05}"

    def __str__(self) -> str:
        what = "row groups" if is_parquet(self.path) else "bytes"
        return self.path if self.stop == _WHOLE else f"{self.path}, {what} {self.start} to {self.stop}"


@dataclass(frozen=True)
class Files:
    """Files on a file system, with the columns of each."""

    system: fs.FileSystem
    paths: tuple[str, ...]
    stamps: tuple[str, ...]  # of each: its size, and when it was changed
    schemas: tuple[pa.Schema, ...]


@dataclass(frozen=True)
class Text:
    """How to read CSV: the type of each column, and the ``words`` that are categories, not gaps."""

    types: dict[str, pa.DataType]
    words: frozenset[str] = frozenset()


def is_parquet(path: str) -> bool:
    return path.endswith((".parquet", ".pq"))


def locate(place: str | os.PathLike[str]) -> tuple[fs.FileSystem, str]:
    """The file system of a path, or of a URI such as s3://bucket/folder, and the path on it."""
    text = os.fspath(place)
    if "://" in text:
        try:
            return fs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{text} is no place that pyarrow knows: {error}") from error
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))


def find_files(source: Any, besides: str = "") -> Files:
    """The Parquet and CSV files that a path, a folder, a glob, or a list of these stand for, and their columns.

    Those in the folder ``besides`` are not among them, and hidden ones (``_`` or ``.`` first) not found in folders.
    """
    places = [source] if isinstance(source, str | os.PathLike) else source
    if not isinstance(places, list | tuple) or not all(isinstance(p, str | os.PathLike) for p in places):
        raise InputError(
            f"source is a {type(source).__name__}: pass a path, a folder, a glob, or a list of them; a table in "
            "memory is explained by explainer(X)"
        )
    if not places:
        raise InputError("source is empty: pass a path, a folder or a glob")
    found: list[fs.FileInfo] = []
    system = locate(places[0])[0]
    for place in places:
        own, path = locate(place)
        if own != system:
            raise InputError(f"{place} is on another file system than {places[0]}: explain one after the other")
        files = [f for f in _expanded(system, path, str(place)) if not _is_within(f.path, besides)]
        if not files:
            raise InputError(f"no file at {place}: it must be one, or a folder or glob of files, in {_KINDS}")
        found += sorted(files, key=lambda file: file.path)
    paths = tuple(dict.fromkeys(file.path for file in found))
    known = {file.path: f"{file.size} {file.mtime_ns}" for file in found}
    with ThreadPoolExecutor(_READERS) as pool:
        schemas = tuple(pool.map(partial(_columns, system), paths))
    return Files(system, paths, tuple(known[path] for path in paths), schemas)


def find_parts(files: Files, rows: int) -> list[Part]:
    """The files in parts of about so many rows; one row group is the least of a Parquet file."""
    with ThreadPoolExecutor(_READERS) as pool:
        divided = pool.map(partial(_divided, files.system, rows), range(len(files.paths)), files.paths)
    return [part for parts in divided for part in parts]


def read_part(
    system: fs.FileSystem, part: Part, columns: Sequence[str], text: Text, size: int
) -> Iterator[pa.RecordBatch]:
    """The columns of a part, in batches of at most ``size`` rows; ``text`` says how to read CSV."""
    if is_parquet(part.path):
        with system.open_input_file(part.path) as source, pq.ParquetFile(source) as file:
            groups = list(range(part.start, part.stop))
            for batch in file.iter_batches(size, row_groups=groups, columns=list(columns), use_threads=False):
                yield batch.select(list(columns))
        return
    if part.stop == _WHOLE:
        stream = system.open_input_stream(part.path, compression="detect")
    else:
        with system.open_input_file(part.path) as file:
            stream = pa.BufferReader(_header(file)[0] + file.read_at(part.stop - part.start, part.start))
    with stream, pyarrow.csv.open_csv(stream, *_csv_options(columns, text)) as reader:
        for batch in reader:
            for start in range(0, len(batch), size):
                yield batch.slice(start, size)


def _csv_options(columns: Sequence[str], text: Text) -> tuple[Any, Any, Any]:
    return (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_LOOK),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            include_columns=list(columns),
            column_types=text.types,
            null_values=[word for word in _GAPS if word not in text.words],
            strings_can_be_null=True,
        ),
    )


def _expanded(system: fs.FileSystem, path: str, place: str) -> list[fs.FileInfo]:
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        if not path.endswith(_KINDS):
            raise InputError(f"{place} is not named as one of {_KINDS}")
        return [info]
    if info.type == fs.FileType.Directory:
        inside = system.get_file_info(fs.FileSelector(path, recursive=True))
        return [file for file in inside if _is_data(file, path)]
    if not glob.has_magic(path):
        return []
    if isinstance(system, fs.LocalFileSystem):
        found = system.get_file_info([os.path.abspath(p) for p in glob.glob(path, recursive=True)])
    else:
        first = next(i for i, piece in enumerate(path.split("/")) if glob.has_magic(piece))
        base = "/".join(path.split("/")[:first])
        inside = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        found = [file for file in inside if fnmatch(file.path, path)]
    return [file for file in found if file.type == fs.FileType.File and file.path.endswith(_KINDS)]


def _is_data(file: fs.FileInfo, folder: str) -> bool:
    hidden = any(piece.startswith(("_", ".")) for piece in file.path[len(folder) :].split("/") if piece)
    return file.type == fs.FileType.File and file.path.endswith(_KINDS) and not hidden


def _is_within(path: str, folder: str) -> bool:
    return bool(folder) and path.startswith(folder.rstrip("/") + "/")


def _columns(system: fs.FileSystem, path: str) -> pa.Schema:
    """The columns of a file; those of CSV as its first rows have them."""
    try:
        if is_parquet(path):
            with system.open_input_file(path) as file:
                return pq.read_schema(file)
        with system.open_input_stream(path, compression="detect") as stream:
            start = stream.read(_LOOK)
        if len(start) == _LOOK:  # without the last row, which may be cut short
            start = start[: start.rfind(b"\n") + 1] or start
        with pyarrow.csv.open_csv(pa.BufferReader(start)) as reader:
            return reader.schema
    except (pa.ArrowInvalid, OSError) as error:
        raise PartError(f"{path} cannot be read: {error}") from error


def _divided(system: fs.FileSystem, rows: int, number: int, path: str) -> list[Part]:
    try:
        if path.endswith(".gz"):
            return [Part(path, number, 0, 0, _WHOLE)]
        with system.open_input_file(path) as file:
            if is_parquet(path):
                return _row_groups(pq.ParquetFile(file).metadata, rows, number, path)
            return _byte_ranges(file, rows, number, path)
    except (pa.ArrowInvalid, OSError) as error:
        raise PartError(f"{path} cannot be read: {error}") from error


def _row_groups(metadata: Any, rows: int, number: int, path: str) -> list[Part]:
    parts: list[Part] = []
    start = held = 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).num_rows
        if held >= rows or group == metadata.num_row_groups - 1:
            parts.append(Part(path, number, len(parts), start, group + 1, held))
            start, held = group + 1, 0
    return parts


def _byte_ranges(file: Any, rows: int, number: int, path: str) -> list[Part]:
    """Some rows of CSV each. A row ends with a line, unless a quotation is open: then it is a part of a text."""
    begin = _header(file)[1]
    size = file.size()
    sample = file.read_at(min(_LOOK, size - begin), begin)
    length = len(sample) / max(1, sample.count(b"\n"))
    parts: list[Part] = []
    start = begin
    while start < size:
        stop = _next_row(file, start, start + max(1, int(rows * length)), size)
        parts.append(Part(path, number, len(parts), start, stop))
        start = stop
    return parts


def _header(file: Any) -> tuple[bytes, int]:
    """The line with the names of the columns, and where it ends."""
    stop = _next_row(file, 0, 1, file.size())
    return file.read_at(stop, 0).removeprefix(b"\xef\xbb\xbf"), stop


def _next_row(file: Any, start: int, wanted: int, size: int) -> int:
    """Where the first row begins that is not before ``wanted``, if one begins at ``start``."""
    quotes, place = 0, start
    while place < size:
        data = file.read_at(min(_SCAN, size - place), place)
        before = max(0, wanted - 1 - place)  # a line that ends here makes a row begin where it is wanted
        quotes += data.count(b'"', 0, before)
        while 0 <= before < len(data):
            end = data.find(b"\n", before)
            quotes += data.count(b'"', before, len(data) if end < 0 else end)
            if end >= 0 and quotes % 2 == 0:
                return place + end + 1
            before = end + 1 if end >= 0 else len(data)
        place += len(data)
    return size
