"""Rows of files to train on, dealt out among the processes that train together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
from torch import distributed as dist

from fastshapley.errors import InputError, PartError
from fastshapley.parts import Files, Text, find_parts, read_part
from fastshapley.schema import lacking

_ROWS = 1 << 14  # of the parts that are dealt out


@contextmanager
def joined() -> Iterator[tuple[int, int]]:
    """The number of this process among those that torchrun started, which it joins, and how many there are."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield 0, 1
        return
    dist.init_process_group()
    try:
        yield dist.get_rank(), size
    finally:
        dist.destroy_process_group()


def model_columns(files: Files, known: Sequence[str] | None, drop: Sequence[str]) -> list[str]:
    """The columns that a model takes: those ``known``, where the files have them, else all but ``drop``."""
    there = files.schemas[0].names
    if unknown := [name for name in drop if name not in there]:
        raise InputError(f"columns {unknown} to drop are none of {files.paths[0]}, which has {there}")
    index = (files.schemas[0].pandas_metadata or {}).get("index_columns", [])
    names = [name for name in there if name not in drop and name not in index]
    if known is not None and set(known) <= set(names):
        names = list(known)
    for path, schema in zip(files.paths, files.schemas, strict=True):
        if missing := [name for name in names if name not in schema.names]:
            raise InputError(lacking(path, missing, schema.names))
    return names


def read_share(files: Files, columns: Sequence[str], rank: int = 0, size: int = 1) -> pd.DataFrame:
    """The rows of one of ``size`` processes: every so many-th part, or row where there are few parts."""
    parts = find_parts(files, _ROWS)
    step = 1
    if len(parts) < 4 * size:
        step = size
    else:
        parts = parts[rank::size]
    text = Text({field.name: _wide(field.type) for field in files.schemas[0] if field.name in columns})
    tables = []
    for part in parts:
        try:
            for batch in read_part(files.system, part, columns, text, _ROWS):
                tables.append(pa.Table.from_batches([batch]).take(list(range(rank % step, len(batch), step))))
        except (pa.ArrowException, OSError) as error:
            raise PartError(f"{part}: {error}") from error
    return pa.concat_tables(tables, promote_options="permissive").to_pandas() if tables else pd.DataFrame()


def _wide(kind: pa.DataType) -> pa.DataType:
    """What to read a column of CSV as whose first rows are of a type: later numbers may have a point."""
    return pa.float64() if pa.types.is_integer(kind) else pa.string() if pa.types.is_null(kind) else kind
