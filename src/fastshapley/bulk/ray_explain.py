"""Explain files and Ray datasets on a Ray cluster.

Ray Data schedules the work, retries it, and replaces workers that are lost. A worker does with a part of a file
what `fastshapley.bulk.job` does with it on one machine, so the values are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import torch
from sklearn.utils.validation import check_is_fitted

from fastshapley.bulk.feature_names import feature_columns
from fastshapley.bulk.file_parts import Part
from fastshapley.bulk.job import PART_ROWS, Explained, Job, PartDone, prepare, warn_of_unseen
from fastshapley.bulk.ray_cluster import connect, processors, ship_code
from fastshapley.bulk.row_explainer import (
    RowExplainer,
    batch_rows,
    column_fields,
    explain_columns,
    table_schema,
    warn_of_missing_model,
)
from fastshapley.errors import InputError, PartError
from fastshapley.support.names import chosen_outputs
from fastshapley.support.optional import require

ray = require("ray", "ray")
require("ray.data", "ray")


class ClusterExplainer(RowExplainer, Protocol):
    """A fitted explainer that can be sent to the workers of a cluster; `fastshapley.FastSHAP` is one."""

    @property
    def model(self) -> Any:
        """The user's model."""

    @property
    def progress(self) -> bool:
        """Whether to show a progress bar."""


def explain_to(
    explainer: ClusterExplainer,
    source: Any,
    output: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    part_rows: int = PART_ROWS,
    workers: int | None = None,
    address: str | None = None,
) -> Explained:
    """Explain files as `FastSHAP.explain_to` does, on a Ray cluster.

    The workers read and write the files, so all of them must be able to reach ``source`` and ``output``. A run that
    was interrupted can be resumed here or on one machine.

    Parameters
    ----------
    explainer : FastSHAP
        The fitted explainer.
    source : str, os.PathLike or list of these
        A path, a folder, a glob, or a list of them.
    output : str or os.PathLike
        The folder for the values.
    keys : sequence of str, optional
        The columns to copy. By default these are all columns that are not features and that every file has.
    outputs : sequence of str, optional
        The names of the outputs to explain. The default is all of them.
    part_rows : int, default=262144
        Approximate number of rows per part.
    workers : int, optional
        The number of processes. The default is the number of processors of the cluster.
    address : str, optional
        The address of the cluster, as `connect` takes it.

    Returns
    -------
    Explained
        What the run did.
    """
    progress = explainer.progress
    run = prepare(explainer, source, output, keys=keys, outputs=outputs, part_rows=part_rows, progress=progress)
    if not run.parts:
        return run.finish(iter(()))
    connect(address)
    ship_code(explainer.model)
    return run.finish(_on_ray(run.job, run.parts, max(1, min(workers or processors(), len(run.parts)))))


def explain(
    dataset: Any,
    explainer: ClusterExplainer,
    *,
    keys: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    workers: int | None = None,
) -> Any:
    """Explain a `ray.data.Dataset`.

    Like any transformation of Ray Data, it is lazy: the work is done when the result is used, for example by
    ``write_parquet``. A pool of processes, each with one copy of the explainer, works on Arrow batches.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The rows.
    explainer : FastSHAP
        The fitted explainer.
    keys : sequence of str, optional
        The columns to copy. By default these are all columns that are not features.
    outputs : sequence of str, optional
        The names of the outputs to explain. The default is all of them.
    workers : int, optional
        The maximum number of processes. The default is the number of processors of the cluster.

    Returns
    -------
    ray.data.Dataset
        The values, with the columns of `FastSHAP.explain_to`.

    Raises
    ------
    InputError
        If the dataset lacks columns, or is not a Ray dataset.
    """
    check_is_fitted(explainer)
    if not isinstance(dataset, ray.data.Dataset):
        raise InputError(
            f"dataset is a {type(dataset).__name__}: pass a ray.data.Dataset, or pass files to explain_to"
        )
    schema = table_schema(explainer)
    names = dataset.columns() or []
    features = feature_columns(schema, names, keys, "dataset")
    ship_code(explainer.model)
    warn_of_missing_model(explainer)
    copied = [name for name in names if name not in features] if keys is None else list(keys)
    if missing := [key for key in copied if key not in names]:
        raise InputError(f"keys {missing} are not columns of the dataset")
    chosen = chosen_outputs(explainer.output_names_, outputs)
    arguments = (ray.put(explainer), features, copied, chosen)
    return dataset.map_batches(
        _BatchWorker,
        fn_constructor_args=arguments,
        batch_format="pyarrow",
        batch_size=batch_rows(explainer, chosen),
        zero_copy_batch=True,
        # The pool grows as processors become free, since reading needs some too.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers or processors()),
    )


class _PartWorker:
    """A process that explains parts of files."""

    def __init__(self, job: Any) -> None:
        torch.set_num_threads(1)
        self.job: Job = ray.get(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Explain the one part of a batch. The message of an error is returned, so that the driver can raise it."""
        unseen: set[str] = set()
        rows, error = 0, ""
        try:
            rows = self.job.explain(Part(**batch["part"][0]), unseen)
        except PartError as refusal:
            error = str(refusal)
        return {"number": batch["number"], "rows": [rows], "unseen": ["\n".join(sorted(unseen))], "error": [error]}


class _BatchWorker:
    """A process that explains batches of a dataset."""

    def __init__(self, held: Any, features: Sequence[str], keys: Sequence[str], outputs: Sequence[int]) -> None:
        torch.set_num_threads(1)
        self.explainer: RowExplainer = ray.get(held)
        self.features, self.keys, self.outputs = features, keys, outputs
        self.unseen: set[str] = set()
        self.names = [*keys, *(field.name for field in column_fields(self.explainer, outputs))]

    def __call__(self, batch: pa.Table) -> pa.Table:
        columns = [batch[name] for name in self.features]
        unseen: set[str] = set()
        values = explain_columns(self.explainer, columns, self.outputs, "the dataset", unseen)
        warn_of_unseen(unseen, self.unseen)
        return pa.Table.from_arrays([*(batch[key] for key in self.keys), *values], names=self.names)


def _on_ray(job: Job, parts: Sequence[Part], workers: int) -> Iterator[PartDone]:
    """Yield parts as they are done. Each part is a task, so a slow worker delays no other part."""
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    items = [{"number": number, "part": vars(part)} for number, part in enumerate(parts)]
    try:
        done = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _PartWorker,
            fn_constructor_args=(ray.put(job),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
        )
        for row in done.iter_rows():
            if row["error"]:
                raise PartError(row["error"])
            yield parts[row["number"]], row["rows"], [name for name in row["unseen"].split("\n") if name]
    finally:
        context.enable_progress_bars = before
