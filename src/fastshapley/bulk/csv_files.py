"""CSV files: their columns, the bytes at which their rows start, and their rows as Arrow batches."""

from __future__ import annotations

import atexit
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow import fs

# Cells that count as missing. The list is that of pandas.
GAPS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
    *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
SCAN_BYTES = 1 << 22  # bytes that are searched for row starts at a time
WHOLE_FILE = -1  # the stop of a part whose file cannot be divided
_READ_BYTES = 1 << 22  # bytes that are parsed at a time
_HEAD_BYTES = 1 << 20  # bytes at the start of a file that tell its columns and the length of its rows
_EXIT_PAUSE = 0.05  # time that threads have to come to rest before the process ends, in seconds
_TRUE, _FALSE = ("1", "true", "True", "TRUE"), ("0", "false", "False", "FALSE")  # pyarrow's defaults
_FIELD = rb'(?:"[^"]*(?:""[^"]*)*")?[^,\r\n]*'
_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(%b(?:,%b)*)(?:\r\n|[\r\n]|\Z)" % (_FIELD, _FIELD))
_BEFORE_QUOTE = np.isin(np.arange(256), list(b',\r\n"'))  # bytes that may stand before an opening quote


@dataclass(frozen=True)
class CsvColumns:
    """How to read the columns of a CSV file.

    Parameters
    ----------
    types : dict of str to pyarrow.DataType
        The type of each column.
    gaps : mapping of str to sequence of str
        The words that count as missing in a text column. Columns that are not listed use ``GAPS``.
    """

    types: dict[str, pa.DataType]
    gaps: Mapping[str, Sequence[str]] = field(default_factory=dict)


def compression_of(path: str) -> str | None:
    """Return the compression of a file as pyarrow names it, or None."""
    return "gzip" if path.lower().endswith(".gz") else None


def csv_schema(system: fs.FileSystem, path: str) -> pa.Schema:
    """Return the columns of a CSV file, with the types of its first rows.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system of the file.
    path : str
        The path on that file system.

    Returns
    -------
    pyarrow.Schema
        The names and types of the columns.
    """
    head = _head(system, path)
    return _schema_of(head + b"\n")  # a file with nothing but a header may lack the line end


def csv_ranges(system: fs.FileSystem, path: str, rows: int) -> list[tuple[int, ...]]:
    """Divide a CSV file into byte ranges of whole rows.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system of the file.
    path : str
        The path on that file system.
    rows : int
        Approximate number of rows per range.

    Returns
    -------
    list of tuple
        ``(start, stop)``, or ``(start, stop, 0)`` for a file without rows. A file that cannot be divided is
        ``(0, WHOLE_FILE)``.
    """
    if compression_of(path):
        head = _head(system, path)
        empty = len(head) < _HEAD_BYTES and _header(head)[1] == len(head)
        return [(0, 0, 0) if empty else (0, WHOLE_FILE)]
    with system.open_input_file(path) as file:
        begin, size = _header(file.read_at(_HEAD_BYTES, 0))[1], file.size()
        if begin == size:
            return [(size, size, 0)]
        sample = file.read_at(_HEAD_BYTES, begin)
        step = max(1, int(rows * len(sample) / max(1, sample.count(b"\n"))))
        starts = _row_starts(file, begin, step)
    return [(0, WHOLE_FILE)] if starts is None else list(pairwise(starts))


def csv_batches(
    system: fs.FileSystem, path: str, span: tuple[int, int], columns: Sequence[str], reading: CsvColumns, size: int
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a byte range.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system of the file.
    path : str
        The path on that file system.
    span : tuple of int
        A range from `csv_ranges`, as ``(start, stop)``.
    columns : sequence of str
        The columns to read, in this order.
    reading : CsvColumns
        How to read them.
    size : int
        The maximum number of rows per batch.

    Yields
    ------
    pyarrow.RecordBatch
        The columns of up to ``size`` rows.
    """
    start, stop = span
    if stop == WHOLE_FILE:
        with system.open_input_stream(path, compression=compression_of(path)) as stream:
            yield from _batches(stream, None, columns, reading, size)
        return
    with system.open_input_file(path) as file:
        names = _header(file.read_at(_HEAD_BYTES, 0))[0]
        with file.get_stream(start, stop - start) as stream:
            yield from _batches(stream, names, columns, reading, size)


def _batches(
    stream: Any, names: Sequence[str] | None, columns: Sequence[str], reading: CsvColumns, size: int
) -> Iterator[pa.RecordBatch]:
    """Parse a stream of CSV. Its first row is the header if ``names`` is None."""
    options = (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_READ_BYTES, column_names=names),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(
            include_columns=list(columns),
            column_types=reading.types,
            null_values=GAPS,
            true_values=[*_TRUE, "1.0"],  # pandas writes booleans with gaps as 1.0 and 0.0
            false_values=[*_FALSE, "0.0"],
        ),
    )
    with pyarrow.csv.open_csv(stream, *options) as reader:
        for batch in reader:
            cleared = [_with_gaps(batch[name], reading.gaps.get(name, GAPS)) for name in columns]
            whole = pa.RecordBatch.from_arrays(cleared, names=list(columns))
            for start in range(0, len(whole), size):
                yield whole.slice(start, size)


def _with_gaps(column: pa.Array, gaps: Sequence[str]) -> pa.Array:
    """Set gap words in a text column to null. pyarrow has one list of gap words for all columns."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.is_in(column, value_set=pa.array(gaps, pa.string())), None, column)


def _head(system: fs.FileSystem, path: str) -> bytes:
    with system.open_input_stream(path, compression=compression_of(path)) as stream:
        return stream.read(_HEAD_BYTES)


def _schema_of(head: bytes) -> pa.Schema:
    """Return the columns of CSV by its first block; the last row of ``head`` may be cut short."""
    options = (
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_HEAD_BYTES // 2),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(null_values=GAPS),
    )
    with pyarrow.csv.open_csv(pa.BufferReader(head), *options) as reader:
        found = pa.schema([(name, reader.schema.field(i).type) for i, name in enumerate(reader.schema.names)])
        # The reader reads ahead on other threads: see `_wait_for_threads`.
        with suppress(pa.ArrowInvalid, StopIteration):
            while True:
                reader.read_next_batch()
        return found


@atexit.register
def _wait_for_threads() -> None:
    """Let pyarrow's threads come to rest. A process that ends while one of them starts is aborted."""
    pa.set_cpu_count(1)
    time.sleep(_EXIT_PAUSE)


def _header(head: bytes) -> tuple[list[str], int]:
    """Return the column names, and the byte at which the header ends."""
    match = _HEADER.match(head)
    assert match is not None  # the pattern matches an empty file too
    return _schema_of(match.group(1) + b"\n").names, match.end()


def _row_starts(file: Any, begin: int, step: int) -> list[int] | None:
    """Return the bytes at which ranges start, at least ``step`` bytes apart, and the end of the file.

    A row ends at a line end that is not inside a quoted text. A quote inside a text that is not quoted makes this
    ambiguous. The result is then None, and the parser has to read the whole file.
    """
    starts, place, size = [begin], begin, file.size()
    quotes, before = 0, b"\n"
    while place < size:
        data = file.read_at(SCAN_BYTES, place)
        found = np.flatnonzero(np.frombuffer(data, np.uint8) == ord('"'))
        opening = found[quotes % 2 :: 2]
        if not _BEFORE_QUOTE[np.frombuffer(before + data, np.uint8)[opening]].all():
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
