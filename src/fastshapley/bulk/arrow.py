"""Convert Arrow columns to encoded rows, and Shapley values to Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.bulk.csv_files import GAPS, CsvColumns
from fastshapley.bulk.file_search import Files, is_parquet
from fastshapley.data.column import Column
from fastshapley.data.table_schema import TableSchema, check_numbers
from fastshapley.errors import InputError
from fastshapley.explanation import attribution_names

_CHUNK_ROWS = 2048  # rows that are explained at a time: their tensors fit into the processor's cache
_ARROW_TYPES = {str: pa.string(), int: pa.int64()}  # types of categories that Arrow can look up itself
_LARGEST_EXACT_INTEGER = 1 << 53  # float64 represents every integer up to this one


def encode(
    schema: TableSchema, columns: Sequence[pa.Array | pa.ChunkedArray], where: str, unseen: set[str]
) -> Tensor:
    """Encode Arrow columns as `TableSchema.encode` encodes a DataFrame.

    Parameters
    ----------
    schema : Schema
        The table that the explainer was fitted to.
    columns : sequence of pyarrow.Array or pyarrow.ChunkedArray
        One column per column of the schema, in its order.
    where : str
        The name of the file, for error messages.
    unseen : set of str
        The function adds the names of columns with categories that were not seen at fit. These count as missing.

    Returns
    -------
    Tensor
        Encoded rows, (rows, columns), float64.

    Raises
    ------
    InputError
        If a column of numbers holds something else.
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
            f"{where} has values in column {column.name!r} that are not numbers, as they were at fit: {error}"
        ) from None


def _codes(column: Column, values: Any, where: str, unseen: set[str]) -> NDArray[np.float64]:
    kinds = {type(category) for category in column.categories or ()}
    plain = _ARROW_TYPES.get(kinds.pop()) if len(kinds) == 1 else None
    if plain is None or not _holds(values.type, plain):
        codes, unknown = column.codes(values.to_pandas())  # Compare the values as pandas does.
        has_unknown = len(unknown) > 0
    else:
        index = pc.index_in(values.cast(plain), value_set=pa.array(column.categories, plain), skip_nulls=True)
        has_unknown = index.null_count > values.null_count
        codes = index.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if has_unknown:
        unseen.add(column.name)
    return codes


def _holds(kind: pa.DataType, plain: pa.DataType) -> bool:
    """Return whether a type holds the same values as a plain one, in another layout."""
    if plain == pa.string():
        return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return pa.types.is_signed_integer(kind) or kind in (pa.uint8(), pa.uint16(), pa.uint32())


def key_type(key: str, files: Files, features: Sequence[Sequence[str]], schema: TableSchema) -> pa.DataType:
    """Return the type that a key column has in the output.

    Parameters
    ----------
    key : str
        The column.
    files : Files
        The files, which may have different types for the column.
    features : sequence of sequence of str
        The features of each file.
    schema : Schema
        The table that the explainer was fitted to.

    Returns
    -------
    pyarrow.DataType
        A type that holds the values of all files, or text if there is no other. Keys of CSV files are copied as
        text, so that a key such as 007 does not become 7.
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


def csv_reading(
    schema: TableSchema, features: Sequence[str], keys: Sequence[tuple[str, pa.DataType]]
) -> CsvColumns:
    """Return how to read a file if it is CSV.

    A word such as ``NA`` is not a gap where it is a category of its column, nor in a key.

    Parameters
    ----------
    schema : Schema
        The table that the explainer was fitted to.
    features : sequence of str
        The features of the file.
    keys : sequence of tuple
        The names and types of the key columns.

    Returns
    -------
    CsvColumns
        The types and gap words of all these columns.
    """
    types = dict(keys)
    gaps: dict[str, Sequence[str]] = {key: ("",) for key, _ in keys}
    for name, column in zip(features, schema.columns, strict=True):
        types[name] = _csv_type(column)
        gaps[name] = [word for word in GAPS if word not in (column.categories or ())]
    return CsvColumns(types, gaps)


def _csv_type(column: Column) -> pa.DataType:
    """Return the type of a feature in CSV. It depends on the fit, and not on the rows of the file."""
    kinds = {type(category) for category in column.categories or ()}
    if column.dtype in ("bool", "boolean") or kinds == {bool}:
        return pa.bool_()
    if column.categories is None:
        return pa.float64()
    if kinds == {int} and max(map(abs, column.categories)) > _LARGEST_EXACT_INTEGER:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def value_names(players: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Return the names of the columns with values, base values and predictions.

    Parameters
    ----------
    players : sequence of str
        The names of the players.
    outputs : sequence of str
        The names of the outputs.

    Returns
    -------
    list of str
        The names of the values of all players, then of base values and predictions, each for all outputs.

    Examples
    --------
    >>> value_names(["age", "job"], ["rich"])
    ['shap_age', 'shap_job', 'base_value', 'prediction']
    >>> value_names(["age"], ["no", "yes"])
    ['shap_age_no', 'shap_age_yes', 'base_value_no', 'base_value_yes', 'prediction_no', 'prediction_yes']
    """
    return attribution_names(players, outputs, ("base_value", "prediction"))


def error_names(players: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """Return the names of the columns with the standard errors of values.

    Parameters
    ----------
    players : sequence of str
        The names of the players.
    outputs : sequence of str
        The names of the outputs.

    Returns
    -------
    list of str
        The names, in the order of those of the values.

    Examples
    --------
    >>> error_names(["age"], ["no", "yes"])
    ['error_std_age_no', 'error_std_age_yes']
    """
    return [f"error_std{name.removeprefix('shap')}" for name in attribution_names(players, outputs)]


def value_columns(explain: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor, count: int) -> list[pa.Array]:
    """Return the columns of `value_names`, and then of `error_names` where there are errors, for encoded rows.

    Parameters
    ----------
    explain : callable
        Returns values (n, players, outputs), base values (n, outputs) and predictions (n, outputs) of encoded rows,
        and possibly standard errors like the values.
    x : Tensor
        Encoded rows, (n, columns).
    count : int
        The number of columns: (players + 2) * outputs, and players * outputs more with standard errors.

    Returns
    -------
    list of pyarrow.Array
        The columns of n values, float32.
    """
    columns = np.empty((count, len(x)), dtype=np.float32)
    for start in range(0, len(x), _CHUNK_ROWS):
        values, base, predictions, *errors = explain(x[start : start + _CHUNK_ROWS])
        together = torch.cat([values, base[:, None], predictions[:, None], *errors], dim=1)
        columns[:, start : start + _CHUNK_ROWS] = together.flatten(1).T.cpu().numpy()
    return [pa.array(column) for column in columns]
