"""Files in parts: a file of any size is read a part at a time, by whoever has the time for it.

A part is some row groups of a Parquet file, or some bytes of a CSV file, from the start of one row to that of
another. What the parts are depends on the files alone, so that a run that was interrupted finds the same ones.
"""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow import fs

from fastshapley.errors import InputError, PartError

logger = logging.getLogger(__name__)

# what stands for a gap in CSV, as pandas has it
GAPS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
    *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
_TRUE, _FALSE = ("1", "true", "True", "TRUE"), ("0", "false", "False", "FALSE")  # as pyarrow has them
_KINDS = (".parquet", ".pq", ".csv", ".csv.gz")
SCAN_BYTES = 1 << 22  # bytes of a CSV file that are searched for the ends of rows at once
_BLOCK = 1 << 22  # bytes of a CSV file that are read at once
_BUFFERS = 1 << 26  # bytes of a Parquet file that are held, of all columns together
_LOOK = 1 << 20  # the first bytes of a CSV file, which tell its columns and how long rows are
_READERS = 16  # files that are looked at at once: most of it is waiting
_WHOLE = -1  # the end of a file that cannot be divided
_FIELD = rb'(?:"[^"]*(?:""[^"]*)*")?[^,\r\n]*'
_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(%b(?:,%b)*)(?:\r\n|[\r\n]|\Z)" % (_FIELD, _FIELD))
_OPENS = np.isin(np.arange(256), list(b',\r\n"'))  # what comes before a quote that begins a text, or follows one


@dataclass(frozen=True)
class Part:
    """Some of a file: row groups of Parquet, or bytes of CSV, from ``start`` up to ``stop``.

    ``stamp`` says which version of the file; ``file`` and ``number`` are its places among the files and in its
    file; ``rows`` how many it has, -1 if that is not known.
    """

    path: str
    stamp: str
    file: int
    number: int
    start: int
    stop: int
    rows: int = -1

    @property
    def name(self) -> str:
        return f"{self.file:05}-{self.number:05}-{self.stamp}"

    def __str__(self) -> str:
        what = "row groups" if is_parquet(self.path) else "bytes"
        return self.path if self.stop == _WHOLE else f"{self.path}, {what} {self.start} to {self.stop}"


@dataclass(frozen=True)
class Files:
    """Files on a file system, with the columns of each."""

    system: fs.FileSystem
    paths: tuple[str, ...]
    stamps: tuple[str, ...]
    schemas: tuple[pa.Schema, ...]


@dataclass(frozen=True)
class Text:
    """How to read CSV: the type of each column, and what is a gap in those of text, if not all ``GAPS``."""

    types: dict[str, pa.DataType]
    gaps: Mapping[str, Sequence[str]] = field(default_factory=dict)


def is_parquet(path: str) -> bool:
    return path.lower().endswith((".parquet", ".pq"))


def _known(path: str) -> bool:
    return path.lower().endswith(_KINDS)


def _packing(path: str) -> str | None:
    """How a file is compressed."""
    return "gzip" if path.lower().endswith(".gz") else None


def locate(place: str | os.PathLike[str]) -> tuple[fs.FileSystem, str]:
    """The file system of a path, or of a URI such as s3://bucket/folder, and the path on it."""
    text = os.fspath(place)
    if "://" in text:
        try:
            system, path = fs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, OSError, ImportError, ValueError) as error:
            raise InputError(f"{text} is no place that pyarrow knows: {error}") from error
        return system, path.rstrip("/")
    return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(text))


def stamp_of(file: fs.FileInfo) -> str:
    """Eight letters that are others once a file has changed."""
    return hashlib.sha256(f"{file.size} {file.mtime_ns}".encode()).hexdigest()[:8]


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
    stamps: dict[str, str] = {}
    system = locate(places[0])[0]
    for place in places:
        own, path = locate(place)
        if own != system:
            raise InputError(f"{place} is on another file system than {places[0]}: explain one after the other")
        stamps |= {file.path: stamp_of(file) for file in _found(system, path, os.fspath(place), besides)}
    paths = tuple(stamps)
    with ThreadPoolExecutor(_READERS) as pool:
        schemas = tuple(pool.map(partial(_columns, system), paths))
    return Files(system, paths, tuple(stamps.values()), schemas)


def find_parts(files: Files, rows: int) -> list[Part]:
    """The files in parts of about so many rows; one row group is the least of a Parquet file.

    Each file has one at least, if only one of no rows.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        divided = pool.map(partial(_divided, files.system, rows), files.paths)
        return [
            Part(path, stamp, file, number, *bounds)
            for file, (path, stamp, parts) in enumerate(zip(files.paths, files.stamps, divided, strict=True))
            for number, bounds in enumerate(parts)
        ]


def read_part(
    system: fs.FileSystem, part: Part, columns: Sequence[str], text: Text, size: int
) -> Iterator[pa.RecordBatch]:
    """The columns of a part, in batches of at most ``size`` rows; ``text`` says how to read CSV."""
    if part.start == part.stop:
        return
    if is_parquet(part.path):
        yield from _parquet_batches(system, part, list(columns), size)
        return
    if part.stop == _WHOLE:
        with system.open_input_stream(part.path, compression=_packing(part.path)) as stream:
            yield from _csv_batches(stream, None, columns, text, size)
        return
    with system.open_input_file(part.path) as file:
        names = _header(file.read_at(_LOOK, 0))[0]
        with file.get_stream(part.start, part.stop - part.start) as stream:
            yield from _csv_batches(stream, names, columns, text, size)


def _parquet_batches(system: fs.FileSystem, part: Part, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
    buffer = max(1 << 16, min(1 << 20, _BUFFERS // len(columns)))
    with (
        system.open_input_file(part.path) as source,
        # without its default, which is to read all row groups, of whatever size, before the first row
        pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer, page_checksum_verification=True) as file,
    ):
        groups = list(range(part.start, part.stop))
        for batch in file.iter_batches(size, row_groups=groups, columns=columns, use_threads=False):
            yield batch.select(columns)


def _csv_batches(
    stream: Any, names: Sequence[str] | None, columns: Sequence[str], text: Text, size: int
) -> Iterator[pa.RecordBatch]:
    """Rows of CSV; the first holds the names of the columns, if they are not given."""
    options = (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            include_columns=list(columns),
            column_types=text.types,
            null_values=GAPS,
            true_values=[*_TRUE, "1.0"],  # as pandas writes booleans with gaps
            false_values=[*_FALSE, "0.0"],
        ),
    )
    with pyarrow.csv.open_csv(stream, *options) as reader:
        for batch in reader:
            cleared = [_with_gaps(batch[name], text.gaps.get(name, GAPS)) for name in columns]
            whole = pa.RecordBatch.from_arrays(cleared, names=list(columns))
            for start in range(0, len(whole), size):
                yield whole.slice(start, size)


def _with_gaps(column: pa.Array, gaps: Sequence[str]) -> pa.Array:
    """A column of text with nothing where it says so: pyarrow has one list of such words for all columns."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.is_in(column, value_set=pa.array(gaps, pa.string())), None, column)


def _found(system: fs.FileSystem, path: str, place: str, besides: str) -> list[fs.FileInfo]:
    """The files that one place stands for, in order."""
    try:
        files = _expanded(system, path, place)
    except OSError as error:
        raise PartError(f"{place} cannot be read: {error}") from error
    outside = [file for file in files if not file.path.startswith(besides.rstrip("/") + "/")] if besides else files
    if files and not outside:
        raise InputError(f"{place} is in the folder for the output, {besides}: choose another folder")
    if not files:
        raise InputError(f"no file at {place}: it must be one, or a folder or glob of files, in {_KINDS}")
    return sorted(outside, key=lambda file: file.path)


def _expanded(system: fs.FileSystem, path: str, place: str) -> list[fs.FileInfo]:
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        if not _known(path):
            raise InputError(f"{place} is not named as one of {_KINDS}")
        return [info]
    if info.type == fs.FileType.Directory:
        return _inside(system, path)
    if not glob.has_magic(path):
        return []
    found, files = [], []
    for match in _matches(system, path):
        if match.type == fs.FileType.Directory and not match.base_name.startswith(("_", ".")):
            found += _inside(system, match.path)
        elif match.type == fs.FileType.File:
            files.append(match)
    return found + _readable(files, place)


def _inside(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """The files in a folder and in those within, but for hidden ones."""
    files = [
        file
        for file in system.get_file_info(fs.FileSelector(folder, recursive=True))
        if file.type == fs.FileType.File
        and not any(piece.startswith(("_", ".")) for piece in file.path[len(folder) :].split("/"))
    ]
    return _readable(files, folder)


def _readable(files: Sequence[fs.FileInfo], place: str) -> list[fs.FileInfo]:
    if others := sorted(file.path for file in files if not _known(file.path)):
        logger.warning(
            "%d files in %s are left out, as they are not named as one of %s: such as %s",
            *(len(others), place, _KINDS, others[:3]),
        )
    return [file for file in files if _known(file.path)]


def _matches(system: fs.FileSystem, pattern: str) -> list[fs.FileInfo]:
    """What a glob stands for; pyarrow itself knows none."""
    if isinstance(system, fs.LocalFileSystem):
        return system.get_file_info([os.path.abspath(path) for path in glob.glob(pattern, recursive=True)])
    pieces = pattern.split("/")
    base = "/".join(pieces[: next(i for i, piece in enumerate(pieces) if glob.has_magic(piece))])
    inside = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    if "**" in pieces:
        patterns = (pattern, pattern.replace("**/", ""))
        return [file for file in inside if any(fnmatchcase(file.path, wanted) for wanted in patterns)]
    deep = pattern.count("/")
    return [file for file in inside if file.path.count("/") == deep and fnmatchcase(file.path, pattern)]


def _columns(system: fs.FileSystem, path: str) -> pa.Schema:
    """The columns of a file; those of CSV as its first rows have them."""
    try:
        if is_parquet(path):
            with system.open_input_file(path) as file:
                return pq.read_schema(file)
        with system.open_input_stream(path, compression=_packing(path)) as stream:
            start = stream.read(_LOOK)
        return _csv_schema(start + b"\n")  # which may be the one that a row of nothing but names lacks
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PartError(f"{path} cannot be read: {error}") from error


def _csv_schema(start: bytes) -> pa.Schema:
    """The columns of CSV by its first block; rows after it may be cut short."""
    options = (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_LOOK // 2),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(null_values=GAPS),
    )
    with pyarrow.csv.open_csv(pa.BufferReader(start), *options) as reader:
        return pa.schema([(name, reader.schema.field(i).type) for i, name in enumerate(reader.schema.names)])


def _header(start: bytes) -> tuple[list[str], int]:
    """The names of the columns from the first bytes of CSV, and where the line with them ends."""
    match = _HEADER.match(start)
    assert match is not None  # nothing at all is a line too
    return _csv_schema(match.group(1) + b"\n").names, match.end()


def _divided(system: fs.FileSystem, rows: int, path: str) -> list[tuple[int, ...]]:
    """The parts of a file: from where, up to where, and how many rows there are, if that is known."""
    try:
        if _packing(path):
            with system.open_input_stream(path, compression=_packing(path)) as stream:
                start = stream.read(_LOOK)
            return [(0, 0, 0) if len(start) < _LOOK and _header(start)[1] == len(start) else (0, _WHOLE)]
        with system.open_input_file(path) as file:
            if is_parquet(path):
                return _row_groups(pq.ParquetFile(file).metadata, rows)
            return _byte_ranges(file, rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise PartError(f"{path} cannot be read: {error}") from error


def _row_groups(metadata: Any, rows: int) -> list[tuple[int, ...]]:
    parts: list[tuple[int, ...]] = []
    start = held = 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).num_rows
        if held >= rows or group == metadata.num_row_groups - 1:
            parts.append((start, group + 1, held))
            start, held = group + 1, 0
    return parts or [(0, 0, 0)]


def _byte_ranges(file: Any, rows: int) -> list[tuple[int, ...]]:
    """Some rows of CSV each."""
    begin, size = _header(file.read_at(_LOOK, 0))[1], file.size()
    if begin == size:
        return [(size, size, 0)]
    sample = file.read_at(_LOOK, begin)
    starts = _row_starts(file, begin, max(1, int(rows * len(sample) / max(1, sample.count(b"\n")))))
    return [(0, _WHOLE)] if starts is None else list(pairwise(starts))


def _row_starts(file: Any, begin: int, step: int) -> list[int] | None:
    """Where rows begin, from the one at ``begin``, so many bytes apart or a little more, and where the last ends.

    A row ends with a line, unless a quotation is open: then it is a line of a text. A quote within a text that is
    not quoted opens none; what has such quotes is left to the parser as a whole, and the result is None.
    """
    starts, place, size = [begin], begin, file.size()
    quotes, before = 0, b"\n"
    while place < size:
        data = file.read_at(SCAN_BYTES, place)
        found = np.flatnonzero(np.frombuffer(data, np.uint8) == ord('"'))
        opening = found[quotes % 2 :: 2]
        if not _OPENS[np.frombuffer(before + data, np.uint8)[opening]].all():
            return None
        wanted = starts[-1] + step - place
        while (end := data.find(b"\n", max(0, wanted - 1))) >= 0:
            if (quotes + int(np.searchsorted(found, end))) % 2:
                wanted = end + 2
            else:
                starts.append(place + end + 1)
                wanted = end + 1 + step
        quotes, before, place = quotes + len(found), data[-1:], place + len(data)
    return starts if starts[-1] == size else [*starts, size]
