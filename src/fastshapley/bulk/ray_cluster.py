"""Connect to a Ray cluster, and call a slow model from all of its processes."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fastshapley.errors import InputError, ModelError
from fastshapley.support.optional import require

ray = require("ray", "ray")

_CONNECT_SECONDS = 5.0  # time limit for a cluster to answer


def connect(address: str | None = None) -> None:
    """Connect to a Ray cluster, unless this process is connected already.

    Parameters
    ----------
    address : str, optional
        The address of the cluster. ``"auto"`` is the cluster of this machine. None starts a new one on this
        machine, if there is none.

    Raises
    ------
    InputError
        If there is no cluster at the address.
    """
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


def processors() -> int:
    """Return the number of processors of the cluster; connect to it first if necessary."""
    connect()
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def ship_code(model: Any) -> None:
    """Send the module of a model to the workers, if the module is a file in the working directory.

    Workers can import installed packages, but not a script next to the user.
    """
    module = sys.modules.get(getattr(model, "__module__", None) or type(model).__module__)
    path = getattr(module, "__file__", None)
    if path is not None and os.path.dirname(os.path.abspath(path)) == os.getcwd():
        ray.cloudpickle.register_pickle_by_value(module)


def spread(model: Any, *, workers: int | None = None) -> Spread:
    """Distribute the calls of a slow model over the processes of a Ray cluster.

    The result is used in place of the model, as in ``FastSHAP(spread(model), value_function="marginal")``.
    Training, the report and `FastSHAP.estimate` then call the model in all processes.

    Parameters
    ----------
    model : object
        A model with ``predict_proba`` or ``predict``, or a function.
    workers : int, optional
        The number of processes. The default is the number of processors of the cluster.

    Returns
    -------
    Spread
        A function with the results of the model.
    """
    connect()
    ship_code(model)
    return Spread(model, workers or processors())


class Spread:
    """A model that is held by several processes. Each call divides the rows evenly among them.

    Parameters
    ----------
    model : object
        A model with ``predict_proba`` or ``predict``, or a function.
    workers : int
        The number of processes.

    Raises
    ------
    ModelError
        If the model cannot be called.
    """

    def __init__(self, model: Any, workers: int) -> None:
        if not (hasattr(model, "predict_proba") or hasattr(model, "predict") or callable(model)):
            raise ModelError(
                f"model is of type {type(model).__name__}, which cannot be called: pass a function, or an object "
                "with predict_proba or predict"
            )
        if hasattr(model, "classes_"):
            self.classes_ = model.classes_
        held = ray.put(model)
        worker = ray.remote(max_restarts=-1, max_task_retries=-1)(_ModelWorker)
        self._workers = [worker.remote(held) for _ in range(max(1, workers))]
        self._held = held  # A worker that is restarted needs the model again.

    def __call__(self, rows: Any) -> NDArray[Any]:
        """Return the outputs of the model for rows, in their order."""
        bounds = np.linspace(0, len(rows), min(len(self._workers), len(rows)) + 1).astype(int)
        pending = [
            worker.predict.remote(_slice(rows, start, stop))
            for worker, start, stop in zip(self._workers, bounds[:-1], bounds[1:], strict=False)
        ]
        try:
            outputs = ray.get(pending)
        except ray.exceptions.RayTaskError as error:
            raise ModelError(f"model failed on a worker: {error.cause}") from error
        return np.concatenate(outputs)


def _slice(rows: Any, start: int, stop: int) -> Any:
    return rows.iloc[start:stop] if isinstance(rows, pd.DataFrame) else rows[start:stop]


class _ModelWorker:
    """A process of `Spread`."""

    def __init__(self, model: Any) -> None:
        torch.set_num_threads(1)
        self.predict_rows = getattr(model, "predict_proba", None) or getattr(model, "predict", None) or model

    def predict(self, rows: Any) -> NDArray[Any]:
        return np.asarray(self.predict_rows(rows))


def _check_answers(address: str) -> None:
    """Check that something listens at an address. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise InputError(f"no Ray cluster at {address!r}: {error}") from error
