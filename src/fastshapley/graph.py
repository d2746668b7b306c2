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
from fastshapley.optional import require

logger = logging.getLogger(__name__)

FORMAT = 1
KEY = "fastshapley"  # of what is known about a graph, in its metadata
Array = NDArray[np.floating[Any]]


class Graph:
    """What `FastSHAP.export_onnx` wrote.

    ``columns`` are the names of a table's columns, none of images; ``players`` and ``output_names`` are those of
    the values; ``report`` is the explainer's, as plain values, or None; ``about`` is all of the metadata.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        runtime = require("onnxruntime", "onnx")
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} does not exist, or is no file")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads  # of a network as small as ours, more only wait for each other
        try:
            self._session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
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
        self._places = {name: place for place, name in enumerate(self.columns)}
        self.players: list[str] = list(self.about["players"]["names"])
        self.output_names: list[str] = list(self.about["output_names"])
        self.report: dict[str, Any] | None = self.about["report"]
        self.needs_outputs = len(self._session.get_inputs()) > 1
        self._results = [output.name for output in self._session.get_outputs()]

    def encode(self, rows: Sequence[Any]) -> Array:
        """Rows as the graph takes them: float64 (n, columns), or images, float32 (n, channels, height, width)."""
        if self.image_shape is not None:
            try:
                images = np.asarray(rows, dtype=np.float32)
            except (TypeError, ValueError) as error:
                raise InputError(f"images are not numbers of one shape: {error}") from None
            if images.shape[1:] != self.image_shape or not np.isfinite(images).all():
                raise InputError(f"images must be finite and of shape (n, {', '.join(map(str, self.image_shape))})")
            return images
        encoded = np.empty((len(rows), len(self._columns)))
        for number, row in enumerate(rows):
            encoded[number] = self._encode_row(number, row)
        return encoded

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
        return dict(zip(self._results, self._session.run(None, given), strict=True))

    def _encode_row(self, number: int, row: Any) -> list[float]:
        columns = self._columns
        if isinstance(row, Mapping):
            if unknown := row.keys() - self._places.keys():
                raise InputError(f"row {number} has columns that are not known: {sorted(map(str, unknown))}")
            if missing := [column.name for column in columns if column.name not in row]:
                raise InputError(f"row {number} lacks the column{'s' * (len(missing) > 1)} {missing}")
            row = [row[column.name] for column in columns]
        elif isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise InputError(f"row {number} is a {type(row).__name__}: pass a mapping, or a list of values")
        if len(row) != len(columns):
            raise InputError(f"row {number} has {len(row)} values where {len(columns)} are expected")
        return [column.encode(value, number) for column, value in zip(columns, row, strict=True)]


class _Column:
    """One column of a table, as the schema describes it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.name = str(about["key"])
        categories = about["categories"]
        self.codes = None if categories is None else {value: float(code) for code, value in enumerate(categories)}

    def encode(self, value: Any, row: int) -> float:
        """A number as it is, a category as its code, a gap as NaN."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return math.nan
        if self.codes is not None:
            try:
                found = self.codes.get(value)
            except TypeError:
                raise self._refusal(value, row, "a category") from None
            if found is None:
                logger.warning("column %r has values not seen at fit: they are treated as missing", self.name)
                return math.nan
            return found
        if not isinstance(value, Real | np.bool_):
            raise self._refusal(value, row, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise self._refusal(value, row, "a finite number")
        return number

    def _refusal(self, value: Any, row: int, expected: str) -> InputError:
        shown = repr(value) if len(repr(value)) < 40 else type(value).__name__
        return InputError(f"row {row} has {shown} in column {self.name!r}, where {expected} is expected")
