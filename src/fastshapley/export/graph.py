"""Run an exported explainer with onnxruntime. This module imports neither torch nor pandas.

A row is what JSON makes of it: a mapping from columns to values, or a list of values in the order of the columns.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.errors import FileFormatError, InputError
from fastshapley.support.optional import require

logger = logging.getLogger(__name__)

FORMAT = 2  # version of the metadata in exported graphs
_FIRST_WITH_DIGEST = 2  # format
KEY = "fastshapley"  # name of the metadata entry that describes an explainer
Array = NDArray[np.floating[Any]]

# Metadata that ends a file, as ONNX's protobuf encodes it: the key, then 64 digits.
_SEAL = b"\x72\x56\x0a\x12fastshapley.sha256\x12\x40"
_DIGEST_BYTES = 64
_LOOPS = frozenset(("Loop", "Scan", "SequenceMap"))  # ONNX operators
_INFINITE = frozenset((math.inf, -math.inf))
_PLAIN_TYPES = frozenset((float, int, bool, type(None)))  # types that a float array takes without conversion
_LONGEST_VALUE = 40  # characters of a bad value that an error message quotes


class Graph:
    """An explainer that `FastSHAP.export_onnx` exported.

    Parameters
    ----------
    source : path-like or bytes
        The ONNX file, or its content.
    threads : int, default=1
        Threads that onnxruntime may use for one run. One is best for networks as small as these.

    Attributes
    ----------
    columns : list of str
        Names of the table's columns. Empty for images.
    players : list of str
        Names of the players.
    output_names : list of str
        Names of the model's outputs.
    report : dict or None
        The explainer's error report as plain values.
    image_shape : tuple of int or None
        Shape of an image, (channels, height, width). None for tables.
    takes_outputs : bool
        Whether the graph accepts the model's outputs as a second input.
    needs_outputs : bool
        Whether the graph needs them. If not, it has a surrogate that estimates them.
    sums_to : {"model", "surrogate", "game"}
        Whose output the values sum to if optional outputs are left out.
    normalized : bool
        Whether values plus base values sum to the predictions for every row. Otherwise they do so about.
    link : {"identity", "logit", "log"}
        What is made of the model's outputs before they are explained.
    scale : {"probabilities", "probability", "real"}
        What the model's outputs are before the link.
    logits : bool
        Whether the model returns logits, of which the probabilities are explained.
    results : list of str
        Names of the arrays that a call returns.
    about : dict
        All metadata of the graph.

    Raises
    ------
    FileNotFoundError
        If ``source`` is a path without a file.
    FileFormatError
        If ``source`` is not an ONNX graph that `FastSHAP.export_onnx` wrote, a newer version wrote it, or it has
        tensors in other files.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, threads: int = 1) -> None:
        label = "the graph" if isinstance(source, bytes) else os.fspath(source)
        if not isinstance(source, bytes) and not Path(source).is_file():
            raise FileNotFoundError(f"{label} does not exist or is not a file")
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        has_digest = _check_seal(data, label)
        self._session = open_session(data, label, threads)
        self._runs = Runs(self._session)
        self.about: dict[str, Any] = _read_metadata(self._session, label, has_digest)
        self.image_shape: tuple[int, ...] | None = None
        self._columns: list[_Column] = []
        try:
            self._read_about()
        except (LookupError, TypeError, AttributeError) as error:
            raise FileFormatError(
                f"{label} is damaged: its metadata is not complete ({type(error).__name__}: {error})"
            ) from error

    def _read_about(self) -> None:
        """Set what the metadata says."""
        schema = self.about["schema"]
        if "columns" in schema:
            self._columns = [_Column(column) for column in schema["columns"]]
        else:
            self.image_shape = tuple(schema["shape"])
        self.columns = [column.name for column in self._columns]
        self._categorical = [place for place, column in enumerate(self._columns) if column.codes is not None]
        self.players: list[str] = list(self.about["players"]["names"])
        self.output_names: list[str] = list(self.about["output_names"])
        self.report: dict[str, Any] | None = self.about["report"]
        self.takes_outputs = len(self._session.get_inputs()) > 1
        # The first graphs do not say what their values sum to.
        self.sums_to: str = self.about.get("sums_to", "model" if self.takes_outputs else "surrogate")
        self.normalized: bool = self.about.get("normalized", False)  # The first graphs do not say that either.
        self.needs_outputs = self.takes_outputs and self.sums_to != "surrogate"
        self.link: str = self.about.get("link", "identity")
        self.scale: str = self.about.get("scale", "real")
        self.logits: bool = self.about.get("logits", False)
        self.results: list[str] = [output.name for output in self._session.get_outputs()]

    def categories(self, column: str) -> list[Any] | None:
        """Return the categories of a column.

        Parameters
        ----------
        column : str
            Name of the column.

        Returns
        -------
        categories : list or None
            The known categories, in the order of their codes. None for a numeric column.
        """
        codes = self._columns[self.columns.index(column)].codes
        return None if codes is None else list(codes)

    def encode(self, rows: Sequence[Any]) -> Array:
        """Encode rows of JSON values as the array that the graph takes.

        Categories that were not seen at fit are treated as missing, and a warning is logged.

        Parameters
        ----------
        rows : sequence
            Mappings from columns to values, lists of values in the order of the columns, or images as nested lists.

        Returns
        -------
        encoded : ndarray
            float64 of shape (n, columns), or float32 of shape (n, channels, height, width) for images.

        Raises
        ------
        InputError
            If a row does not have the columns of the fit, or a value is not a number or category.
        """
        if self.image_shape is not None:
            try:
                images = np.asarray(rows, dtype=np.float32)
            except (TypeError, ValueError, OverflowError) as error:
                raise InputError(f"images must be numbers, all of one shape: {error}") from None
            return self.check(images)
        encoded = np.empty((len(rows), len(self._columns)))
        unseen: set[str] = set()
        for number, row in enumerate(rows):
            try:
                encoded[number] = values = self._encode_row(number, row, unseen)
            except OverflowError:
                raise InputError(f"row {number} has a number that is too large for a float") from None
            if not _INFINITE.isdisjoint(values):
                place = next(place for place, value in enumerate(values) if value in _INFINITE)
                raise _bad_value(values[place], self.columns[place], number, "a finite number")
        if unseen:
            logger.warning("columns %s have values not seen at fit: they are treated as missing", sorted(unseen))
        return encoded

    def decode(self, rows: Array) -> list[Any]:
        """Return encoded rows as JSON values, which is the inverse of `encode`.

        Parameters
        ----------
        rows : ndarray
            What `encode` or `check` returned.

        Returns
        -------
        rows : list
            Lists of values in the order of the columns, with None for a missing value. Images as nested lists.
        """
        decoded: list[Any] = rows.tolist()
        if self.image_shape is not None:
            return decoded
        categories = [self.categories(column) for column in self.columns]
        return [[_decoded(value, known) for value, known in zip(row, categories, strict=True)] for row in decoded]

    def check(self, rows: Array) -> Array:
        """Check an array that the caller has encoded: categories as codes, missing values as NaN.

        Parameters
        ----------
        rows : ndarray
            Array of shape (n, columns), or (n, channels, height, width) for images.

        Returns
        -------
        rows : ndarray
            The same array.

        Raises
        ------
        InputError
            If the shape is wrong, a value is infinite, or a category's code is not known.
        """
        shape = self.image_shape or (len(self._columns),)
        if rows.shape[1:] != shape:
            kind = "rows" if self.image_shape is None else "images"
            raise InputError(f"{kind} must have shape (n, {', '.join(map(str, shape))}), but have {rows.shape}")
        if self.image_shape is not None and not np.isfinite(rows).all():
            raise InputError("images must be finite")
        if np.isinf(rows).any():
            raise InputError("rows must be finite: pass NaN or null for a missing value")
        for place, column in enumerate(self._columns):
            if column.codes is not None:
                given = rows[:, place][~np.isnan(rows[:, place])]
                if not np.isin(given, np.arange(len(column.codes))).all():
                    raise InputError(
                        f"column {column.name!r} is categorical: pass its codes, 0 to {len(column.codes) - 1}"
                    )
        return rows

    def example(self) -> tuple[Array, Array | None]:
        """Return an example of the graph's inputs.

        Returns
        -------
        row : ndarray
            One encoded row with the median of each column of the training data, or one image of zeros.
        outputs : ndarray or None
            Model outputs of shape (1, outputs) if the graph needs them.
        """
        if self.image_shape is not None:
            row: Array = np.zeros((1, *self.image_shape), dtype=np.float32)
        else:
            medians = [math.nan if known is None else known[1] for known in self.about["ranges"]]
            categorical = [column.codes is not None for column in self._columns]
            row = np.where(categorical, np.floor(medians), medians)[None]
        return row, np.full((1, len(self.output_names)), 0.5) if self.needs_outputs else None

    def __call__(self, rows: Array, outputs: Array | None = None) -> dict[str, Array]:
        """Explain encoded rows.

        Parameters
        ----------
        rows : ndarray
            What `encode` or `check` returned.
        outputs : ndarray of shape (n, outputs), optional
            The model's outputs on the scale of the values (after the link). Explainers of the model itself
            (marginal and baseline games) need them. For a conditional game they are optional: a row without them,
            or with NaN among them, uses the surrogate's output instead.

        Returns
        -------
        results : dict of str to ndarray
            ``shap_values`` of shape (n, players, outputs), ``base_values`` and ``predictions`` of shape
            (n, outputs), and, if the explainer has error bars, ``error_std`` with the shape of the values.

        Raises
        ------
        InputError
            If ``rows`` are not encoded, or ``outputs`` are needed and missing, or have the wrong shape.
        """
        inputs: dict[str, Array] = {"rows": rows}
        if self.takes_outputs:
            shape = (len(rows), len(self.output_names))
            if outputs is None and not self.needs_outputs:
                outputs = np.full(shape, math.nan)
            if outputs is None or np.shape(outputs) != shape:
                verb = "needs" if self.needs_outputs else "takes"
                raise InputError(f"this graph also {verb} the model's outputs: pass outputs of shape {shape}")
            inputs["outputs"] = np.asarray(outputs, dtype=np.float64)
        try:
            return dict(zip(self.results, self._runs(self.results, inputs), strict=True))
        except Exception:  # onnxruntime's errors have no common base class.
            kind = "float64" if self.image_shape is None else "float32"
            row_shape = self.image_shape or (len(self._columns),)
            if str(rows.dtype) != kind or rows.shape[1:] != row_shape:
                expected, given = f"{kind} {(len(rows), *row_shape)}", f"{rows.dtype} {rows.shape}"
                raise InputError(f"rows must be {expected}, but are {given}: call encode first") from None
            raise

    def stop_runs(self, seconds: float) -> None:
        """Stop runs in other threads that have taken longer than this. They raise an error.

        Parameters
        ----------
        seconds : float
            Longest time of a run, in seconds.
        """
        self._runs.stop(seconds)

    def sums_with(self, outputs: Array | None) -> str:
        """Return whose output the values sum to, given the outputs of a call.

        Parameters
        ----------
        outputs : ndarray of shape (n, outputs) or None
            What is passed as ``outputs``.

        Returns
        -------
        sums_to : {"model", "surrogate", "game", "mixed"}
            ``"mixed"`` if the outputs of some rows are known and those of others are not.
        """
        if outputs is None or self.needs_outputs or not self.takes_outputs:
            return self.sums_to
        unknown = np.isnan(outputs).any(1)
        return "surrogate" if unknown.all() else "mixed" if unknown.any() else "model"

    def _encode_row(self, number: int, row: Any, unseen: set[str]) -> list[float]:
        if isinstance(row, dict | Mapping):  # The test for dict comes first because it is fast.
            try:
                values = [row[name] for name in self.columns]
            except KeyError:
                missing = [name for name in self.columns if name not in row]
                raise InputError(f"row {number} lacks the column{'s' * (len(missing) > 1)} {missing}") from None
            if len(row) > len(values):
                unknown = sorted(map(str, row.keys() - set(self.columns)))
                raise InputError(f"row {number} has unknown columns: {unknown}")
        elif isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            raise InputError(f"row {number} is a {type(row).__name__}: pass a mapping or a list of values")
        elif len(row) != len(self._columns):
            raise InputError(f"row {number} has {len(row)} values, but the table has {len(self._columns)} columns")
        else:
            values = list(row)
        for place in self._categorical:
            values[place] = self._columns[place].encode_category(values[place], number, unseen)
        if not _PLAIN_TYPES.issuperset(map(type, values)):
            columns = zip(self._columns, values, strict=True)
            values = [column.encode_number(value, number) for column, value in columns]
        return values


class Runs:
    """The runs of one session, which another thread can stop.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        The session.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._options = require("onnxruntime", "onnx").RunOptions
        self._started: dict[Any, float] = {}  # when each run began that is under way

    def __call__(self, results: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        """Run the session.

        Parameters
        ----------
        results : sequence of str
            Names of the results.
        inputs : mapping of str to ndarray
            The inputs by name.

        Returns
        -------
        results : list
            The results in this order.
        """
        run = self._options()
        self._started[run] = time.monotonic()
        try:
            found: list[Any] = self._session.run(results, inputs, run)
            return found
        finally:
            del self._started[run]

    def stop(self, seconds: float) -> None:
        """Stop runs in other threads that have taken longer than this. They raise an error.

        Parameters
        ----------
        seconds : float
            Longest time of a run, in seconds.
        """
        latest_start = time.monotonic() - seconds
        for run, start in list(self._started.items()):
            if start <= latest_start:
                run.terminate = True


class _Column:
    """One column of a table, as the schema describes it."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.name = str(about["key"])
        categories = about["categories"]
        self.codes = None if categories is None else {value: float(code) for code, value in enumerate(categories)}

    def encode_category(self, value: Any, row: int, unseen: set[str]) -> float:
        """Return a category's code, or NaN if it is missing or not known; then add the column to ``unseen``."""
        assert self.codes is not None
        if value is None or (isinstance(value, float) and value != value):
            return math.nan
        try:
            code = self.codes.get(value)
        except TypeError:
            raise _bad_value(value, self.name, row, "a category") from None
        if code is None:
            unseen.add(self.name)
            return math.nan
        return code

    def encode_number(self, value: Any, row: int) -> float:
        """Return a number of any numeric type as a float, or NaN if it is missing."""
        if value is None:
            return math.nan
        if not isinstance(value, Real | np.bool_):
            raise _bad_value(value, self.name, row, "a number")
        return float(value)


def sealed(data: bytes) -> bytes:
    """Return an ONNX file that ends with the SHA-256 digest of what comes before, as one more entry of metadata.

    Parameters
    ----------
    data : bytes
        The ONNX file without a digest.
    """
    return data + _SEAL + hashlib.sha256(data).hexdigest().encode()


def _check_seal(data: bytes, label: str) -> bool:
    """Return whether a file ends with a digest; raise FileFormatError if it is that of another file."""
    content = data[: -len(_SEAL) - _DIGEST_BYTES]
    if not data[len(content) :].startswith(_SEAL):
        return False
    if data != sealed(content):
        raise FileFormatError(
            f"{label} is damaged: its content is not what FastSHAP.export_onnx wrote (the SHA-256 digest differs). "
            "Copy or export it again"
        )
    return True


def read_model(data: bytes, label: str) -> Any:
    """Read an ONNX file of any origin, and refuse it if its tensors are in other files.

    onnxruntime reads such files from the working directory, so their content could become part of an answer.

    Parameters
    ----------
    data : bytes
        Content of the file.
    label : str
        Name of the file in error messages.

    Returns
    -------
    model : onnx.ModelProto
        The model.

    Raises
    ------
    FileFormatError
        If the file is not an ONNX graph, or has tensors in other files.
    """
    onnx = require("onnx", "onnx")
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's errors are not public.
        raise FileFormatError(f"{label} is cut short, damaged or not an ONNX graph ({error})") from error
    for part in _messages(model):
        if isinstance(part, onnx.TensorProto) and (
            part.data_location == onnx.TensorProto.EXTERNAL or part.external_data
        ):
            raise FileFormatError(
                f"{label} has a tensor in another file (external data): save it with onnx.save as a single file"
            )
    return model


def open_session(data: bytes, label: str, threads: int = 0) -> Any:
    """Open an ONNX file of any origin with onnxruntime. See `read_model`.

    Parameters
    ----------
    data : bytes
        Content of the file.
    label : str
        Name of the file in error messages.
    threads : int, default=0
        Threads for one run. 0 lets onnxruntime choose.

    Returns
    -------
    session : onnxruntime.InferenceSession
        The session.

    Raises
    ------
    FileFormatError
        If the file is not an ONNX graph, or has tensors in other files.
    """
    read_model(data, label)
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    # onnxruntime must not take the file for one of its own format, which could hide tensors in other files.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base class.
        raise FileFormatError(f"{label} is cut short, damaged or not an ONNX graph ({error})") from error


def has_loops(data: bytes) -> bool:
    """Return whether an ONNX file has loops, so that its rows decide how long it runs.

    Parameters
    ----------
    data : bytes
        Content of the file.
    """
    return any(getattr(part, "op_type", "") in _LOOPS for part in _messages(read_model(data, "the graph")))


def _messages(message: Any) -> Iterator[Any]:
    """Yield a protobuf message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(part)


def _read_metadata(session: Any, label: str, has_digest: bool) -> dict[str, Any]:
    """Return what the exporter wrote about the explainer."""
    try:
        metadata = session.get_modelmeta().custom_metadata_map
        about: dict[str, Any] = json.loads(metadata.get(KEY, "null"))
        written, version = (None, None) if about is None else (int(about["format"]), about["version"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{label} is damaged: its metadata cannot be read ({error})") from error
    if written is None:
        raise FileFormatError(f"{label} is an ONNX graph, but FastSHAP.export_onnx did not write it")
    if written > FORMAT:
        raise FileFormatError(
            f"{label} was written by fastshapley {version} in format {written}, but this version reads formats "
            f"up to {FORMAT}: upgrade fastshapley"
        )
    if written >= _FIRST_WITH_DIGEST and not has_digest:
        raise FileFormatError(f"{label} is cut short or damaged: it does not end with its digest")
    return about


def _decoded(value: float, categories: list[Any] | None) -> Any:
    if value != value:  # NaN
        return None
    return value if categories is None else categories[int(value)]


def _bad_value(value: Any, column: str, row: int, expected: str) -> InputError:
    shown = repr(value) if len(repr(value)) < _LONGEST_VALUE else type(value).__name__
    return InputError(f"row {row} has {shown} in column {column!r}, but {expected} is expected")
