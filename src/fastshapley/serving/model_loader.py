"""Load a model from its file: an exported graph, or a saved explainer that another process exports first."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastshapley.errors import FileFormatError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import MAX_BATCH_ROWS, Batcher, Results

# With -P, Python imports nothing from the current folder.
EXPORT_COMMAND = (sys.executable, "-P", "-m", "fastshapley", "export")
_QUICK_SECONDS = 2e-3  # longest time that one row may take on the event loop; a full batch may take ten times that


@dataclass(frozen=True)
class ServedModel:
    """A model that the server answers for.

    Parameters
    ----------
    name : str
        Name of the model in the addresses.
    graph : Graph
        The exported explainer.
    data : bytes
        Content of the ONNX file, which the page downloads.
    run : Batcher
        Runs the graph for requests.
    """

    name: str
    graph: Graph
    data: bytes
    run: Batcher


class ModelLoader:
    """Loads models, and keeps track of the processes that export saved explainers.

    Parameters
    ----------
    export_timeout : float, default=600.0
        Longest time that one export may take, in seconds.
    export_command : sequence of str, optional
        Command that exports. It is called with the explainer's file, ``--output`` and the graph's file.
    """

    def __init__(self, export_timeout: float = 600.0, export_command: Sequence[str] = EXPORT_COMMAND) -> None:
        self._export_timeout, self._export_command = export_timeout, export_command
        self._exports: set[subprocess.Popen[str]] = set()  # exports that are running

    def load(self, name: str, file: Path) -> ServedModel:
        """Load a model.

        Parameters
        ----------
        name : str
            Name of the model.
        file : Path
            An exported graph (``.onnx``), or an explainer that `FastSHAP.save` wrote.

        Returns
        -------
        model : ServedModel
            The model.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        FileFormatError
            If the file is damaged or cannot be exported.
        """
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist or is not a file")
        data = file.read_bytes() if file.suffix == ".onnx" else self._export(file)
        try:
            graph = Graph(data)
        except FileFormatError as error:
            raise FileFormatError(f"{file}: {error}") from error

        def compute(*arrays: Array) -> Results:
            return run_graph(graph, *arrays)

        return ServedModel(name, graph, data, Batcher(compute, quick=_is_quick(graph)))

    def close(self) -> None:
        """Stop the exports that are running."""
        for process in list(self._exports):
            process.terminate()

    def _export(self, file: Path) -> bytes:
        """Export a saved explainer in another process, because this one must not import torch."""
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / "graph.onnx"
            command = [*self._export_command, str(file), "--output", str(graph)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
                self._exports.add(process)
                try:
                    _, errors = process.communicate(timeout=self._export_timeout)
                except subprocess.TimeoutExpired:
                    process.kill()
                    reason = f"its export took more than {self._export_timeout:g} seconds"
                    raise FileFormatError(f"{file} cannot be served: {reason}") from None
                finally:
                    self._exports.discard(process)
            if process.returncode:
                reason = (errors.strip().splitlines() or ["its export was stopped"])[-1]
                raise FileFormatError(f"{file} cannot be served: {reason.removeprefix('fastshapley export: ')}")
            return graph.read_bytes()


def run_graph(graph: Graph, *arrays: Array) -> Results:
    """Run a graph and check that its results are finite.

    Parameters
    ----------
    graph : Graph
        The graph.
    *arrays : ndarray
        Its inputs.

    Returns
    -------
    results : dict of str to ndarray
        The graph's results. If some are not finite, ``finite`` of shape (n,) tells which rows are.
    """
    results: Results = dict(graph(*arrays))
    values, predictions = results["shap_values"], results["predictions"]
    # The sum of squares is finite if all numbers are, and it is the fastest test.
    if not all(math.isfinite(np.vdot(part, part)) for part in (values, predictions)):
        results["finite"] = np.logical_and(np.isfinite(values).all((1, 2)), np.isfinite(predictions).all(1))
    return results


def _is_quick(graph: Graph) -> bool:
    """Measure whether a run is fast enough for the event loop, for one row and for a full batch."""
    row, outputs = graph.example()
    for rows, limit in ((1, _QUICK_SECONDS), (MAX_BATCH_ROWS, 10 * _QUICK_SECONDS)):
        arrays = [np.repeat(array, rows, axis=0) for array in (row, outputs) if array is not None]
        durations = []
        for _ in range(3):
            start = time.perf_counter()
            graph(*arrays)
            durations.append(time.perf_counter() - start)
        if min(durations) > limit:
            return False
    return True
