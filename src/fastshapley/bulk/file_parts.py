"""Divide files into parts, and read a part in batches.

A part is a run of row groups of a Parquet file, some rows of a row group, or a byte range of a CSV file that holds
whole rows. The parts depend on the files alone, so an interrupted run finds the same parts again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from fastshapley.bulk.csv_files import WHOLE_FILE, CsvColumns, csv_batches, csv_ranges
from fastshapley.bulk.file_search import READERS, Files, is_parquet
from fastshapley.errors import PartError

_ENOUGH_PARTS = 8  # With as many parts, no row group is divided.
_CHEAP_ROWS = 1 << 25  # rows that may be read in all to read each slice of one row group
_BUFFER_BYTES = 1 << 26  # bytes of a Parquet file that are held in memory, over all columns


@dataclass(frozen=True)
class Part:
    """A run of row groups of a Parquet file, some rows of one row group, or a byte range of a CSV file.

    Parameters
    ----------
    path : str
        The path of the file.
    stamp : str
        The version of the file, from `stamp_of`.
    file : int
        The index of the file among all files.
    number : int
        The index of the part in its file.
    start, stop : int
        The first row group or byte, and the one after the last.
    rows : int, default=-1
        The number of rows, or -1 if it is not known.
    skipped : int, default=0
        The number of rows in front that belong to other parts.
    """

    path: str
    stamp: str
    file: int
    number: int
    start: int
    stop: int
    rows: int = -1
    skipped: int = 0

    @property
    def name(self) -> str:
        """The part in a file name: file, number and version."""
        return f"{self.file:05}-{self.number:05}-{self.stamp}"

    def __str__(self) -> str:
        unit = "row groups" if is_parquet(self.path) else "bytes"
        if self.stop == WHOLE_FILE:
            return self.path
        rows = f", from row {self.skipped}" if self.skipped else ""
        return f"{self.path}, {unit} {self.start} to {self.stop}{rows}"


def find_parts(files: Files, rows: int) -> list[Part]:
    """Divide files into parts.

    Parameters
    ----------
    files : Files
        The files.
    rows : int
        Approximate number of rows per part. A part of a Parquet file has at least one row group.

    Returns
    -------
    list of Part
        At least one part per file; a file without rows has one part without rows.

    Raises
    ------
    PartError
        If a file cannot be read.
    """
    with ThreadPoolExecutor(READERS) as pool:
        divided = pool.map(partial(_divide, files.system, rows), files.paths)
        return [
            Part(path, stamp, file, number, *bounds)
            for file, (path, stamp, parts) in enumerate(zip(files.paths, files.stamps, divided, strict=True))
            for number, bounds in enumerate(parts)
        ]


def with_slices(parts: Sequence[Part], rows: int) -> list[Part]:
    """Divide large row groups where there are too few parts to share the work or to resume it.

    To read a slice, the rows before it in the row group are read too, so row groups are divided only then, and
    those of more than four million rows into at most eight slices.

    Parameters
    ----------
    parts : sequence of Part
        The parts of all files, from `find_parts`.
    rows : int
        Approximate number of rows per part.

    Returns
    -------
    list of Part
        The same rows in the same order.
    """
    if len(parts) >= _ENOUGH_PARTS:
        return list(parts)
    slices = [piece for part in parts for piece in _slices(part, rows)]
    return [
        replace(piece, number=number)
        for _, own in groupby(slices, key=lambda piece: piece.file)
        for number, piece in enumerate(own)
    ]


def _slices(part: Part, rows: int) -> list[Part]:
    """Return slices of equal size of a row group with more rows than asked for; of other parts, themselves."""
    if not is_parquet(part.path) or part.stop - part.start != 1 or part.rows <= rows:
        return [part]
    count = min(-(-part.rows // rows), max(_ENOUGH_PARTS, _CHEAP_ROWS // part.rows))
    places = [part.rows * k // count for k in range(count + 1)]
    return [replace(part, skipped=start, rows=stop - start) for start, stop in pairwise(places)]


def read_part(
    system: fs.FileSystem, part: Part, columns: Sequence[str], reading: CsvColumns, size: int
) -> Iterator[pa.RecordBatch]:
    """Read the columns of a part.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system of the part.
    part : Part
        The part.
    columns : sequence of str
        The columns to read, in this order.
    reading : CsvColumns
        How to read the columns if the file is CSV.
    size : int
        The maximum number of rows per batch.

    Yields
    ------
    pyarrow.RecordBatch
        The columns of up to ``size`` rows.
    """
    if part.start == part.stop:
        return
    if is_parquet(part.path):
        yield from _parquet_batches(system, part, list(columns), size)
    else:
        yield from csv_batches(system, part.path, (part.start, part.stop), columns, reading, size)


def _parquet_batches(system: fs.FileSystem, part: Part, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
    buffer = max(1 << 16, min(1 << 20, _BUFFER_BYTES // len(columns)))
    with (
        system.open_input_file(part.path) as source,
        # The default, pre_buffer=True, reads all row groups of any size before it yields the first row.
        pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer, page_checksum_verification=True) as file,
    ):
        groups = list(range(part.start, part.stop))
        batches = file.iter_batches(size, row_groups=groups, columns=columns, use_threads=False)
        stop = part.skipped + part.rows if part.rows >= 0 else sys.maxsize
        for batch in _rows_of(batches, part.skipped, stop):
            yield batch.select(columns)


def _rows_of(batches: Iterator[pa.RecordBatch], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from ``start`` to ``stop`` of batches."""
    place = 0
    for batch in batches:
        first, last = max(start - place, 0), min(stop - place, len(batch))
        if first < last:
            yield batch.slice(first, last - first)
        place += len(batch)
        if place >= stop:
            return


def _divide(system: fs.FileSystem, rows: int, path: str) -> list[tuple[int, ...]]:
    """Return the start, the stop and, where it is known, the number of rows of each part of a file."""
    try:
        if not is_parquet(path):
            return csv_ranges(system, path, rows)
        with system.open_input_file(path) as file:
            return _row_groups(pq.ParquetFile(file).metadata, rows)
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
