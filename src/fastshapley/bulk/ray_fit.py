"""Fit an explainer on a Ray cluster. Each worker holds a share of the rows."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pandas as pd
import pyarrow.csv
from sklearn.base import clone
from torch import nn

from fastshapley.bulk.csv_files import GAPS
from fastshapley.bulk.file_search import Files, is_parquet
from fastshapley.bulk.ray_cluster import connect, processors, ship_code
from fastshapley.bulk.training_rows import as_frame, common_types, file_types
from fastshapley.errors import InputError, TrainingError
from fastshapley.networks.backbone import Backbone
from fastshapley.support.atomic_files import write_text
from fastshapley.support.optional import require

ray = require("ray", "ray")
require("ray.data", "ray")
train = require("ray.train", "ray")
TorchTrainer = require("ray.train.torch", "ray").TorchTrainer

_EXPLAINER_FILE, _ERROR_FILE = "explainer.fastshap", "error.txt"
_MOST_FAILURES = 3  # failures of workers after which a fit resumes; one more ends it


class TrainableExplainer(Protocol):
    """An explainer that is trained by `fit` and kept in a file; `fastshapley.FastSHAP` is one."""

    @property
    def model(self) -> Any:
        """The user's model."""

    @property
    def network(self) -> Any:
        """The parameter ``network``."""

    @property
    def value_function(self) -> Any:
        """The parameter ``value_function``."""

    @property
    def device(self) -> Any:
        """The device of the networks."""

    def fit(self, X: Any, *, X_val: Any, checkpoint: Any, scaling: Any) -> Any:
        """Train on rows."""

    def save(self, path: Any) -> None:
        """Write the explainer to a file."""

    def set_params(self, **parameters: Any) -> Any:
        """Set parameters, and return the explainer."""

    @classmethod
    def load(cls, path: Any, model: Any, *, network: Any, value_function: Any, device: Any) -> Any:
        """Read an explainer from a file."""


AnyExplainer = TypeVar("AnyExplainer", bound=TrainableExplainer)


def fit(
    explainer: AnyExplainer,
    dataset: Any,
    dataset_val: Any,
    scaling: Any,
    checkpoint: str | os.PathLike[str] | None,
) -> AnyExplainer:
    """Fit an explainer to a `ray.data.Dataset`; `FastSHAP.fit` calls this function.

    Parameters
    ----------
    explainer : FastSHAP
        The explainer to fit.
    dataset : ray.data.Dataset
        The training rows.
    dataset_val : ray.data.Dataset or None
        The validation rows.
    scaling : int, ray.train.ScalingConfig or None
        The number of workers. The default is the number of processors of the cluster.
    checkpoint : str, os.PathLike or None
        A directory that all workers can reach. A fit that was interrupted resumes from it.

    Returns
    -------
    FastSHAP
        The explainer, fitted.

    Raises
    ------
    InputError
        If ``scaling`` or ``dataset_val`` has the wrong type.
    TrainingError
        If the training fails.
    """
    if not (dataset_val is None or isinstance(dataset_val, ray.data.Dataset)):
        raise InputError(f"X_val is a {type(dataset_val).__name__}: pass a ray.data.Dataset, like X")
    connect()
    ship_code(explainer.model)
    scaling = _scaling_config(scaling)
    with tempfile.TemporaryDirectory(prefix="fastshapley-") as storage:
        place = str(Path(storage if checkpoint is None else checkpoint).absolute())
        trainer = TorchTrainer(
            _train_worker,
            train_loop_config={"explainer": clone(explainer), "checkpoint": f"{place}/fit"},
            scaling_config=scaling,
            datasets={"X": dataset, **({} if dataset_val is None else {"X_val": dataset_val})},
            run_config=train.RunConfig(
                name="ray", storage_path=place, failure_config=train.FailureConfig(max_failures=_MOST_FAILURES)
            ),
        )
        Path(place, "fit", _ERROR_FILE).unlink(missing_ok=True)
        try:
            result = trainer.fit()
        except Exception as error:
            raise TrainingError(f"training on Ray failed: {_last_line(error)}") from error
        with result.checkpoint.as_directory() as folder:
            fitted = _load(explainer, Path(folder))
    for name, value in vars(fitted).items():
        if name.endswith("_"):
            setattr(explainer, name, value)
    return explainer


def read_files(files: Files, columns: Sequence[str]) -> Any:
    """Return columns of files as a `ray.data.Dataset`.

    Parameters
    ----------
    files : Files
        The files, all Parquet or all CSV.
    columns : sequence of str
        The columns to keep.

    Returns
    -------
    ray.data.Dataset
        The rows of all files.

    Raises
    ------
    InputError
        If there are both Parquet and CSV files, or a column has types that do not fit together.
    """
    kinds = {is_parquet(path) for path in files.paths}
    if len(kinds) > 1:
        raise InputError("source has both Parquet and CSV files: train on one kind")
    file_types(files, columns)  # Types that do not fit together are refused here, and not on the cluster.
    if kinds.pop():
        dataset = ray.data.read_parquet(list(files.paths), filesystem=files.system)
    else:
        dataset = ray.data.read_csv(
            list(files.paths),
            filesystem=files.system,
            convert_options=pyarrow.csv.ConvertOptions(null_values=GAPS, strings_can_be_null=True),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        )
    return dataset.select_columns(list(columns))


def _scaling_config(scaling: Any) -> Any:
    scaling = processors() if scaling is None else scaling
    if isinstance(scaling, int):
        free = max(0.5, processors() - 1)  # One processor is left to read rows; otherwise all would wait for them.
        share = min(1.0, free / scaling)
        scaling = train.ScalingConfig(num_workers=scaling, resources_per_worker={"CPU": share})
    if not isinstance(scaling, train.ScalingConfig):
        raise InputError(f"scaling is {scaling!r}: use a number of workers, or a ray.train.ScalingConfig")
    return scaling


def _load(explainer: TrainableExplainer, folder: Path) -> Any:
    """Return the explainer that the workers have written."""
    if (refusal := folder / _ERROR_FILE).exists():
        raise TrainingError(f"training failed on a worker: {refusal.read_text()}")
    return type(explainer).load(
        folder / _EXPLAINER_FILE,
        explainer.model,
        network=explainer.network if isinstance(explainer.network, nn.Module | Backbone) else None,
        value_function=None if isinstance(explainer.value_function, str) else explainer.value_function,
        device=explainer.device,
    )


def _train_worker(config: dict[str, Any]) -> None:
    """Train on the rows of this worker, together with the other workers."""
    explainer: TrainableExplainer = config["explainer"].set_params(progress=False)
    refusal = Path(config["checkpoint"]) / _ERROR_FILE
    refused = refusal.exists()  # Ray has restarted all workers, but the same error would occur again.
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
            explainer.save(Path(folder) / _EXPLAINER_FILE)
        train.report({}, checkpoint=train.Checkpoint.from_directory(folder))


def _rows(name: str) -> pd.DataFrame | None:
    """Return this worker's share of a dataset."""
    try:
        shard = train.get_dataset_shard(name)
    except KeyError:
        return None
    parts = list(shard.iter_batches(batch_size=None, batch_format="pyarrow"))
    return as_frame(parts, common_types([name] * len(parts), [part.schema for part in parts]))


def _last_line(error: BaseException) -> str:
    """Return the last line of an error of a worker, which names the cause."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
