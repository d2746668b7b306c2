"""Read rows of files as a table of the type that an explainer was fitted to, or a random sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from fastshapley.bulk.arrow import csv_reading, encode
from fastshapley.bulk.file_parts import Part, find_parts, read_part
from fastshapley.bulk.file_search import Files
from fastshapley.bulk.job import warn_of_unseen
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import PartError

_BATCH_ROWS = 1 << 14  # rows that are read at a time


def read_table(
    schema: TableSchema, files: Files, features: Sequence[Sequence[str]], most: int | None = None
) -> Any:
    """Read rows as a table of the type that an explainer was fitted to.

    Parameters
    ----------
    schema : TableSchema
        The table that the explainer was fitted to.
    files : Files
        The files.
    features : sequence of sequence of str
        The features of each file, in the order of the schema.
    most : int, optional
        The largest number of rows. If there are more, the result is a random sample, the same in each run, and
        memory holds only that sample. By default all rows are read.

    Returns
    -------
    DataFrame, ndarray or Tensor
        The rows, in the order of the files. Categories that were not seen at fit are missing values.

    Raises
    ------
    PartError
        If a file cannot be read.
    InputError
        If a column of numbers holds something else.
    """
    sample = _Sample(most)
    unseen: set[str] = set()
    for part in find_parts(files, _BATCH_ROWS):
        sample.add(_encoded(schema, files, part, list(features[part.file]), unseen))
    warn_of_unseen(unseen, set())
    return schema.decode(sample.rows(len(schema.columns)))


def _encoded(schema: TableSchema, files: Files, part: Part, names: list[str], unseen: set[str]) -> list[Tensor]:
    """Return the encoded rows of a part."""
    reading = csv_reading(schema, names, ())
    try:
        return [
            encode(schema, [batch[name] for name in names], part.path, unseen)
            for batch in read_part(files.system, part, names, reading, _BATCH_ROWS)
        ]
    except (pa.ArrowException, OSError) as error:
        raise PartError(f"{part}: {error}") from error


class _Sample:
    """Rows that are added batch by batch; at most ``most`` of them are kept, each with the same probability."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._generator = torch.Generator().manual_seed(0)
        self._rows: list[Tensor] = []
        self._keys: list[Tensor] = []  # a random number of each row; the rows with the smallest ones are kept

    def add(self, batches: Sequence[Tensor]) -> None:
        """Add batches of rows (n, columns)."""
        self._rows += batches
        if self._most is None:
            return
        self._keys += [torch.rand(len(rows), generator=self._generator) for rows in batches]
        if sum(map(len, self._keys)) > self._most:
            rows, keys = torch.cat(self._rows), torch.cat(self._keys)
            kept = keys.argsort(stable=True)[: self._most].sort().values
            self._rows, self._keys = [rows[kept]], [keys[kept]]

    def rows(self, columns: int) -> Tensor:
        """Return the rows that are kept, (n, columns)."""
        return torch.cat([torch.empty(0, columns, dtype=torch.float64), *self._rows])
