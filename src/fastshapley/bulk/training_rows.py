"""Read training rows from files, and divide them among the processes that train together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
from torch import distributed as dist

from fastshapley.bulk.csv_files import CsvColumns
from fastshapley.bulk.feature_names import check_dropped
from fastshapley.bulk.file_parts import find_parts, read_part
from fastshapley.bulk.file_search import Files, is_parquet
from fastshapley.errors import InputError, PartError
from fastshapley.support.names import lacking

_PART_ROWS = 1 << 14  # rows per part, approximately


@contextmanager
def joined() -> Iterator[tuple[int, int]]:
    """Join the process group that torchrun started, if there is one.

    Yields
    ------
    rank : int
        The index of this process.
    size : int
        The number of processes.
    """
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
    """Return the columns that a model takes.

    Parameters
    ----------
    files : Files
        The files.
    known : sequence of str or None
        The columns that the model was fitted to, if it names them.
    drop : sequence of str
        Columns to leave out.

    Returns
    -------
    list of str
        The columns in ``known`` if the files have them, and otherwise all columns except for ``drop``.

    Raises
    ------
    InputError
        If a file lacks a column.
    """
    check_dropped(files, drop)
    present = files.schemas[0].names
    index = (files.schemas[0].pandas_metadata or {}).get("index_columns", [])
    names = [name for name in present if name not in drop and name not in index]
    if known is not None and set(known) <= set(names):
        names = list(known)
    for path, schema in zip(files.paths, files.schemas, strict=True):
        if missing := [name for name in names if name not in schema.names]:
            raise InputError(lacking(path, missing, schema.names))
    return names


def read_share(files: Files, columns: Sequence[str], rank: int = 0, size: int = 1) -> pd.DataFrame:
    """Read the rows of one of several processes.

    Each process reads every ``size``-th part or, if there are few parts, every ``size``-th row.

    Parameters
    ----------
    files : Files
        The files.
    columns : sequence of str
        The columns to read.
    rank : int, default=0
        The index of this process.
    size : int, default=1
        The number of processes.

    Returns
    -------
    DataFrame
        The rows of this process.

    Raises
    ------
    PartError
        If a file cannot be read.
    """
    parts = find_parts(files, _PART_ROWS)
    step = 1
    if len(parts) < 4 * size:
        step = size
    else:
        parts = parts[rank::size]
    types = file_types(files, columns)
    tables = []
    for part in parts:
        try:
            for batch in read_part(files.system, part, columns, CsvColumns(types), _PART_ROWS):
                tables.append(pa.Table.from_batches([batch]).take(list(range(rank % step, len(batch), step))))
        except (pa.ArrowException, OSError) as error:
            raise PartError(f"{part}: {error}") from error
    return as_frame(tables, types)


def file_types(files: Files, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """Return a type for each column that holds the values of all files.

    Parameters
    ----------
    files : Files
        The files. The types of CSV columns are those of the first rows.
    columns : sequence of str
        The columns.

    Returns
    -------
    dict of str to pyarrow.DataType
        The type of each column.

    Raises
    ------
    InputError
        If a column holds times, or has types that do not fit together.
    """
    schemas = [
        schema if is_parquet(path) else pa.schema([(field.name, _wide(field.type)) for field in schema])
        for path, schema in zip(files.paths, files.schemas, strict=True)
    ]
    types = common_types(files.paths, [_only(schema, columns) for schema in schemas])
    return {name: pa.float64() if pa.types.is_null(kind) else kind for name, kind in types.items()}


def common_types(places: Sequence[str], schemas: Sequence[pa.Schema]) -> dict[str, pa.DataType]:
    """Return a type for each column that holds the values of several tables.

    Parameters
    ----------
    places : sequence of str
        The names of the tables, for error messages.
    schemas : sequence of pyarrow.Schema
        The columns of the tables.

    Returns
    -------
    dict of str to pyarrow.DataType
        The type of each column. Decimals become float64.

    Raises
    ------
    InputError
        If a column holds times, or has types that do not fit together.
    """
    found: dict[str, dict[pa.DataType, str]] = {}  # the types of each column, each with the first place that has it
    for place, schema in zip(places, schemas, strict=True):
        for field in schema:
            found.setdefault(field.name, {}).setdefault(field.type, place)
    return {name: _common(name, kinds) for name, kinds in found.items()}


def as_frame(tables: Sequence[pa.Table], types: dict[str, pa.DataType]) -> pd.DataFrame:
    """Return tables as one DataFrame with the given column types."""
    if not tables:
        return pd.DataFrame()
    alike = [
        table.cast(
            pa.schema([(name, types[name]) for name in table.column_names], table.schema.metadata), safe=False
        )
        for table in tables
    ]
    return pa.concat_tables(alike, promote_options="permissive").to_pandas()


def _common(name: str, kinds: dict[pa.DataType, str]) -> pa.DataType:
    """Return a type that holds the values of several types; each comes with a place that has it."""
    for kind, place in kinds.items():
        if pa.types.is_temporal(_plain(kind)):
            raise InputError(
                f"column {name!r} of {place} holds times ({kind}): drop it with --drop, or convert it to numbers"
            )
    first, *others = kinds
    if pa.types.is_dictionary(first) and not others:
        return first
    plain = {_plain(kind) for kind in kinds}
    try:
        alone = [pa.schema([(name, kind)]) for kind in sorted(plain, key=str)]
        return pa.unify_schemas(alone, promote_options="permissive").field(name).type
    except pa.ArrowTypeError:
        listed = ", ".join(f"{kind} in {place}" for kind, place in kinds.items())
        raise InputError(
            f"column {name!r} has several types: {listed}. Write it as one type in all files"
        ) from None


def _plain(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.float64() if pa.types.is_decimal(kind) else kind


def _only(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in columns])


def _wide(kind: pa.DataType) -> pa.DataType:
    """Return the type to read a CSV column as. Integers become floats: later rows may have a decimal point."""
    return pa.float64() if pa.types.is_integer(kind) else kind
