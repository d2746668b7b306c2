"""The user's table as one tensor.

A `TableSchema` is read from the table that an explainer is fitted to. It encodes any later table of the same layout
as a float64 tensor without loss: numbers stay as they are, categories become codes, gaps become NaN. It decodes
such a tensor to rows of the user's own type, which is what the user's model is called with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastshapley.data import one_hot
from fastshapley.data.augmentation import mix_rows
from fastshapley.data.column import Column, survives
from fastshapley.data.display import display_data
from fastshapley.data.frame_type import PANDAS, FrameType
from fastshapley.data.players import Features, Groups, Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.errors import InputError
from fastshapley.explanation import Values, squeeze
from fastshapley.support.frames import as_pandas
from fastshapley.support.names import lacking
from fastshapley.support.shap_import import shap

logger = logging.getLogger(__name__)

Table = pd.DataFrame | np.ndarray | Tensor
_EXACT = 2.0**53  # float64 holds every integer below this number, and rounds some above it
_RANGE_LEVELS = (0.01, 0.5, 0.99)  # quantiles that describe where the numbers of a column lie


@dataclass(frozen=True)
class TableSchema(Schema):
    """The layout of a table; see the description of the module.

    Attributes
    ----------
    container : str
        ``"frame"``, ``"array"`` or ``"tensor"``.
    columns : tuple of Column
        The columns.
    dtype : str
        The type of an array or a tensor; empty for a frame.
    frame : FrameType
        The type of a frame.

    Examples
    --------
    >>> frame = pd.DataFrame({"age": [39, 50], "job": ["clerk", None]})
    >>> schema = TableSchema.of(frame)
    >>> schema.encode(frame)
    tensor([[39.,  0.],
            [50., nan]], dtype=torch.float64)
    >>> schema.decode(schema.encode(frame)).equals(frame)
    True
    """

    kind = "table"
    noun = "a table"
    suits_one_thread = True

    container: str
    columns: tuple[Column, ...]
    dtype: str = ""
    frame: FrameType = PANDAS

    @classmethod
    def of(cls, X: Any) -> Self:
        """Return the schema of a table of any library, a two-dimensional array or a tensor.

        Raises
        ------
        InputError
            If X is not a table of numbers, booleans, strings and categories.
        """
        frame = as_pandas(X)
        if isinstance(frame, pd.DataFrame):
            _check_frame(frame)
            own, columns = FrameType.of(X, [Column.of(key, frame[key]) for key in frame.columns])
            return cls("frame", columns, frame=own)
        if isinstance(X, Tensor):
            _check_matrix(X.shape)
            if X.is_complex():
                raise InputError("Complex data not supported: X is a complex tensor, pass real numbers")
            dtype = str(X.dtype).removeprefix("torch.")
            return cls("tensor", _plain_columns(X.shape[1], dtype), dtype)
        array = _as_array(X)
        if array.dtype.kind in "biuf":
            return cls("array", _plain_columns(array.shape[1], array.dtype.name), array.dtype.str)
        frame = pd.DataFrame(array.astype(object))
        columns = tuple(Column.of(f"x{key}", frame[key]) for key in frame.columns)
        return cls("array", columns, array.dtype.str)

    def agreed(self, everyone: Sequence[Self]) -> Self:
        """Return a schema with the categories and types of the columns of all processes."""
        if any((other.container, other.names) != (self.container, self.names) for other in everyone):
            raise InputError("X has other columns in other processes, or is of another type there")
        if len(everyone) == 1:
            return self
        merged = tuple(Column.merged(parts) for parts in zip(*(other.columns for other in everyone), strict=True))
        plain = self.container != "frame" and all(column.categories is None for column in merged)
        dtype = str(np.result_type(*(other.dtype for other in everyone))) if plain else self.dtype
        own = FrameType.merged([other.frame for other in everyone], self.names)
        return replace(self, columns=merged, dtype=dtype, frame=own)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def categorical(self) -> bool:
        """Whether any column holds categories."""
        return any(column.categories is not None for column in self.columns)

    @property
    def category_counts(self) -> tuple[int, ...]:
        """The number of categories of each column, 0 for a column of numbers."""
        return tuple(len(column.categories or ()) for column in self.columns)

    @property
    def discrete(self) -> tuple[bool, ...]:
        """Whether each column holds categories or booleans."""
        return tuple(column.discrete for column in self.columns)

    def encode(self, X: Any, argument: str = "X") -> Tensor:
        """Return the table as a float64 tensor (rows, columns); an error names ``argument``.

        The columns of a frame are found by their names, in any order, if the schema is that of a frame. It may be
        a frame of another library.
        """
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy() if X.is_complex() else X.detach().cpu().double().numpy()
        X = as_pandas(X, argument)
        if isinstance(X, pd.DataFrame) and self.container == "frame":
            X = self._in_order(X, argument)
        table = X if isinstance(X, pd.DataFrame) else _as_array(X, argument)
        if table.shape[1] != len(self.columns):
            raise InputError(
                f"{argument} has {table.shape[1]} features, but FastSHAP is expecting {len(self.columns)} features "
                "as input"
            )
        if isinstance(table, np.ndarray) and table.dtype.kind in "biuf" and not self.categorical:
            encoded = np.array(table, dtype=np.float64, order="C")
        else:
            frame = pd.DataFrame(table)
            encoded = np.empty(frame.shape, dtype=np.float64)
            for j, column in enumerate(self.columns):
                encoded[:, j] = column.encode(frame.iloc[:, j], argument)
        check_numbers(self.columns, encoded, argument)
        return torch.from_numpy(encoded)

    def encode_cell(self, column: int, value: Any) -> float:
        """Return one value of one column, as `encode` encodes it."""
        encoded = self.columns[column].encode(pd.Series([value], dtype=object), "values")
        check_numbers([self.columns[column]], encoded[:, None], "values")
        return float(encoded[0])

    def decode(self, x: Tensor) -> Any:
        """Return rows of the user's own type, which share no memory with the tensor ``x`` (rows, columns).

        A column becomes float if it cannot hold its new values, such as integers with a mean or a gap.
        """
        values = x.detach().cpu().numpy()
        if self.container == "tensor":
            own: torch.dtype = getattr(torch, self.dtype)
            fits = own.is_floating_point or survives(values, np.dtype(self.dtype))
            return x.detach().to(own if fits else x.dtype, copy=True)
        if self.container == "frame":
            return self.frame.build(self.columns, values)
        dtype = np.dtype(self.dtype)
        if dtype.kind in "biuf":
            return values.astype(dtype if survives(values, dtype) else values.dtype)
        array = PANDAS.build(self.columns, values).to_numpy(dtype=object)
        # An array of strings has no gaps: "nan" would be one more string there, or "n" where strings are cut short.
        return array if dtype.kind == "O" or np.isnan(values).any() else array.astype(dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as plain JSON values; the type of a frame only if it is not one of pandas."""
        for column in self.columns:
            values = (column.key, *(column.categories or ()))
            if not all(value is None or isinstance(value, str | int | float) for value in values):
                raise InputError(
                    f"column {column.name!r} has a name or categories that cannot be saved, such as "
                    f"{values[-1]!r}: turn them into strings before fitting"
                )
        state = asdict(self)
        if self.frame == PANDAS:
            del state["frame"]
        return state

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the schema that `to_dict` described."""
        columns = []
        for column in state["columns"]:
            categories = column["categories"]
            columns.append(Column(**{**column, "categories": None if categories is None else tuple(categories)}))
        return cls(state["container"], tuple(columns), state["dtype"], FrameType.from_dict(state.get("frame")))

    def _bind(self, players: Features | Groups | None) -> Partition:
        return (players or Features()).bind(self.names)

    def players_of(self, partition: Partition) -> Groups | None:
        """Return the players as `Groups`; None if each column is a player."""
        members = {name: [self.names[j] for j in partition.members(i)] for i, name in enumerate(partition.names)}
        groups = {name: columns for name, columns in members.items() if columns != [name]}
        return Groups(groups) if groups else None

    def augment(self, x: Tensor, count: int, generator: torch.Generator, owner: Sequence[int]) -> Tensor:
        """Return ``count`` new rows that are mixed from the rows ``x``; see `mix_rows`."""
        return mix_rows(x, count, self.discrete, generator, owner)

    def baseline_row(self, x: Rows, players: Partition, values: Mapping[str, Any] | None) -> Tensor:
        """Return a row (1, columns) of means, or of modes for categories and booleans, and of the given values."""
        rows = x[:]
        row = torch.stack([_centre(rows[:, j], column.discrete) for j, column in enumerate(self.columns)])
        for key, value in (values or {}).items():
            if str(key) not in self.names:
                raise InputError(f"values names {key!r}, which is not a column; there are {list(self.names)}")
            j = self.names.index(str(key))
            row[j] = self.encode_cell(j, value)
        return row[None]

    def missing_row(self, x: Rows) -> Tensor:
        """Return a row (1, columns) of NaN."""
        return torch.full_like(x[:1], torch.nan)

    def new_gaps(self, x: Rows, known: Collection[int]) -> list[str]:
        """Return the names of columns with gaps, apart from the columns with the numbers ``known``."""
        return [self.names[j] for j in x[:].isnan().any(0).nonzero()[:, 0].tolist() if j not in known]

    def missing_categories(self, x: Tensor) -> list[str]:
        """Return the names of columns of categories that have gaps in the encoded rows ``x``."""
        gaps = x.isnan().any(0).tolist()
        return [c.name for c, gap in zip(self.columns, gaps, strict=True) if gap and c.categories is not None]

    def one_hot_groups(self, x: Rows) -> dict[str, list[str]]:
        """Return the columns of each category that looks one-hot encoded in a frame."""
        if self.container != "frame":
            return {}
        numbers = [j for j, column in enumerate(self.columns) if column.categories is None]
        held = np.asfortranarray(x[:][:, numbers].cpu().numpy())  # it is read column by column
        return one_hot.recognised([self.names[j] for j in numbers], held, others=self.names)

    @property
    def summary_names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.names

    @property
    def summary_discrete(self) -> tuple[bool, ...]:
        """Whether each column holds categories or booleans."""
        return self.discrete

    def summarise(self, x: Tensor) -> Tensor:
        """Return the encoded rows as they are."""
        return x

    def examples(self, sample: Tensor, count: int) -> Tensor:
        """Return ``count`` rows of the sample, some of them repeatedly."""
        return sample.repeat(count, 1)[:count]

    def ranges(self, sample: Tensor) -> list[list[float] | None]:
        """Return the 1 %, 50 % and 99 % quantiles of each column; None for a column of gaps."""
        found = []
        for column in sample.T:
            present = column[~column.isnan()]
            levels = torch.tensor(_RANGE_LEVELS, dtype=present.dtype, device=present.device)
            found.append(present.quantile(levels).tolist() if len(present) else None)
        return found

    def explanation(
        self, x: Rows, values: Values, players: Partition, *, upsample: bool = False
    ) -> shap.Explanation:
        """Return the explanation of encoded rows, with numbers as ``data`` and text as ``display_data``.

        See `display_data`.
        """
        _refuse_upsampling(upsample)
        data, display = display_data(x[:].cpu().numpy(), self.columns, players)
        names = list(players.names)
        return values.explanation(lambda v: v.cpu().numpy(), data=data, display_data=display, feature_names=names)

    def shaped_values(self, values: Tensor, players: Partition, *, upsample: bool = False) -> NDArray[np.float64]:
        """Return values (n, players) for one output, (n, players, outputs) for several."""
        _refuse_upsampling(upsample)
        return squeeze(values.cpu().numpy())

    def _in_order(self, X: pd.DataFrame, argument: str) -> pd.DataFrame:
        """Return the table with its columns in the order of the schema; names are compared as text."""
        expected, got = list(self.names), list(map(str, X.columns))
        if got == expected:
            return X
        _check_unique(X, argument)
        unknown = [name for name in got if name not in expected]
        if missing := [name for name in expected if name not in got]:
            raise InputError(lacking(argument, missing, unknown))
        if unknown:
            raise InputError(
                f"{argument} has columns that the explainer was not fitted on: {unknown}; "
                "select list(explainer.feature_names_in_)"
            )
        return X.iloc[:, [got.index(name) for name in expected]]


def require_table(schema: Schema, what: str) -> TableSchema:
    """Return the schema of a table, and refuse any other.

    Parameters
    ----------
    schema : Schema
        The schema of an explainer's data.
    what : str
        What needs a table, as the subject and verb of a sentence, such as ``"background is"``.

    Raises
    ------
    InputError
        If the schema is not one of a table.
    """
    if not isinstance(schema, TableSchema):
        raise InputError(f"{what} for tables, and the explainer was fitted to {schema.noun}")
    return schema


def _plain_columns(width: int, dtype: str) -> tuple[Column, ...]:
    return tuple(Column(f"x{j}", dtype) for j in range(width))


def _as_array(X: Any, argument: str = "X") -> NDArray[Any]:
    if hasattr(X, "toarray") and hasattr(X, "tocsr"):
        raise InputError(_sparse(X, argument))
    if isinstance(X, pd.Series):
        raise InputError(f"{argument} is a Series: pass a table, such as frame.iloc[[0]] for one row")
    if np.ma.isMaskedArray(X):
        raise InputError(f"{argument} is a masked array: pass {argument}.filled(np.nan), where NaN is a gap")
    if hasattr(X, "column_names") or hasattr(X, "columns"):  # a frame of another package
        raise InputError(f"{argument} is a {type(X).__module__}.{type(X).__name__}: pass {argument}.to_pandas()")
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise InputError(f"{argument} is not a table: {error}") from None
    _check_matrix(array.shape, argument)
    if array.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {argument} has dtype {array.dtype}, pass real numbers")
    if array.dtype.kind not in "biufOUS":
        raise InputError(f"{argument} has dtype {array.dtype}: pass numbers, booleans or strings")
    return array


def _sparse(X: Any, argument: str) -> str:
    """Return the message that a sparse matrix is refused, with the memory that a dense one needs."""
    size = 8 * math.prod(X.shape)  # bytes, as float64
    return (
        f"{argument} is a sparse matrix of shape {tuple(X.shape)}. An explainer needs all entries: as float64 "
        f"they take {size / 1e9:.3g} GB. If that fits into memory, pass {argument}.toarray(); otherwise pass fewer "
        "rows or columns"
    )


def _check_matrix(shape: Sequence[int], argument: str = "X") -> None:
    if len(shape) == 4:
        raise InputError(f"{argument} has shape {tuple(shape)}: for images, pass players=Superpixels(grid=14)")
    if len(shape) != 2:
        raise InputError(
            f"{argument} has shape {tuple(shape)}. Reshape your data to a table of shape (rows, columns); "
            f"one row is {argument}.reshape(1, -1)"
        )
    if shape[1] == 0:
        raise InputError(
            f"{argument} has no columns: 0 feature(s) (shape={tuple(shape)}) while a minimum of 1 is required."
        )


def _check_frame(X: pd.DataFrame) -> None:
    _check_matrix(X.shape)
    if isinstance(X.columns, pd.MultiIndex):
        raise InputError("X has a MultiIndex as columns: flatten it first")
    _check_unique(X, "X")


def _check_unique(X: pd.DataFrame, argument: str) -> None:
    names = X.columns.map(str)
    if not names.is_unique:
        raise InputError(f"{argument} has duplicate columns: {names[names.duplicated()].unique().tolist()}")


def check_numbers(columns: Sequence[Column], encoded: NDArray[np.float64], argument: str) -> None:
    """Check that encoded rows are finite, and that float64 holds their integers exactly.

    Parameters
    ----------
    columns : sequence of Column
        The columns of the table.
    encoded : ndarray of shape (n, columns)
        Encoded rows.
    argument : str
        The name of the argument that an error message shows.

    Raises
    ------
    InputError
        If a value is infinite, or an integer is too large.
    """
    for j in np.flatnonzero((np.abs(encoded) >= _EXACT).any(axis=0)).tolist():
        where = f"in column {columns[j].name!r} of {argument}"
        if np.isinf(encoded[:, j]).any():
            raise InputError(f"infinite values {where}: replace them by NaN or a finite number")
        if columns[j].integral:
            raise InputError(f"integers from 2**53 {where}: if they are identifiers, drop the column")


def _centre(values: Tensor, discrete: bool) -> Tensor:
    """Return the mean of a column, or its mode if it is discrete; NaN for a column of gaps."""
    present = values[~values.isnan()]
    if len(present) == 0:
        return values.new_tensor(torch.nan)
    return present.mode().values if discrete else present.mean()


def _refuse_upsampling(upsample: bool) -> None:
    if upsample:
        raise InputError("upsample is for images, and the explainer was fitted to a table")
