"""The type of the user's table with named columns, which the user's model is called with again."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fastshapley.data.column import Column, survives
from fastshapley.errors import InputError
from fastshapley.support.frames import read_frame

_DICTIONARY = re.compile(r"dictionary<values=(?P<values>.+), indices=(?P<indices>\w+), ordered=(?P<ordered>[01])>")
_NULLS = ("Null", "null")  # the types of columns that hold only gaps


@dataclass(frozen=True)
class FrameType:
    """The library of a table, and the library's own types of the columns.

    Attributes
    ----------
    library : str
        ``"pandas"``, ``"polars"``, ``"pyarrow"``, or a library whose tables are like those of pandas.
    types : tuple of str
        The type of each column, as polars and pyarrow call it. Empty for the other libraries, for which `Column`
        says enough.
    """

    library: str = "pandas"
    types: tuple[str, ...] = ()

    @classmethod
    def of(cls, X: Any, columns: Sequence[Column]) -> tuple[Self, tuple[Column, ...]]:
        """Return the type of a table, and its columns with what stands for a gap in that table.

        Parameters
        ----------
        X : table
            The table of any library.
        columns : sequence of Column
            The columns, as they are read from the same table as a pandas DataFrame.
        """
        frame = read_frame(X)
        if frame is None:
            return cls(), tuple(columns)
        if frame.implementation.is_pandas_like():
            return cls(frame.implementation.value), tuple(columns)
        types, own = [], []
        for name, column in zip(frame.columns, columns, strict=True):
            values = frame[name]
            native = values.to_native()
            types.append(_type_name(str(getattr(native, "dtype", None) or native.type)))
            nan = values.dtype.is_float() and not values.null_count() and bool(values.is_nan().any())
            own.append(replace(column, gap="nan" if nan else "none"))
        return cls(frame.implementation.value, tuple(types)), tuple(own)

    @classmethod
    def merged(cls, parts: Sequence[FrameType], names: Sequence[str]) -> FrameType:
        """Return the type of a table that is split into these parts.

        Raises
        ------
        InputError
            If the parts have different types.
        """
        first = parts[0]
        if {part.library for part in parts} != {first.library}:
            raise InputError("X has other columns in other processes, or is of another type there")
        types = []
        for name, each in zip(names, zip(*(part.types for part in parts), strict=True), strict=False):
            found = sorted(set(each) - set(_NULLS)) or [each[0]]
            if len(found) > 1:
                raise InputError(f"column {name!r} of X has other types in other processes: {', '.join(found)}")
            types.append(found[0])
        return replace(first, types=tuple(types))

    def build(self, columns: Sequence[Column], values: NDArray[np.float64]) -> Any:
        """Return encoded rows (n, columns) as a table of this type.

        A column becomes a column of floats if it cannot hold its new values.
        """
        if self.library == "polars":
            polars = self._import()
            return polars.DataFrame(
                [_polars_column(polars, *each) for each in zip(columns, self.types, values.T, strict=True)]
            )
        if self.library == "pyarrow":
            arrow = self._import()
            arrays = [_arrow_column(arrow, *each) for each in zip(columns, self.types, values.T, strict=True)]
            return arrow.table(arrays, names=[column.name for column in columns])
        frame = _pandas_frame(columns, values)
        if self.library == "pandas":
            return frame
        return self._import(f"{self.library}.pandas" if self.library == "modin" else self.library).DataFrame(frame)

    @classmethod
    def from_dict(cls, state: dict[str, Any] | None) -> Self:
        """Return the type that ``asdict`` described. None means pandas."""
        return cls() if state is None else cls(str(state["library"]), tuple(map(str, state["types"])))

    def _import(self, module: str = "") -> ModuleType:
        try:
            return importlib.import_module(module or self.library)
        except ImportError as error:
            raise ImportError(
                f"the explainer was fitted to a {self.library} table, and the model takes such tables: "
                f"install it with pip install {self.library}"
            ) from error


PANDAS = FrameType()


def _type_name(name: str) -> str:
    """Return the type that a column is restored with: decimals become floats, as they do in pandas."""
    if name.startswith("Decimal"):
        return "Float64"
    if name.startswith("decimal"):
        return "double"
    return name if name.startswith("dictionary") else name.partition("(")[0]


def _codes(column: Column, values: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return the places of the categories; a gap has the place after the last category."""
    return np.where(np.isnan(values), len(column.categories or ()), values).astype(np.uint32)


def _fits(column: Column, values: NDArray[np.float64]) -> bool:
    """Return whether the user's type holds these numbers."""
    plain = "bool" if column.dtype == "boolean" else column.dtype.lower()
    return survives(values[~np.isnan(values)], np.dtype(plain))


def _polars_column(pl: Any, column: Column, name: str, values: NDArray[np.float64]) -> Any:
    if column.categories is not None:
        texts = [*column.categories, None]
        dtype = pl.Enum(list(column.categories)) if name == "Enum" else getattr(pl, name)
        return pl.Series(column.name, texts, dtype=dtype).gather(pl.Series(_codes(column, values)))
    numbers = pl.Series(column.name, values)
    numbers = numbers if column.gap == "nan" else numbers.fill_nan(None)
    return numbers.cast(getattr(pl, name)) if _fits(column, values) else numbers


def _arrow_column(pa: Any, column: Column, name: str, values: NDArray[np.float64]) -> Any:
    if column.categories is not None:
        codes = _codes(column, values)
        if not (dictionary := _DICTIONARY.fullmatch(name)):
            return pa.array([*column.categories, None]).take(pa.array(codes)).cast(pa.type_for_alias(name))
        indices = pa.array(codes, pa.type_for_alias(dictionary["indices"]), mask=np.isnan(values))
        categories = pa.array(column.categories, pa.type_for_alias(dictionary["values"]))
        return pa.DictionaryArray.from_arrays(indices, categories, ordered=dictionary["ordered"] == "1")
    numbers = pa.array(values, from_pandas=column.gap != "nan")
    return numbers.cast(pa.type_for_alias(name)) if _fits(column, values) else numbers


def _pandas_frame(columns: Sequence[Column], values: NDArray[np.float64]) -> pd.DataFrame:
    if all(column.dtype == "float64" for column in columns):
        return pd.DataFrame(values, columns=[column.key for column in columns], copy=True)
    return pd.DataFrame({column.key: column.decode(values[:, j]) for j, column in enumerate(columns)})
