"""Explain files of any size part by part, in constant memory, and resume a run that was interrupted.

The work is a `Job`, which can be sent to another process, and a list of parts. The values of each part are written
to a file of their own, which appears complete or not at all. A part whose file is there is done.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from tqdm.auto import tqdm

from fastshapley.bulk.arrow import csv_reading, key_type
from fastshapley.bulk.csv_files import CsvColumns
from fastshapley.bulk.feature_names import check_keys, feature_columns
from fastshapley.bulk.file_parts import Part, find_parts, read_part, with_slices
from fastshapley.bulk.file_search import Files, find_files, locate, stamp_of, without_secrets
from fastshapley.bulk.output_folder import Claim, OutputFolder
from fastshapley.bulk.row_explainer import (
    BATCH_ROWS,
    RowExplainer,
    anchored,
    batch_rows,
    column_fields,
    device_of,
    explain_columns,
    precision_of,
    sample_outputs,
    table_schema,
    warn_of_missing_model,
    weights_of,
    whose_sums,
)
from fastshapley.errors import InputError, PartError
from fastshapley.fit.targets import available_threads
from fastshapley.support.names import chosen_outputs
from fastshapley.training.checkpoint import fingerprint
from fastshapley.training.run import one_thread
from fastshapley.value_functions.sums import SumsTo

logger = logging.getLogger(__name__)

PART_ROWS = 1 << 18  # rows per part, approximately
_GROUP_BYTES = 1 << 26  # most bytes per row group of the output: a writer keeps metadata of each in memory
_MOST_THREADS = 1 << 10  # upper limit of the default number of threads


@dataclass(frozen=True)
class Explained:
    """What a run did. ``str(explained)`` says it in words.

    Parameters
    ----------
    output : str
        The folder with the values.
    rows : int
        The number of rows that this run explained.
    parts : int
        The number of parts that this run explained.
    kept : int
        The number of parts that earlier runs had explained.
    seconds : float
        The time that this run took, in seconds.
    sums_to : {"model", "surrogate", "game"}
        Whose output the values sum to.
    """

    output: str
    rows: int
    parts: int
    kept: int
    seconds: float
    sums_to: SumsTo

    def __str__(self) -> str:
        pace = f"{self.rows / max(self.seconds, 1e-9):,.0f} rows per second" if self.parts else "nothing left to do"
        kept = f", {self.kept} done before" if self.kept else ""
        parts = f"{self.parts} part{'s' * (self.parts != 1)}"
        return f"{self.rows:,} rows explained in {parts}, {pace}{kept}: {self.output}"


@dataclass(frozen=True)
class Columns:
    """The columns that a job reads and writes.

    Parameters
    ----------
    features : tuple of tuple of str
        The features of each file, in the order of the explainer's schema.
    reading : tuple of CsvColumns
        How to read each file, if it is CSV.
    keys : tuple of str
        The columns that are copied.
    outputs : tuple of int
        The indices of the explainer's outputs that are written.
    written : pyarrow.Schema
        The columns of the output.
    """

    features: tuple[tuple[str, ...], ...]
    reading: tuple[CsvColumns, ...]
    keys: tuple[str, ...]
    outputs: tuple[int, ...]
    written: pa.Schema


@dataclass(frozen=True)
class Job:
    """How to explain one part of the files.

    Parameters
    ----------
    explainer : RowExplainer
        The fitted explainer.
    system : pyarrow.fs.FileSystem
        The file system of the files.
    folder : OutputFolder
        Where the values are written.
    columns : Columns
        The columns that are read and written.
    """

    explainer: RowExplainer
    system: fs.FileSystem
    folder: OutputFolder
    columns: Columns

    def explain(self, part: Part, unseen: set[str], stop: threading.Event | None = None) -> int:
        """Explain a part and write its file.

        Parameters
        ----------
        part : Part
            The part.
        unseen : set of str
            The method adds the names of columns with categories that were not seen at fit.
        stop : threading.Event, optional
            The method gives up soon after this event is set.

        Returns
        -------
        int
            The number of rows, or -1 if the method gave up.

        Raises
        ------
        PartError
            If the part cannot be read, explained or written, or its file has changed.
        """
        temporary = self.folder.temporary_file(part)
        try:
            rows = self._write(part, temporary, unseen, stop)
            if rows >= 0:
                if stamp_of(self.system.get_file_info(part.path)) != part.stamp:
                    raise InputError("the file has changed since the run began: run it again")
                self.folder.publish(temporary, part)
            return rows
        except Exception as error:  # Reading, the user's model and writing may fail in any way.
            raise PartError(f"{part}: {' '.join(str(error).split())}") from error
        finally:
            self.folder.discard(temporary)

    def _write(self, part: Part, path: str, unseen: set[str], stop: threading.Event | None) -> int:
        rows, held = 0, []
        own, written = self.columns, self.columns.written
        features, keys = own.features[part.file], list(own.keys)
        names = list(dict.fromkeys([*features, *keys]))
        most = batch_rows(self.explainer, own.outputs)
        batches = read_part(self.system, part, names, own.reading[part.file], most)
        with (
            self.folder.system.open_output_stream(path) as sink,
            pq.ParquetWriter(sink, written, use_dictionary=keys, write_statistics=keys) as writer,
        ):
            for batch in batches:
                if stop is not None and stop.is_set():
                    return -1
                read = [batch[name] for name in features]
                values = explain_columns(self.explainer, read, own.outputs, "it", unseen)
                copied = [batch[name].cast(written.field(name).type) for name in keys]
                held.append(pa.RecordBatch.from_arrays([*copied, *values], schema=written))
                rows += len(batch)
                if sum(map(len, held)) >= BATCH_ROWS or sum(batch.nbytes for batch in held) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held))
                    held.clear()
            if held:
                writer.write_table(pa.Table.from_batches(held))
        return rows


PartDone = tuple[Part, int, Collection[str]]  # a part, its rows, and its columns with unseen categories


@dataclass
class BulkRun:
    """A job and the parts that are still to be explained.

    Parameters
    ----------
    job : Job
        The job.
    parts : list of Part
        The parts that are still to be explained.
    total : int
        The number of parts, including those that earlier runs have explained.
    progress : bool
        Whether to show a progress bar.
    unseen : set of str
        The columns with unseen categories that have been warned about.
    """

    job: Job
    parts: list[Part]
    total: int
    progress: bool
    unseen: set[str] = field(default_factory=set)

    def finish(self, done: Iterator[PartDone]) -> Explained:
        """Follow the work to its end.

        Parameters
        ----------
        done : iterator of PartDone
            Yields each part when it is done.

        Returns
        -------
        Explained
            What the run did.
        """
        start, rows, parts = time.monotonic(), 0, 0
        size = None if any(part.rows < 0 for part in self.parts) else sum(part.rows for part in self.parts)
        with tqdm(total=size, desc="explaining", unit="row", unit_scale=True, disable=not self.progress) as bar:
            for _, count, unseen in done:
                rows, parts = rows + count, parts + 1
                bar.update(count)
                warn_of_unseen(unseen, self.unseen)
        folder = self.job.folder
        folder.finish()
        seconds, kept = time.monotonic() - start, self.total - len(self.parts)
        return Explained(folder.path, rows, parts, kept, seconds, whose_sums(self.job.explainer))


def warn_of_unseen(unseen: Collection[str], known: set[str]) -> None:
    """Warn once per column of categories that were not seen at fit.

    Parameters
    ----------
    unseen : collection of str
        The columns with such categories.
    known : set of str
        The columns that have been warned about; the function adds the new ones.
    """
    for name in sorted(set(unseen) - known):
        logger.warning("column %r has values not seen at fit: they are treated as missing", name)
    known.update(unseen)


def explain_to(
    explainer: RowExplainer,
    source: Any,
    output: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    part_rows: int = PART_ROWS,
    workers: int | None = None,
    progress: bool = True,
) -> Explained:
    """Explain files on this machine.

    The parameters are those of `FastSHAP.explain_to`, and ``progress``, which shows a progress bar.

    Returns
    -------
    Explained
        What the run did.
    """
    run = prepare(explainer, source, output, keys=keys, outputs=outputs, part_rows=part_rows, progress=progress)
    # The user's model is called by one thread, unless its game allows more.
    most = _MOST_THREADS if anchored(explainer) is None else 1
    threads = available_threads(explainer.value_function_, device_of(explainer), most=most)
    with one_thread(), closing(_on_threads(run.job, run.parts, workers or threads)) as done:
        return run.finish(done)


def prepare(
    explainer: RowExplainer,
    source: Any,
    output: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None,
    outputs: Sequence[str] | None,
    part_rows: int,
    progress: bool,
) -> BulkRun:
    """Find the files and claim the output folder. Nothing is explained yet.

    Parameters
    ----------
    explainer : RowExplainer
        The fitted explainer.
    source : str, os.PathLike or list of these
        The files, as `find_files` takes them.
    output : str or os.PathLike
        The folder for the values.
    keys : sequence of str or None
        The columns to copy; None copies all columns that are not features and that every file has.
    outputs : sequence of str or None
        The names of the outputs to explain; None explains all.
    part_rows : int
        Approximate number of rows per part.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    BulkRun
        The job and the parts that are still to be explained.

    Raises
    ------
    InputError
        If the arguments, the columns or the folder do not fit the explainer.
    PartError
        If a file cannot be read, or the folder cannot be written.
    """
    table_schema(explainer)
    if part_rows < 1:
        raise InputError(f"part_rows is {part_rows}: use 1 or more")
    for argument, given in (("keys", keys), ("outputs", outputs)):
        if isinstance(given, str):
            raise InputError(f"{argument} is {given!r}: pass a list, such as [{given!r}]")
    folder = OutputFolder(*locate(output))
    files = find_files(source, besides=folder.path)
    columns = _columns(explainer, files, keys, outputs)
    job = Job(explainer, files.system, folder, columns)
    parts = with_slices(find_parts(files, part_rows), part_rows)
    try:
        folder.claim(_claim(job, files, part_rows, parts))
        missing = folder.missing(parts)
    except OSError as error:
        raise PartError(f"output {without_secrets(output)} cannot be written: {error}") from error
    if missing:
        warn_of_missing_model(explainer)
    return BulkRun(job, missing, len(parts), progress)


def _columns(
    explainer: RowExplainer, files: Files, keys: Sequence[str] | None, outputs: Sequence[str] | None
) -> Columns:
    """Decide which columns are read and written."""
    schema = table_schema(explainer)
    features: tuple[tuple[str, ...], ...] = ()
    for path, found in zip(files.paths, files.schemas, strict=True):
        known = features[0] if features else ()
        features += (tuple(feature_columns(schema, found.names, keys, path, known)),)
    chosen = chosen_outputs(explainer.output_names_, outputs)
    copied = _copied(files, features, keys)
    typed = [(key, key_type(key, files, features, schema)) for key in copied]
    values = column_fields(explainer, chosen)
    names = [*copied, *(field.name for field in values)]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"the output would have two columns for each of {duplicates}: leave them out of keys, rename them, or "
            "explain one of the outputs at a time"
        )
    readings = {own: csv_reading(schema, own, typed) for own in set(features)}
    written = pa.schema([*typed, *values])
    return Columns(features, tuple(readings[own] for own in features), tuple(copied), chosen, written)


def _copied(files: Files, features: Sequence[Sequence[str]], keys: Sequence[str] | None) -> list[str]:
    """Return the columns to copy: those asked for, or all that every file has besides the features."""
    if keys is None:
        others = [set(columns.names).difference(*features) for columns in files.schemas]
        shared = set.intersection(*others)
        if partial := sorted(set.union(*others) - shared):
            logger.warning("columns %s are not in all files: they are not copied", partial)
        return [name for name in files.schemas[0].names if name in shared]
    check_keys(files, keys)
    return list(keys)


def _claim(job: Job, files: Files, part_rows: int, parts: Sequence[Part]) -> Claim:
    """Return what identifies a run. The version of each file is in the names of its parts."""
    own = job.columns
    layout = [(field.name, str(field.type)) for field in own.written]
    slices = [(part.file, part.number, part.skipped, part.rows) for part in parts]
    # Runs of earlier versions had no slices. Their folders would hold other rows under the same names.
    divided = [slices] if any(part.skipped for part in parts) else []
    settings = (files.paths, part_rows, own.features, layout, own.outputs, job.explainer.normalize_, *divided)
    key = fingerprint(*weights_of(job.explainer), settings, *precision_of(job.explainer))
    said = whose_sums(job.explainer)
    return Claim(key, sample_outputs(job.explainer), files.paths, part_rows, said)


def _on_threads(job: Job, parts: Sequence[Part], threads: int) -> Generator[PartDone, None, None]:
    """Yield parts as they are done. After an error or an interruption, unfinished parts are given up."""
    stop, waiting = threading.Event(), iter(parts)

    def explain(part: Part) -> PartDone:
        unseen: set[str] = set()
        return part, job.explain(part, unseen, stop), unseen

    with ThreadPoolExecutor(max(1, threads)) as pool:
        working: set[Future[PartDone]] = set()
        try:
            while True:
                for part in waiting:
                    working.add(pool.submit(explain, part))
                    if len(working) >= threads:
                        break
                if not working:
                    return
                done, working = wait(working, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            stop.set()
