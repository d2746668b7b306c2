"""An exported explainer, run by onnxruntime: this module needs no torch, and no pandas.

A row is what JSON has for it: a mapping from columns to values, or the values in the order of the columns.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.errors import FileFormatError, InputError
from fastshapley.support.optional import require

logger = logging.getLogger(__name__)

FORMAT = 1
KEY = "fastshapley"  # of what is known about a graph, in its metadata
Array = NDArray[np.floating[Any]]


class Graph:
    """What `FastSHAP.export_onnx` wrote, from its file or as bytes.

    ``columns`` are the names of a table's columns, none of images; ``players`` and ``output_names`` are those of
    the values; ``report`` is the explainer's, as plain values, or None; ``about`` is all of the metadata.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, threads: int = 1) -> None:
        runtime = require("onnxruntime", "onnx")
        path = "the graph" if isinstance(source, bytes) else os.fspath(source)
        if not isinstance(source, bytes) and not Path(source).is_file():
            raise FileNotFoundError(f"{path} does not exist, or is no file")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads  # of a network as small as ours, more only wait for each other
        try:
            self._session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            known = self._session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime's own, which are of no common kind
            raise FileFormatError(f"{path} is cut short, damaged or no ONNX graph ({error})") from error
        if KEY not in known:
            raise FileFormatError(f"{path} is an ONNX graph, but not one that FastSHAP.export_onnx wrote")
        self.about: dict[str, Any] = json.loads(known[KEY])
        if self.about["format"] > FORMAT:
            raise FileFormatError(
                f"{path} was written by fastshapley {self.about['version']} in format {self.about['format']}; this "
                f"reads formats up to {FORMAT}: upgrade fastshapley"
            )
        schema = self.about["schema"]
        self.image_shape: tuple[int, ...] | None = None
        self._columns: list[_Column] = []
        if "columns" in schema:
            self._columns = [_Column(column) for column in schema["columns"]]
        else:
            self.image_shape = tuple(schema["shape"])
        self.columns = [column.name for column in self._columns]
        self._coded = [place for place, column in enumerate(self._columns) if column.codes is not None]
        self.players: list[str] = list(self.about["players"]["names"])
        self.output_names: list[str] = list(self.about["output_names"])
        self.report: dict[str, Any] | None = self.about["report"]
        self.needs_outputs = len(self._session.get_inputs()) > 1
        self.results: list[str] = [output.name for output in self._session.get_outputs()]

    def categories(self, column: str) -> list[Any] | None:
        """What a column's values may be, or None for numbers."""
        codes = self._columns[self.columns.index(column)].codes
        return None if codes is None else list(codes)

    def encode(self, rows: Sequence[Any]) -> Array:
        """Rows as the graph takes them: float64 (n, columns), or images, float32 (n, channels, height, width)."""
        if self.image_shape is not None:
            try:
                images = np.asarray(rows, dtype=np.float32)
            except (TypeError, ValueError, OverflowError) as error:
                raise InputError(f"images are not numbers of one shape: {error}") from None
            return self.check(images)
        encoded = np.empty((len(rows), len(self._columns)))
        unseen: set[str] = set()
        for number, row in enumerate(rows):
            try:
                encoded[number] = values = self._encode_row(number, row, unseen)
            except OverflowError:
                raise InputError(f"row {number} has a number beyond what a float can hold") from None
            if not _INFINITE.isdisjoint(values):
                place = next(place for place, value in enumerate(values) if value in _INFINITE)
                raise _refusal(values[place], self.columns[place], number, "a finite number")
        if unseen:
            logger.warning("columns %s have values not seen at fit: they are treated as missing", sorted(unseen))
        return encoded

    def check(self, rows: Array) -> Array:
        """Rows that are said to be encoded, if they are: categories as codes, gaps as NaN."""
        shape = self.image_shape or (len(self._columns),)
        if rows.shape[1:] != shape:
            kind = "rows" if self.image_shape is None else "images"
            raise InputError(f"{kind} must be of shape (n, {', '.join(map(str, shape))}), and are {rows.shape}")
        if self.image_shape is not None and not np.isfinite(rows).all():
            raise InputError("images must be finite")
        if np.isinf(rows).any():
            raise InputError("rows must be finite; a gap is NaN, or null")
        for place, column in enumerate(self._columns):
            if column.codes is not None:
                given = rows[:, place][~np.isnan(rows[:, place])]
                if not np.isin(given, np.arange(len(column.codes))).all():
                    raise InputError(
                        f"column {column.name!r} has categories: pass their codes, 0 to {len(column.codes) - 1}"
                    )
        return rows

    def example(self) -> tuple[Array, Array | None]:
        """A row in the middle of what the explainer was trained on, encoded, and outputs if they are needed."""
        if self.image_shape is not None:
            row: Array = np.zeros((1, *self.image_shape), dtype=np.float32)
        else:
            middles = [math.nan if found is None else found[1] for found in self.about["ranges"]]
            coded = [column.codes is not None for column in self._columns]
            row = np.where(coded, np.floor(middles), middles)[None]
        return row, np.full((1, len(self.output_names)), 0.5) if self.needs_outputs else None

    def __call__(self, rows: Array, outputs: Array | None = None) -> dict[str, Array]:
        """``shap_values`` (n, players, outputs), ``base_values`` and ``predictions`` (n, outputs) of encoded rows.

        Where errors were learnt there is ``error_std``, of the shape of the values. The graph of a game of the
        model's own needs the model's ``outputs`` (n, outputs), behind the link.
        """
        given: dict[str, Array] = {"rows": rows}
        if self.needs_outputs:
            shape = (len(rows), len(self.output_names))
            if outputs is None or np.shape(outputs) != shape:
                raise InputError(f"this graph needs the model's outputs too, of shape {shape}")
            given["outputs"] = np.asarray(outputs, dtype=np.float64)
        try:
            return dict(zip(self.results, self._session.run(self.results, given), strict=True))
        except Exception:  # onnxruntime's own, which are of no common kind
            kind = "float64" if self.image_shape is None else "float32"
            each = self.image_shape or (len(self._columns),)
            if str(rows.dtype) != kind or rows.shape[1:] != each:
                wanted, came = f"{kind} {(len(rows), *each)}", f"{rows.dtype} {rows.shape}"
                raise InputError(f"rows must be {wanted}, and are {came}: encode makes them so") from None
            raise

    def _encode_row(self, number: int, row: Any, unseen: set[str]) -> list[float]:
        if isinstance(row, dict | Mapping):  # a dict is told at once
            try:
                values = [row[name] for name in self.columns]
            except KeyError:
                missing = [name for name in self.columns if name not in row]
                raise InputError(f"row {number} lacks the column{'s' * (len(missing) > 1)} {missing}") from None
            if len(row) > len(values):
                unknown = sorted(map(str, row.keys() - set(self.columns)))
                raise InputError(f"row {number} has columns that are not known: {unknown}")
        elif isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise InputError(f"row {number} is a {type(row).__name__}: pass a mapping, or a list of values")
        elif len(row) != len(self._columns):
            raise InputError(f"row {number} has {len(row)} values where {len(self._columns)} are expected")
        else:
            values = list(row)
        for place in self._coded:
            values[place] = self._columns[place].encode(values[place], number, unseen)
        if not _NUMBERS.issuperset(map(type, values)):  # what is left are numbers of other kinds, or none
            values = [column.number(value, number) for column, value in zip(self._columns, values, strict=True)]
        return values


class _Column:
    """One column of a table, as the schema describes it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.name = str(about["key"])
        categories = about["categories"]
        self.codes = None if categories is None else {value: float(code) for code, value in enumerate(categories)}

    def encode(self, value: Any, row: int, unseen: set[str]) -> float:
        """The code of a category, NaN for a gap and for a value that was not there, whose column is then unseen."""
        assert self.codes is not None
        if value is None or (isinstance(value, float) and value != value):
            return math.nan
        try:
            found = self.codes.get(value)
        except TypeError:
            raise _refusal(value, self.name, row, "a category") from None
        if found is None:
            unseen.add(self.name)
            return math.nan
        return found

    def number(self, value: Any, row: int) -> float:
        """A number of whatever kind, NaN for a gap."""
        if value is None:
            return math.nan
        if not isinstance(value, Real | np.bool_):
            raise _refusal(value, self.name, row, "a number")
        return float(value)


_INFINITE = frozenset((math.inf, -math.inf))
_NUMBERS = frozenset((float, int, bool, type(None)))  # which an array of floats takes as they are


def _refusal(value: Any, column: str, row: int, expected: str) -> InputError:
    shown = repr(value) if len(repr(value)) < 40 else type(value).__name__
    return InputError(f"row {row} has {shown} in column {column!r}, where {expected} is expected")
