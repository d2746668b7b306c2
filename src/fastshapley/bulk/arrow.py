"""Arrow <-> tensors: columns of files as encoded rows, and values as columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.bulk.file_parts import GAPS, Files, Text, is_parquet
from fastshapley.data.column import Column
from fastshapley.data.table_schema import TableSchema, check_numbers, lacking
from fastshapley.errors import InputError
from fastshapley.explanation import attribution_names

_CHUNK = 2048  # rows explained at once: all of it stays in the cache
_PLAIN = {str: pa.string(), int: pa.int64()}
_EXACT = 1 << 53  # float64 holds every integer up to this


def feature_columns(
    schema: TableSchema, names: Sequence[str], keys: Sequence[str] | None, where: str, known: Sequence[str] = ()
) -> list[str]:
    """The columns of a file that are the features, in their order; the others may be ``keys``.

    They go by their names. Those of an array have none: they are x0, x1 and so on, or all that are not keys. A file
    with columns that are ``known`` as features of an earlier one has to have them all: it goes by their names.
    """
    expected = list(schema.names)
    if len(set(names)) < len(names):
        raise InputError(f"{where} has several columns of one name")
    if schema.container != "frame" and (shared := [name for name in known if name in names]):
        if missing := [name for name in known if name not in names]:
            raise InputError(
                f"{where} has the columns {shared} of the first file, and not {missing}: name the columns alike in "
                "all files, or call the features x0, x1 and so on"
            )
        return list(known)
    if schema.container != "frame" and not set(expected) <= set(names):
        others = [name for name in names if name not in (keys or ())]
        if others and all(map(_is_fraction, others)):
            raise InputError(f"{where} begins with {others[:3]}: its first line has to name the columns")
        if len(others) != len(expected):
            raise InputError(
                f"{where} has {len(others)} columns that are not keys, where {len(expected)} are expected: name "
                "the keys, or call the features x0, x1 and so on"
            )
        return others
    if missing := [name for name in expected if name not in names]:
        raise InputError(lacking(where, missing, [name for name in names if name not in expected]))
    return expected


def _is_fraction(name: str) -> bool:
    """Whether a name is a number, and no whole one, as which columns are counted."""
    try:
        return not float(name).is_integer() or "." in name
    except (ValueError, OverflowError):
        return False


def encode(
    schema: TableSchema, columns: Sequence[pa.Array | pa.ChunkedArray], where: str, unseen: set[str]
) -> Tensor:
    """Columns in the schema's order as a float64 tensor (rows, columns), as `Schema.encode` has a frame of them.

    Columns with categories that were not there at fit, which count as missing, are added to ``unseen``.
    """
    encoded = np.empty((len(columns[0]), len(columns)), dtype=np.float64)
    for j, (column, values) in enumerate(zip(schema.columns, columns, strict=True)):
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        encode_one = _numbers if column.categories is None else _codes
        encoded[:, j] = encode_one(column, values, where, unseen)
    check_numbers(schema.columns, encoded, where)
    return torch.from_numpy(encoded)


def _numbers(column: Column, values: Any, where: str, unseen: set[str]) -> NDArray[np.float64]:
    try:
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"{where} has values in column {column.name!r} that are not numbers; it held numbers at fit: {error}"
        ) from None


def _codes(column: Column, values: Any, where: str, unseen: set[str]) -> NDArray[np.float64]:
    kinds = {type(category) for category in column.categories or ()}
    plain = _PLAIN.get(kinds.pop()) if len(kinds) == 1 else None
    if plain is None or not _alike(values.type, plain):  # as pandas compares them, one by one
        codes, strange = column.codes(values.to_pandas())
        strangers = len(strange) > 0
    else:
        found = pc.index_in(values.cast(plain), value_set=pa.array(column.categories, plain), skip_nulls=True)
        strangers = found.null_count > values.null_count
        codes = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if strangers:
        unseen.add(column.name)
    return codes


def _alike(kind: pa.DataType, plain: pa.DataType) -> bool:
    """Whether values of a type are those of a plain one, held otherwise."""
    if plain == pa.string():
        return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.types.is_signed_integer(kind) or kind in (pa.uint8(), pa.uint16(), pa.uint32())


def key_type(key: str, files: Files, features: Sequence[Sequence[str]], schema: TableSchema) -> pa.DataType:
    """The type that holds what all files have in a column; text, if no other does.

    CSV has no types: what is copied from it is the text that stands there, or 007 would be 7, and another's.
    """
    kinds = set()
    for path, columns, names in zip(files.paths, files.schemas, features, strict=True):
        kind = columns.field(key).type
        if not is_parquet(path):
            kind = _csv_type(schema.columns[names.index(key)]) if key in names else pa.string()
        kinds.add(kind)
    try:
        alone = [pa.schema([(key, kind)]) for kind in sorted(kinds, key=str)]
        kind = pa.unify_schemas(alone, promote_options="permissive").field(key).type
    except pa.ArrowTypeError:
        return pa.string()
    return pa.string() if pa.types.is_null(kind) else kind


def csv_reading(schema: TableSchema, features: Sequence[str], keys: Sequence[tuple[str, pa.DataType]]) -> Text:
    """How a file is read if it is CSV: a category is no gap, whatever it says, and no text of a key is one."""
    types = dict(keys)
    gaps: dict[str, Sequence[str]] = {key: ("",) for key, _ in keys}
    for name, column in zip(features, schema.columns, strict=True):
        types[name] = _csv_type(column)
        gaps[name] = [word for word in GAPS if word not in (column.categories or ())]
    return Text(types, gaps)


def _csv_type(column: Column) -> pa.DataType:
    """What a feature is read as from CSV: never what the rows at hand happen to look like."""
    kinds = {type(category) for category in column.categories or ()}
    if column.dtype in ("bool", "boolean") or kinds == {bool}:
        return pa.bool_()
    if column.categories is None:
        return pa.float64()
    if kinds == {int} and max(map(abs, column.categories)) > _EXACT:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def value_names(players: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """The names of the columns with values, base values and predictions, of all players of all outputs.

    >>> value_names(["age", "job"], ["rich"])
    ['shap_age', 'shap_job', 'base_value', 'prediction']
    >>> value_names(["age"], ["no", "yes"])
    ['shap_age_no', 'shap_age_yes', 'base_value_no', 'base_value_yes', 'prediction_no', 'prediction_yes']
    """
    return attribution_names(players, outputs, ("base_value", "prediction"))


def value_columns(
    explain: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], x: Tensor, players: int, outputs: Sequence[int]
) -> list[pa.Array]:
    """The columns of `value_names` for encoded rows ``x``: float32, as networks have them.

    ``explain`` gives values (n, players, outputs), base values and predictions (n, outputs); ``outputs`` are the
    numbers of those that are wanted.
    """
    columns = np.empty(((players + 2) * len(outputs), len(x)), dtype=np.float32)
    for start in range(0, len(x), _CHUNK):
        values, base, predictions = explain(x[start : start + _CHUNK])
        together = torch.cat([values, base[:, None], predictions[:, None]], dim=1)[..., list(outputs)]
        columns[:, start : start + _CHUNK] = together.flatten(1).T.cpu().numpy()
    return [pa.array(column) for column in columns]
