"""Files of any size explained part by part: memory stays flat, and a run that was interrupted goes on.

The work is a `Job`, which can be sent to another process, and its `Part`s. A part's values are written to a file of
their own, whole or not at all, so that what is there is done, whoever did it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.arrow import encode, feature_columns, value_columns, value_names
from fastshapley.checkpoints import fingerprint
from fastshapley.errors import InputError, ModelError, PartError
from fastshapley.lessons import available_threads
from fastshapley.parts import Files, Part, Text, find_files, find_parts, locate, read_part
from fastshapley.schema import Schema
from fastshapley.training import one_thread

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

logger = logging.getLogger(__name__)

PART_ROWS = 1 << 18
_ENTRIES, _MOST = 1 << 21, 1 << 15  # inputs or values of a batch, and rows
_MANIFEST = "_fastshapley.json"  # readers of Parquet leave out what begins with an underscore
_DONE = "_SUCCESS"


@dataclass(frozen=True)
class Explained:
    """What a run did: ``str(explained)`` says it in words.

    rows, parts: that were explained now; ``kept`` are the parts that an earlier run had done.
    """

    output: str
    rows: int
    parts: int
    kept: int
    seconds: float

    def __str__(self) -> str:
        pace = f"{self.rows / self.seconds:,.0f} rows a second" if self.rows else "nothing left to do"
        kept = f", {self.kept} parts were there" if self.kept else ""
        return f"{self.rows:,} rows explained in {self.parts} parts, {pace}{kept}: {self.output}"


@dataclass(frozen=True)
class Job:
    """What to do with a part. ``features`` and ``keys`` are columns, ``outputs`` numbers of the explainer's."""

    explainer: FastSHAP
    system: fs.FileSystem
    target: fs.FileSystem
    folder: str
    features: tuple[tuple[str, ...], ...]  # of each file
    text: Text
    schema: pa.Schema  # of what is written
    keys: tuple[str, ...]
    outputs: tuple[int, ...]

    def file_of(self, part: Part) -> str:
        return f"{self.folder}/part-{part.name}.parquet"

    def explain(self, part: Part, unseen: set[str], stop: threading.Event | None = None) -> int:
        """Explain a part and write its file; how many rows it has, or -1 if it was stopped."""
        temporary = f"{self.folder}/_{part.name}.{secrets.token_hex(4)}"
        try:
            rows = self._write(part, temporary, unseen, stop)
            if rows >= 0:
                self.target.move(temporary, self.file_of(part))
                return rows
        except (pa.ArrowException, OSError, InputError, ModelError) as error:
            self._drop(temporary)
            raise PartError(f"{part}: {error}") from error
        except BaseException:
            self._drop(temporary)
            raise
        self._drop(temporary)
        return -1

    def _drop(self, path: str) -> None:
        with suppress(OSError):
            self.target.delete_file(path)

    def _write(self, part: Part, path: str, unseen: set[str], stop: threading.Event | None) -> int:
        rows = 0
        features, keys = self.features[part.file], list(self.keys)
        columns = list(dict.fromkeys([*features, *keys]))
        with (
            self.target.open_output_stream(path) as sink,
            pq.ParquetWriter(sink, self.schema, use_dictionary=keys, write_statistics=keys) as writer,
        ):
            for batch in read_part(self.system, part, columns, self.text, batch_rows(self.explainer)):
                if stop is not None and stop.is_set():
                    return -1
                found = values_of(self.explainer, [batch[name] for name in features], self.outputs, "it", unseen)
                copied = [batch[name].cast(self.schema.field(name).type) for name in keys]
                writer.write_batch(pa.RecordBatch.from_arrays([*copied, *found], schema=self.schema))
                rows += len(batch)
        return rows


@dataclass
class Run:
    """A job, the parts that are left of it, and how many there were."""

    job: Job
    parts: list[Part]
    total: int
    progress: bool
    unseen: set[str] = field(default_factory=set)

    def finish(self, done: Iterator[tuple[Part, int, Collection[str]]]) -> Explained:
        """Follow what is ``done``, a part with its rows and the columns of unseen categories, to the end."""
        start, rows, parts = time.monotonic(), 0, 0
        size = None if any(part.rows == 0 for part in self.parts) else sum(part.rows for part in self.parts)
        with tqdm(total=size, desc="explaining", unit="row", unit_scale=True, disable=not self.progress) as bar:
            for _, count, unseen in done:
                rows, parts = rows + count, parts + 1
                bar.update(count)
                self._warn(unseen)
        with self.job.target.open_output_stream(f"{self.job.folder}/{_DONE}"):
            pass
        _sweep(self.job.target, self.job.folder)
        return Explained(self.job.folder, rows, parts, self.total - len(self.parts), time.monotonic() - start)

    def _warn(self, unseen: Collection[str]) -> None:
        for name in sorted(set(unseen) - self.unseen):
            logger.warning("column %r has values not seen at fit: they are treated as missing", name)
        self.unseen.update(unseen)


def explain_to(
    explainer: FastSHAP,
    source: Any,
    output: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    part_rows: int = PART_ROWS,
    workers: int | None = None,
    progress: bool = True,
) -> Explained:
    """Explain files on this machine; see `FastSHAP.explain_to`."""
    run = prepare(explainer, source, output, keys=keys, outputs=outputs, part_rows=part_rows, progress=progress)
    threads = available_threads(explainer.value_function_, explainer.network_.scale.device, most=1 << 10)
    with one_thread():
        return run.finish(_on_threads(run.job, run.parts, workers or threads))


def prepare(
    explainer: FastSHAP,
    source: Any,
    output: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None,
    outputs: Sequence[str] | None,
    part_rows: int,
    progress: bool,
) -> Run:
    """Look at the files, and claim the folder for what is to be made of them: nothing is explained yet."""
    schema = explainer.schema_
    if not isinstance(schema, Schema):
        raise InputError("the explainer was fitted to images: files of rows are for tables")
    if part_rows < 1:
        raise InputError(f"part_rows is {part_rows}: use 1 or more")
    target, folder = locate(output)
    if isinstance(source, str | os.PathLike) and locate(source)[1].rstrip("/") == folder.rstrip("/"):
        raise InputError(f"output is {output}, where the files are that are to be explained: choose another folder")
    if target.get_file_info(folder).type == fs.FileType.File:
        raise InputError(f"output is {output}, which is a file: choose a folder")
    files = find_files(source, besides=folder)
    features = tuple(
        tuple(feature_columns(schema, columns.names, keys, path))
        for path, columns in zip(files.paths, files.schemas, strict=True)
    )
    kept = _keys(files, features, keys)
    chosen = chosen_outputs(explainer, outputs)
    names = value_names(explainer.player_names_, [explainer.output_names_[k] for k in chosen])
    taken = [*(name for name, _ in kept), *names]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise InputError(f"columns {twice} would be there twice: leave them out of keys, or rename them")
    layout = pa.schema([*kept, *((name, pa.float32()) for name in names)])
    words = frozenset(c for column in schema.columns for c in column.categories or () if isinstance(c, str))
    text = Text(dict(kept) | _text_types(schema, features[0]), words)
    job = Job(
        explainer, files.system, target, folder, features, text, layout, tuple(name for name, _ in kept), chosen
    )
    parts = find_parts(files, part_rows)
    _claim(job, files, part_rows)
    there = {info.base_name for info in target.get_file_info(fs.FileSelector(folder))}
    left = [part for part in parts if os.path.basename(job.file_of(part)) not in there]
    return Run(job, left, len(parts), progress)


def values_of(
    explainer: FastSHAP, features: Sequence[pa.Array], outputs: Sequence[int], where: str, unseen: set[str]
) -> list[pa.Array]:
    """The columns of `value_names` for the features' columns."""
    assert isinstance(explainer.schema_, Schema)
    x = encode(explainer.schema_, features, where, unseen).to(explainer.network_.scale.device)
    return value_columns(explainer.explain_encoded, x, explainer.value_function_.players, outputs)


def batch_rows(explainer: FastSHAP) -> int:
    """How many rows are held at once."""
    game = explainer.value_function_
    each = max(game.players * game.outputs, len(explainer.schema_.columns))  # type: ignore[union-attr]
    return max(1, min(_MOST, _ENTRIES // each))


def _on_threads(job: Job, parts: Sequence[Part], threads: int) -> Iterator[tuple[Part, int, Collection[str]]]:
    """Parts as they are done; at an error, or an interruption, those at work are given up."""
    stop, waiting = threading.Event(), iter(parts)

    def one(part: Part) -> tuple[Part, int, Collection[str]]:
        unseen: set[str] = set()
        return part, job.explain(part, unseen, stop), unseen

    with ThreadPoolExecutor(max(1, threads)) as pool:
        working: set[Future[tuple[Part, int, Collection[str]]]] = set()
        try:
            while True:
                for part in waiting:
                    working.add(pool.submit(one, part))
                    if len(working) >= threads:
                        break
                if not working:
                    return
                done, working = wait(working, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            stop.set()


def _keys(
    files: Files, features: Sequence[Sequence[str]], keys: Sequence[str] | None
) -> list[tuple[str, pa.DataType]]:
    """The columns that are copied, with the types that the first file has for them."""
    first = files.schemas[0]
    if keys is None:
        shared = set.intersection(*(set(columns.names) for columns in files.schemas))
        keys = [name for name in first.names if name in shared and name not in features[0]]
    for path, columns in zip(files.paths, files.schemas, strict=True):
        if missing := [key for key in keys if key not in columns.names]:
            raise InputError(f"keys {missing} are no columns of {path}")
    return [(key, _filled(first.field(key).type)) for key in keys]


def _filled(kind: pa.DataType) -> pa.DataType:
    """Text for a column of nothing but gaps, so far."""
    return pa.string() if pa.types.is_null(kind) else kind


def chosen_outputs(explainer: FastSHAP, outputs: Sequence[str] | None) -> tuple[int, ...]:
    names = list(explainer.output_names_)
    if outputs is None:
        return tuple(range(len(names)))
    if unknown := [name for name in outputs if name not in names]:
        raise InputError(f"outputs {unknown} are none of {names}")
    if not outputs or len(set(outputs)) < len(outputs):
        raise InputError(f"outputs is {list(outputs)}: name one or more of {names}, each once")
    return tuple(names.index(name) for name in outputs)


def _text_types(schema: Schema, features: Sequence[str]) -> dict[str, pa.DataType]:
    """How features are read from CSV; what is not known here is left to pyarrow."""
    types = {}
    for name, column in zip(features, schema.columns, strict=True):
        if column.categories is None:
            types[name] = pa.bool_() if column.dtype in ("bool", "boolean") else pa.float64()
        elif all(isinstance(category, str) for category in column.categories):
            types[name] = pa.string()
    return types


def _claim(job: Job, files: Files, part_rows: int) -> None:
    """Tie the folder to this job: one that belongs to another, or holds other files, is refused."""
    weights: list[Tensor] = list(job.explainer.network_.state_dict().values())
    if (surrogate := getattr(job.explainer.value_function_, "network_", None)) is not None:
        weights += surrogate.state_dict().values()
    settings = (files.paths, files.stamps, part_rows, job.features, job.schema.names, job.outputs)
    key = fingerprint(*weights, settings)
    path = f"{job.folder}/{_MANIFEST}"
    job.target.create_dir(job.folder, recursive=True)
    if job.target.get_file_info(path).type == fs.FileType.File:
        with job.target.open_input_stream(path) as file:
            try:
                known = json.loads(file.read())["key"]
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path} cannot be read: choose another folder, or delete this one") from None
        if known != key:
            raise InputError(
                f"output {job.folder} belongs to a run with other files, another explainer or other settings: "
                "choose another folder, or delete this one"
            )
        return
    strange = [info.base_name for info in job.target.get_file_info(fs.FileSelector(job.folder))]
    if strange:
        raise InputError(f"output {job.folder} is not empty ({sorted(strange)[:3]}): choose another folder")
    temporary = f"{path}.{secrets.token_hex(4)}"
    with job.target.open_output_stream(temporary) as file:
        file.write(json.dumps({"key": key, "files": files.paths, "part_rows": part_rows}).encode())
    job.target.move(temporary, path)


def _sweep(target: fs.FileSystem, folder: str) -> None:
    """Without what workers that were killed have left."""
    for info in target.get_file_info(fs.FileSelector(folder)):
        if info.base_name.startswith("_") and info.base_name not in (_MANIFEST, _DONE):
            with suppress(OSError):
                target.delete_file(info.path)
