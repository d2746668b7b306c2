"""Rows of files to train on, dealt out among the processes that train together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pandas as pd
import pyarrow as pa
from torch import distributed as dist

from fastshapley.bulk.file_parts import Files, Text, find_parts, is_parquet, read_part
from fastshapley.data.table_schema import lacking
from fastshapley.errors import InputError, PartError

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
    types = file_types(files, columns)
    tables = []
    for part in parts:
        try:
            for batch in read_part(files.system, part, columns, Text(types), _ROWS):
                tables.append(pa.Table.from_batches([batch]).take(list(range(rank % step, len(batch), step))))
        except (pa.ArrowException, OSError) as error:
            raise PartError(f"{part}: {error}") from error
    return as_frame(tables, types)


def file_types(files: Files, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """The types that hold what all files have in the columns; those of CSV are known by their first rows."""
    schemas = [
        schema if is_parquet(path) else pa.schema([(field.name, _wide(field.type)) for field in schema])
        for path, schema in zip(files.paths, files.schemas, strict=True)
    ]
    types = common_types(files.paths, [_only(schema, columns) for schema in schemas])
    return {name: pa.float64() if pa.types.is_null(kind) else kind for name, kind in types.items()}


def common_types(places: Sequence[str], schemas: Sequence[pa.Schema]) -> dict[str, pa.DataType]:
    """The types that hold what is in all of the ``places``: decimals are numbers, and times are refused."""
    found: dict[str, dict[pa.DataType, str]] = {}  # with the first place of each
    for place, schema in zip(places, schemas, strict=True):
        for field in schema:
            found.setdefault(field.name, {}).setdefault(field.type, place)
    return {name: _common(name, kinds) for name, kinds in found.items()}


def as_frame(tables: Sequence[pa.Table], types: dict[str, pa.DataType]) -> pd.DataFrame:
    """Tables as one frame, of these types."""
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
    """The type that holds columns of several; each comes with a place that has it."""
    for kind, place in kinds.items():
        if pa.types.is_temporal(_plain(kind)):
            raise InputError(
                f"column {name!r} of {place} holds times ({kind}): drop it with --drop, or turn it into numbers"
            )
    first, *others = kinds
    if pa.types.is_dictionary(first) and not others:
        return first
    plain = {_plain(kind) for kind in kinds}
    try:
        alone = [pa.schema([(name, kind)]) for kind in sorted(plain, key=str)]
        return pa.unify_schemas(alone, promote_options="permissive").field(name).type
    except pa.ArrowTypeError:
        said = ", ".join(f"{kind} in {place}" for kind, place in kinds.items())
        raise InputError(f"column {name!r} is of several types: {said}; write it as one of them") from None


def _plain(kind: pa.DataType) -> pa.DataType:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.float64() if pa.types.is_decimal(kind) else kind


def _only(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in columns])


def _wide(kind: pa.DataType) -> pa.DataType:
    """What to read a column of CSV as whose first rows are of a type: later numbers may have a point."""
    return pa.float64() if pa.types.is_integer(kind) else kind
