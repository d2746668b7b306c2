"""One column of the user's table as float64 numbers, and back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fastshapley.errors import InputError

logger = logging.getLogger(__name__)

# The dtype of each kind of numbers that pandas infers in an object column.
_NUMBERS = {
    "integer": "int64",
    "floating": "float64",
    "mixed-integer-float": "float64",
    "decimal": "float64",
}
_GAPS: dict[str, Callable[[], Any]] = {"none": lambda: None, "nan": lambda: np.nan, "na": lambda: pd.NA}


@dataclass(frozen=True)
class Column:
    """The layout of one column.

    Attributes
    ----------
    key : object
        The name in the user's table.
    dtype : str
        The dtype of the user's column.
    categories : tuple or None
        The values that the codes stand for; None for a column of numbers.
    ordered : bool
        Whether the categories of a pandas categorical are ordered.
    gap : str
        What stands for a missing value in the user's table: ``"none"``, ``"nan"`` or ``"na"``.
    inner : str
        The dtype of the categories, or of the numbers in an object column.
    """

    key: Any
    dtype: str
    categories: tuple[Any, ...] | None = None
    ordered: bool = False
    gap: str = "nan"
    inner: str = ""

    @property
    def name(self) -> str:
        """The name as text."""
        return str(self.key)

    @property
    def discrete(self) -> bool:
        """Whether the column holds categories or booleans, whose mean is meaningless."""
        return self.categories is not None or self.dtype in ("bool", "boolean")

    @property
    def integral(self) -> bool:
        """Whether the column holds integers that are numbers, not categories."""
        return self.categories is None and (self.inner or self.dtype).lower().startswith(("int", "uint"))

    @classmethod
    def of(cls, key: Any, values: pd.Series[Any]) -> Column:
        """Return the layout of a column of the table that an explainer is fitted to.

        Raises
        ------
        InputError
            If the column holds neither numbers, booleans, strings nor categories.
        """
        dtype = values.dtype
        key = key.item() if isinstance(key, np.generic) else key
        if isinstance(dtype, pd.CategoricalDtype):
            categories = tuple(dtype.categories.tolist())
            return cls(key, "category", categories, bool(dtype.ordered), inner=str(dtype.categories.dtype))
        if (
            pd.api.types.is_numeric_dtype(dtype)
            and dtype.kind not in "cO"  # complex numbers and decimals
            and not isinstance(dtype, pd.SparseDtype)
        ):
            return cls(key, str(dtype))
        if pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype):
            missing = values.isna()
            gaps = values[missing].iloc[:1].tolist()
            gap = "nan" if not gaps else {type(None): "none", type(pd.NA): "na"}.get(type(gaps[0]), "nan")
            present = values[~missing]
            kind = pd.api.types.infer_dtype(present) if pd.api.types.is_object_dtype(dtype) else ""
            if kind in _NUMBERS:
                return cls(key, "object", gap=gap, inner=_NUMBERS[kind])
            try:
                unique = pd.unique(present).tolist()
            except TypeError:
                raise InputError(
                    f"column {key!r} holds objects such as {present.iloc[0]!r}: turn them into numbers or strings"
                ) from None
            unique = [value.item() if isinstance(value, np.generic) else value for value in unique]
            with contextlib.suppress(TypeError):  # Values of several types keep their order of appearance.
                unique = sorted(unique)
            return cls(key, str(dtype), tuple(unique), gap=gap)
        raise InputError(f"column {key!r} has dtype {dtype}: turn it into plain numbers, strings or categories")

    @classmethod
    def merged(cls, columns: Sequence[Column]) -> Column:
        """Return the layout of a column that is split into these parts.

        Raises
        ------
        InputError
            If one part holds numbers and another text.
        """
        seen = [c for c in columns if c.categories != ()] or list(columns)  # The others hold only gaps.
        if {type(category) for c in seen for category in c.categories or ()} == {bool}:
            held = next(c for c in seen if c.categories)  # Booleans are categories only where there are gaps.
            seen = [replace(held, categories=(False, True)) if c.dtype in ("bool", "boolean") else c for c in seen]
        first = seen[0]
        if len({c.categories is None for c in seen}) > 1:
            raise InputError(f"column {first.name!r} holds numbers in one part of the rows, and text in another")
        gap = next((c.gap for c in columns if c.gap != "nan"), "nan")
        if first.categories is None:
            dtype, inner = (_common([getattr(c, name) for c in seen]) for name in ("dtype", "inner"))
            return replace(first, dtype=dtype, inner=inner, gap=gap)
        union = list(dict.fromkeys(category for c in seen for category in c.categories or ()))
        if first.dtype != "category":
            with contextlib.suppress(TypeError):  # Values of several types keep their order of appearance.
                union = sorted(union)
        return replace(first, categories=tuple(union), gap=gap)

    def encode(self, values: pd.Series[Any], argument: str) -> NDArray[np.float64]:
        """Return numbers as they are, categories as codes, and gaps as NaN.

        Parameters
        ----------
        values : Series
            The user's column.
        argument : str
            The name of the argument that an error message shows.

        Raises
        ------
        InputError
            If a column of numbers holds something else.
        """
        if self.categories is None:
            try:
                if values.dtype.kind in "mMc":  # NumPy would turn times and complex numbers into floats.
                    raise TypeError
                return values.to_numpy(dtype=np.float64, na_value=np.nan)
            except (TypeError, ValueError, OverflowError):
                raise InputError(
                    f"{argument} has values in column {self.name!r} that are not numbers, "
                    f"such as {_first_text(values)!r}; it held numbers at fit"
                ) from None
        codes, unseen = self.codes(values)
        if len(unseen):
            logger.warning(
                "column %r has values not seen at fit, such as %r: they are treated as missing",
                self.name,
                unseen[0],
            )
        return codes

    def codes(self, values: pd.Series[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return the codes of categories, with NaN for gaps and unknown values, and the unknown values."""
        index = pd.Index(list(self.categories or ()), dtype=object)
        codes = index.get_indexer(pd.Index(values.astype(object))).astype(np.float64)
        unseen = (codes < 0) & values.notna().to_numpy()
        codes[codes < 0] = np.nan
        return codes, values.to_numpy(dtype=object)[unseen]

    def decode(self, values: NDArray[np.float64]) -> Any:
        """Return the column as the user has it."""
        gaps = np.isnan(values)
        if self.categories is not None:
            codes = np.where(gaps, -1, values).astype(np.int64)
            if self.dtype == "category":
                categories = pd.Index(list(self.categories), dtype=cast(Any, self.inner))
                return pd.Categorical.from_codes(cast("Sequence[int]", codes), categories, self.ordered)
            table = np.empty(len(self.categories) + 1, dtype=object)
            table[:-1] = self.categories
            table[-1] = _GAPS[self.gap]()
            if self.dtype == "object":
                return pd.Series(table[codes], dtype=object)
            return pd.Series(table, dtype=cast(Any, self.dtype)).array.take(codes)
        dtype = pd.api.types.pandas_dtype(self.dtype)
        if pd.api.types.is_object_dtype(dtype):
            boxed = values.astype(object)
            if self.integral:
                whole = values == np.floor(values)
                boxed[whole] = values[whole].astype(np.int64)
            boxed[gaps] = _GAPS[self.gap]()
            return boxed
        if isinstance(dtype, np.dtype):
            return values.astype(dtype if survives(values, dtype) else values.dtype)
        whole = survives(values[~gaps], cast(Any, dtype).numpy_dtype)
        return pd.Series(np.where(gaps, 0, values)).astype(cast(Any, dtype if whole else "Float64")).mask(gaps)


def _common(dtypes: Sequence[str]) -> str:
    """Return the dtype that holds the values of all these dtypes."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    if "object" in dtypes:
        return "object"
    series = [pd.Series([], dtype=cast(Any, dtype)) for dtype in dtypes if dtype]
    return str(pd.concat(series).dtype)


def _first_text(values: pd.Series[Any]) -> Any:
    for value in values[values.notna()]:
        try:
            float(value)
        except (TypeError, ValueError, OverflowError):
            return value
    return None


def survives(values: NDArray[np.float64], dtype: np.dtype[Any]) -> bool:
    """Return whether float64 values fit the user's dtype; a mean of integers does not fit an integer dtype."""
    if dtype.kind == "f":  # Floats are only rounded.
        return dtype.itemsize >= 8 or not bool((np.abs(values) > np.finfo(dtype).max).any())
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = values == np.floor(values)  # NaN gives False.
    return bool((whole & (values >= float(low)) & (values <= float(high))).all())
