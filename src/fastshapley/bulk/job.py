"""Files of any size explained part by part: memory stays flat, and a run that was interrupted goes on.

The work is a `Job`, which can be sent to another process, and its `Part`s. A part's values are written to a file of
their own, whole or not at all, so that what is there is done, whoever did it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyarrow import fs
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.bulk.arrow import csv_reading, encode, feature_columns, key_type, value_columns, value_names
from fastshapley.bulk.file_parts import Files, Part, Text, find_files, find_parts, locate, read_part, stamp_of
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError, PartError
from fastshapley.explanation import chosen_outputs
from fastshapley.fit.targets import available_threads
from fastshapley.training.checkpoint import fingerprint
from fastshapley.training.run import one_thread
from fastshapley.value_functions.base_game import called_model

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

logger = logging.getLogger(__name__)

PART_ROWS = 1 << 18
_ENTRIES, _MOST = 1 << 21, 1 << 15  # inputs or values of a batch, and rows
_GROUP = 1 << 26  # bytes of a row group: what a file tells of each is held until all of it is written
_MANIFEST = "_fastshapley.json"  # readers of Parquet leave out what begins with an underscore
_DONE = "_SUCCESS"
_OLD = 3600 * 10**9  # nanoseconds, after which nobody is at work on a file
_ASKED = 32  # rows that a model is known by
_OURS = re.compile(r"part-\d+-\d+-[0-9a-f]{8}\.parquet")


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
        pace = f"{self.rows / max(self.seconds, 1e-9):,.0f} rows a second" if self.parts else "nothing left to do"
        kept = f", {self.kept} done before" if self.kept else ""
        parts = f"{self.parts} part{'s' * (self.parts != 1)}"
        return f"{self.rows:,} rows explained in {parts}, {pace}{kept}: {self.output}"


@dataclass(frozen=True)
class Job:
    """What to do with a part. ``features`` and ``keys`` are columns, ``outputs`` numbers of the explainer's."""

    explainer: FastSHAP
    system: fs.FileSystem
    target: fs.FileSystem
    folder: str
    features: tuple[tuple[str, ...], ...]  # of each file
    texts: tuple[Text, ...]
    schema: pa.Schema  # of what is written
    keys: tuple[str, ...]
    outputs: tuple[int, ...]
    token: str = field(default_factory=lambda: secrets.token_hex(4))  # in the names of what this run has begun

    def file_of(self, part: Part) -> str:
        return f"{self.folder}/part-{part.name}.parquet"

    def explain(self, part: Part, unseen: set[str], stop: threading.Event | None = None) -> int:
        """Explain a part and write its file; how many rows it has, or -1 if it was stopped."""
        temporary = f"{self.folder}/_{part.name}.{self.token}.{secrets.token_hex(4)}"
        try:
            rows = self._write(part, temporary, unseen, stop)
            if rows >= 0:
                if stamp_of(self.system.get_file_info(part.path)) != part.stamp:
                    raise InputError("the file has changed since the run began: run it again")
                self._settle(temporary, self.file_of(part))
            return rows
        except Exception as error:  # of reading, of the user's model, of writing
            raise PartError(f"{part}: {' '.join(str(error).split())}") from error
        finally:
            with suppress(OSError):  # it is there no more, if all went well
                self.target.delete_file(temporary)

    def _settle(self, temporary: str, path: str) -> None:
        if isinstance(self.target, fs.LocalFileSystem):
            with open(temporary, "rb+") as file:  # or a power cut could leave its name and not its bytes
                os.fsync(file.fileno())
        self.target.move(temporary, path)

    def _write(self, part: Part, path: str, unseen: set[str], stop: threading.Event | None) -> int:
        rows, held = 0, []
        features, keys = self.features[part.file], list(self.keys)
        columns = list(dict.fromkeys([*features, *keys]))
        with (
            self.target.open_output_stream(path) as sink,
            pq.ParquetWriter(sink, self.schema, use_dictionary=keys, write_statistics=keys) as writer,
        ):
            for batch in read_part(self.system, part, columns, self.texts[part.file], batch_rows(self.explainer)):
                if stop is not None and stop.is_set():
                    return -1
                found = values_of(self.explainer, [batch[name] for name in features], self.outputs, "it", unseen)
                copied = [batch[name].cast(self.schema.field(name).type) for name in keys]
                held.append(pa.RecordBatch.from_arrays([*copied, *found], schema=self.schema))
                rows += len(batch)
                if sum(map(len, held)) >= _MOST or sum(part.nbytes for part in held) >= _GROUP:
                    writer.write_table(pa.Table.from_batches(held))
                    held.clear()
            if held:
                writer.write_table(pa.Table.from_batches(held))
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
        size = None if any(part.rows < 0 for part in self.parts) else sum(part.rows for part in self.parts)
        with tqdm(total=size, desc="explaining", unit="row", unit_scale=True, disable=not self.progress) as bar:
            for _, count, unseen in done:
                rows, parts = rows + count, parts + 1
                bar.update(count)
                self._warn(unseen)
        with self.job.target.open_output_stream(f"{self.job.folder}/{_DONE}"):
            pass
        _sweep(self.job)
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
    with one_thread(), closing(_on_threads(run.job, run.parts, workers or threads)) as done:
        return run.finish(done)


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
    if not isinstance(schema, TableSchema):
        raise InputError("the explainer was fitted to images: files of rows are for tables")
    if part_rows < 1:
        raise InputError(f"part_rows is {part_rows}: use 1 or more")
    for argument, given in (("keys", keys), ("outputs", outputs)):
        if isinstance(given, str):
            raise InputError(f"{argument} is {given!r}: pass a list, such as [{given!r}]")
    target, folder = locate(output)
    files = find_files(source, besides=folder)
    features: tuple[tuple[str, ...], ...] = ()
    for path, columns in zip(files.paths, files.schemas, strict=True):
        known = features[0] if features else ()
        features += (tuple(feature_columns(schema, columns.names, keys, path, known)),)
    chosen = chosen_outputs(explainer.output_names_, outputs)
    copied = _copied(files, features, keys)
    kept = [(key, key_type(key, files, features, schema)) for key in copied]
    names = value_names(explainer.player_names_, [explainer.output_names_[k] for k in chosen])
    taken = [*copied, *names]
    if twice := sorted({name for name in taken if taken.count(name) > 1}):
        raise InputError(
            f"columns {twice} would be there twice: leave them out of keys, or rename them, or explain one of the "
            "outputs at a time"
        )
    layout = pa.schema([*kept, *((name, pa.float32()) for name in names)])
    texts = {names: csv_reading(schema, names, kept) for names in set(features)}
    job = Job(
        explainer,
        files.system,
        target,
        folder,
        features,
        tuple(texts[names] for names in features),
        layout,
        tuple(copied),
        chosen,
    )
    parts = find_parts(files, part_rows)
    try:
        _claim(job, files, part_rows)
        return Run(job, _left(job, parts), len(parts), progress)
    except OSError as error:
        raise PartError(f"output {output} cannot be written: {error}") from error


def values_of(
    explainer: FastSHAP, features: Sequence[pa.Array], outputs: Sequence[int], where: str, unseen: set[str]
) -> list[pa.Array]:
    """The columns of `value_names` for the features' columns."""
    assert isinstance(explainer.schema_, TableSchema)
    x = encode(explainer.schema_, features, where, unseen).to(explainer.network_.scale.device)
    return value_columns(explainer.explain_encoded, x, explainer.value_function_.players, outputs)


def batch_rows(explainer: FastSHAP) -> int:
    """How many rows are held at once."""
    game = explainer.value_function_
    each = max(game.players * game.outputs, len(explainer.schema_.columns))  # type: ignore[attr-defined]
    return max(1, min(_MOST, _ENTRIES // each))


def _on_threads(
    job: Job, parts: Sequence[Part], threads: int
) -> Generator[tuple[Part, int, Collection[str]], None, None]:
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


def _copied(files: Files, features: Sequence[Sequence[str]], keys: Sequence[str] | None) -> list[str]:
    """The columns that are copied: those that are asked for, or all that every file has besides the features."""
    if keys is None:
        there = [set(columns.names).difference(*features) for columns in files.schemas]
        shared = set.intersection(*there)
        if some := sorted(set.union(*there) - shared):
            logger.warning("columns %s are not in all files: they are not copied", some)
        return [name for name in files.schemas[0].names if name in shared]
    for path, columns in zip(files.paths, files.schemas, strict=True):
        if missing := [key for key in keys if key not in columns.names]:
            raise InputError(f"keys {missing} are no columns of {path}")
    return list(keys)


def _claim(job: Job, files: Files, part_rows: int) -> None:
    """Tie the folder to this job: one that belongs to another, or holds other files, is refused."""
    path = f"{job.folder}/{_MANIFEST}"
    key = fingerprint(*_tensors(job.explainer), _settings(job, files, part_rows))
    answers = _answers(job.explainer)
    if job.target.get_file_info(job.folder).type == fs.FileType.File:
        raise InputError(f"output is {job.folder}, which is a file: choose a folder")
    job.target.create_dir(job.folder, recursive=True)
    if job.target.get_file_info(path).type == fs.FileType.File:
        with job.target.open_input_stream(path) as file:
            try:
                manifest = json.loads(file.read())
                known, before = manifest["key"], manifest.get("answers")
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(f"{path} cannot be read: choose another folder, or delete this one") from None
        if known != key:
            raise InputError(
                f"output {job.folder} belongs to a run with other files, another explainer or other settings: "
                "choose another folder, or delete this one"
            )
        if None not in (before, answers) and not _alike(before, answers):
            raise InputError(
                f"output {job.folder} belongs to a run with another model, whose outputs were others: go on with "
                "that model, choose another folder, or delete this one"
            )
        return
    names = [info.base_name for info in job.target.get_file_info(fs.FileSelector(job.folder))]
    # what a run leaves that is killed right here is no other's
    if strange := sorted(name for name in names if not name.startswith((".", f"{_MANIFEST}."))):
        raise InputError(f"output {job.folder} is not empty ({strange[:3]}): choose another folder")
    temporary = f"{path}.{secrets.token_hex(4)}"
    with job.target.open_output_stream(temporary) as file:
        file.write(
            json.dumps({"key": key, "files": files.paths, "part_rows": part_rows, "answers": answers}).encode()
        )
    job.target.move(temporary, path)


def _tensors(explainer: FastSHAP) -> list[Tensor]:
    """What values come from."""
    game = explainer.value_function_
    networks = [explainer.network_, getattr(game, "network_", None)]
    weights = [tensor for network in networks if network is not None for tensor in network.state_dict().values()]
    others = [getattr(game, name, None) for name in ("null", "rows_")]
    return [*weights, *(tensor for tensor in others if isinstance(tensor, Tensor))]


def _answers(explainer: FastSHAP) -> Any:
    """A model's outputs for a few rows, if values come from it: up to rounding, they tell it from another."""
    game = explainer.value_function_
    called = called_model(game) is not None
    return game.predict(game.rows_[:_ASKED]).tolist() if called else None


def _alike(before: Any, answers: Any) -> bool:
    then, now = torch.tensor(before), torch.tensor(answers)
    return then.shape == now.shape and torch.allclose(then, now, rtol=1e-4, atol=1e-6, equal_nan=True)


def _settings(job: Job, files: Files, part_rows: int) -> tuple[Any, ...]:
    """What values and columns depend on besides; what is in a file, each part's name has the stamp of."""
    layout = [(field.name, str(field.type)) for field in job.schema]
    return files.paths, part_rows, job.features, layout, job.outputs, job.explainer.normalize_


def _left(job: Job, parts: Sequence[Part]) -> list[Part]:
    """The parts that are not there; what is there of files that have changed since is deleted."""
    there = {info.base_name for info in job.target.get_file_info(fs.FileSelector(job.folder))}
    names = [os.path.basename(job.file_of(part)) for part in parts]
    stale = {name for name in there if _OURS.fullmatch(name)} - set(names)
    left = [part for part, name in zip(parts, names, strict=True) if name not in there]
    if stale:
        logger.warning("%d parts are of files that have changed since: these are explained again", len(stale))
    for name in [_DONE] * (_DONE in there and bool(left or stale)) + sorted(stale):
        job.target.delete_file(f"{job.folder}/{name}")
    return left


def _sweep(job: Job) -> None:
    """Without what workers that were killed have left; of another run, only what is old: it may be at work."""
    for info in job.target.get_file_info(fs.FileSelector(job.folder)):
        name = info.base_name
        old = info.mtime_ns is not None and time.time_ns() - info.mtime_ns > _OLD
        if name.startswith("_") and name not in (_MANIFEST, _DONE) and (old or f".{job.token}." in name):
            with suppress(OSError):
                job.target.delete_file(info.path)
