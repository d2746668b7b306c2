"""The same work on a Ray cluster: files and Ray datasets explained, and slow models called, by many processes.

Ray Data schedules, retries and replaces workers that are lost; what a worker does with a part of a file is what
`fastshapley.bulk.job` does with it on one machine, so that the values are the same.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import nn

from fastshapley.bulk.arrow import feature_columns, value_names
from fastshapley.bulk.file_parts import GAPS, Files, Part, is_parquet
from fastshapley.bulk.job import PART_ROWS, Explained, Job, batch_rows, prepare, values_of
from fastshapley.bulk.training_rows import as_frame, common_types, file_types
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError, ModelError, PartError, TrainingError
from fastshapley.explanation import chosen_outputs
from fastshapley.networks.backbone import Backbone
from fastshapley.support.atomic_files import write_text
from fastshapley.support.optional import require

if TYPE_CHECKING:
    from fastshapley.explainer import FastSHAP

ray = require("ray", "ray")
require("ray.data", "ray")
train = require("ray.train", "ray")
TorchTrainer = require("ray.train.torch", "ray").TorchTrainer

logger = logging.getLogger(__name__)

_FILE, _REFUSAL = "explainer.fastshap", "error.txt"
_FAILURES = 3  # of workers, after which a fit goes on where it was
_PATIENCE = 5.0  # seconds, for a cluster to answer


def connect(address: str | None = None) -> None:
    """Use the cluster at ``address`` (``"auto"``: the one of this machine); None starts one, if there is none."""
    if ray.is_initialized():
        return
    if address is not None and address not in ("auto", "local"):
        _check_answers(address)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.WARNING,
            **({} if address not in (None, "local") else {"include_dashboard": False}),
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address!r}: {error}") from error


def explain_to(
    explainer: FastSHAP,
    source: Any,
    output: str | os.PathLike[str],
    *,
    keys: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    part_rows: int = PART_ROWS,
    workers: int | None = None,
    address: str | None = None,
) -> Explained:
    """What `FastSHAP.explain_to` does, by processes of a Ray cluster.

    Files are read and written by the workers: ``source`` and ``output`` must be where all of them find them. By
    default there are as many ``workers`` as the cluster has processors. An interrupted run goes on, here or there.
    """
    run = prepare(
        explainer,
        source,
        output,
        keys=keys,
        outputs=outputs,
        part_rows=part_rows,
        progress=explainer.progress,
    )
    if not run.parts:
        return run.finish(iter(()))
    connect(address)
    carry(explainer.model)
    size = max(1, min(workers or int(ray.cluster_resources().get("CPU", 1)), len(run.parts)))
    return run.finish(_on_ray(run.job, run.parts, size))


def explain(
    dataset: Any,
    explainer: FastSHAP,
    *,
    keys: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    workers: int | None = None,
) -> Any:
    """A `ray.data.Dataset` of rows as one of their values, with the columns of `FastSHAP.explain_to`.

    As any transformation of Ray Data it is done when it is asked for, such as by ``write_parquet``, in batches of
    Arrow, by a pool of up to ``workers`` processes, each of which holds the explainer once.
    """
    explainer._check_fitted()
    if not isinstance(dataset, ray.data.Dataset):
        raise InputError(f"dataset is a {type(dataset).__name__}: pass a ray.data.Dataset, or files to explain_to")
    if not isinstance(explainer.schema_, TableSchema):
        raise InputError("the explainer was fitted to images: a dataset of rows is for tables")
    names = dataset.columns() or []
    features = feature_columns(explainer.schema_, names, keys, "dataset")
    carry(explainer.model)
    kept = [name for name in names if name not in features] if keys is None else list(keys)
    if missing := [key for key in kept if key not in names]:
        raise InputError(f"keys {missing} are no columns of the dataset")
    arguments = (ray.put(explainer), features, kept, chosen_outputs(explainer.output_names_, outputs))
    return dataset.map_batches(
        _Batches,
        fn_constructor_args=arguments,
        batch_format="pyarrow",
        batch_size=batch_rows(explainer),
        zero_copy_batch=True,
        # the pool grows as processors are free: reading needs some too
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers or _processors()),
    )


def fit(
    explainer: FastSHAP,
    dataset: Any,
    dataset_val: Any,
    scaling: Any,
    checkpoint: str | os.PathLike[str] | None,
) -> FastSHAP:
    """What `FastSHAP.fit` does with a `ray.data.Dataset`: Ray Train's workers each hold a share of the rows."""
    if not (dataset_val is None or isinstance(dataset_val, ray.data.Dataset)):
        raise InputError(f"X_val is a {type(dataset_val).__name__}: pass a ray.data.Dataset, like X")
    connect()
    carry(explainer.model)
    scaling = _processors() if scaling is None else scaling
    if isinstance(scaling, int):
        free = max(0.5, _processors() - 1)  # one is left to read the rows, or all would wait for them
        share = min(1.0, free / scaling)
        scaling = train.ScalingConfig(num_workers=scaling, resources_per_worker={"CPU": share})
    if not isinstance(scaling, train.ScalingConfig):
        raise InputError(f"scaling is {scaling!r}: use a number of workers, or a ray.train.ScalingConfig")
    with tempfile.TemporaryDirectory(prefix="fastshapley-") as storage:
        place = str(Path(storage if checkpoint is None else checkpoint).absolute())
        trainer = TorchTrainer(
            _train,
            train_loop_config={"explainer": clone(explainer), "checkpoint": f"{place}/fit"},
            scaling_config=scaling,
            datasets={"X": dataset, **({} if dataset_val is None else {"X_val": dataset_val})},
            run_config=train.RunConfig(
                name="ray", storage_path=place, failure_config=train.FailureConfig(max_failures=_FAILURES)
            ),
        )
        Path(place, "fit", _REFUSAL).unlink(missing_ok=True)
        try:
            result = trainer.fit()
        except Exception as error:
            raise TrainingError(f"training on Ray failed: {_cause(error)}") from error
        with result.checkpoint.as_directory() as folder:
            if (refusal := Path(folder) / _REFUSAL).exists():
                raise TrainingError(f"a worker could not go on: {refusal.read_text()}")
            fitted = type(explainer).load(
                Path(folder) / _FILE,
                explainer.model,
                network=explainer.network if isinstance(explainer.network, nn.Module | Backbone) else None,
                value_function=None if isinstance(explainer.value_function, str) else explainer.value_function,
                device=explainer.device,
            )
    for name, value in vars(fitted).items():
        if name.endswith("_"):
            setattr(explainer, name, value)
    return explainer


def _train(config: dict[str, Any]) -> None:
    """What each worker does: its rows are in this process alone, and it trains with the others."""
    explainer: FastSHAP = config["explainer"].set_params(progress=False)
    refusal = Path(config["checkpoint"]) / _REFUSAL
    refused = refusal.exists()  # Ray has started everyone anew, which will not help
    if not refused:
        try:
            X, X_val = (_rows(name) for name in ("X", "X_val"))
            explainer.fit(X, X_val=X_val, checkpoint=config["checkpoint"], scaling="torchrun")
        except (ValueError, TypeError, TrainingError) as error:
            write_text(refusal, str(error))
            raise
    if train.get_context().get_world_rank() > 0:
        train.report({})
        return
    with tempfile.TemporaryDirectory() as folder:
        if refused:
            shutil.copy(refusal, folder)
        else:
            explainer.save(Path(folder) / _FILE)
        train.report({}, checkpoint=train.Checkpoint.from_directory(folder))


def _rows(name: str) -> pd.DataFrame | None:
    """This worker's share of a dataset."""
    try:
        shard = train.get_dataset_shard(name)
    except KeyError:
        return None
    parts = list(shard.iter_batches(batch_size=None, batch_format="pyarrow"))
    return as_frame(parts, common_types([name] * len(parts), [part.schema for part in parts]))


def _cause(error: BaseException) -> str:
    """The last line of what went wrong in a worker."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__


def carry(model: Any) -> None:
    """Let workers have the code of a function that lies in a file beside the user, not in a package."""
    module = sys.modules.get(getattr(model, "__module__", None) or type(model).__module__)
    path = getattr(module, "__file__", None)
    if path is not None and os.path.dirname(os.path.abspath(path)) == os.getcwd():
        ray.cloudpickle.register_pickle_by_value(module)


def read_files(files: Files, columns: Sequence[str]) -> Any:
    """The columns of files as a `ray.data.Dataset`."""
    kinds = {is_parquet(path) for path in files.paths}
    if len(kinds) > 1:
        raise InputError("source has both Parquet and CSV files: train on one of them")
    file_types(files, columns)  # or what is refused would be so only on the cluster
    if kinds.pop():
        found = ray.data.read_parquet(list(files.paths), filesystem=files.system)
    else:
        found = ray.data.read_csv(
            list(files.paths),
            filesystem=files.system,
            convert_options=pyarrow.csv.ConvertOptions(null_values=GAPS, strings_can_be_null=True),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        )
    return found.select_columns(list(columns))


def spread(model: Any, *, workers: int | None = None) -> Spread:
    """A slow model as a function whose calls are shared out among processes of a Ray cluster.

    It goes wherever a model does: ``FastSHAP(spread(model), value_function="marginal")``, whose training, report
    and `estimate` then call it from all of them.
    """
    connect()
    carry(model)
    return Spread(model, workers or _processors())


class Spread:
    """A model, held by each of some processes; rows go to all of them in equal parts."""

    def __init__(self, model: Any, workers: int) -> None:
        if not (hasattr(model, "predict_proba") or hasattr(model, "predict") or callable(model)):
            raise ModelError(f"model is a {type(model).__name__}, which cannot be called")
        if hasattr(model, "classes_"):
            self.classes_ = model.classes_
        held = ray.put(model)
        worker = ray.remote(max_restarts=-1, max_task_retries=-1)(_Model)
        self._workers = [worker.remote(held) for _ in range(max(1, workers))]
        self._held = held  # or a worker that is started anew would not find it

    def __call__(self, rows: Any) -> NDArray[Any]:
        bounds = np.linspace(0, len(rows), min(len(self._workers), len(rows)) + 1).astype(int)
        asked = [
            worker.predict.remote(_slice(rows, start, stop))
            for worker, start, stop in zip(self._workers, bounds[:-1], bounds[1:], strict=False)
        ]
        try:
            found = ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            raise ModelError(f"model failed on a worker: {error.cause}") from error
        return np.concatenate(found)


def _slice(rows: Any, start: int, stop: int) -> Any:
    return rows.iloc[start:stop] if isinstance(rows, pd.DataFrame) else rows[start:stop]


class _Model:
    """A worker of `Spread`."""

    def __init__(self, model: Any) -> None:
        torch.set_num_threads(1)
        self.predict_rows = getattr(model, "predict_proba", None) or getattr(model, "predict", None) or model

    def predict(self, rows: Any) -> NDArray[Any]:
        return np.asarray(self.predict_rows(rows))


class _Parts:
    """A worker that explains parts of files."""

    def __init__(self, job: Any) -> None:
        torch.set_num_threads(1)
        self.job: Job = ray.get(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What came of the one part of a batch; an error is told to the driver as it is."""
        unseen: set[str] = set()
        rows, error = 0, ""
        try:
            rows = self.job.explain(Part(**batch["part"][0]), unseen)
        except PartError as refusal:
            error = str(refusal)
        return {"number": batch["number"], "rows": [rows], "unseen": ["\n".join(sorted(unseen))], "error": [error]}


class _Batches:
    """A worker that explains batches of a dataset."""

    def __init__(self, held: Any, features: Sequence[str], keys: Sequence[str], outputs: Sequence[int]) -> None:
        torch.set_num_threads(1)
        self.explainer: FastSHAP = ray.get(held)
        self.features, self.keys, self.outputs = features, keys, outputs
        self.unseen: set[str] = set()
        wanted = [self.explainer.output_names_[k] for k in outputs]
        self.names = [*keys, *value_names(self.explainer.player_names_, wanted)]

    def __call__(self, batch: pa.Table) -> pa.Table:
        columns = [batch[name] for name in self.features]
        unseen: set[str] = set()
        found = values_of(self.explainer, columns, self.outputs, "the dataset", unseen)
        for name in sorted(unseen - self.unseen):
            logger.warning("column %r has values not seen at fit: they are treated as missing", name)
        self.unseen |= unseen
        return pa.Table.from_arrays([*(batch[key] for key in self.keys), *found], names=self.names)


def _on_ray(job: Job, parts: Sequence[Part], size: int) -> Iterator[tuple[Part, int, Collection[str]]]:
    """Parts as they are done. Each is a task of its own: who is slow holds up no more than the part at hand."""
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    items = [{"number": number, "part": vars(part)} for number, part in enumerate(parts)]
    try:
        done = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            _Parts,
            fn_constructor_args=(ray.put(job),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
        )
        for row in done.iter_rows():
            if row["error"]:
                raise PartError(row["error"])
            yield parts[row["number"]], row["rows"], [name for name in row["unseen"].split("\n") if name]
    finally:
        context.enable_progress_bars = before


def _processors() -> int:
    connect()
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _check_answers(address: str) -> None:
    """Whether anyone listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE):
            pass
    except (OSError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address!r}: {error}") from error
