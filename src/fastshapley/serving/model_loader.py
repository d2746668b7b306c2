"""Load a model from its file: an exported graph, or a saved explainer that another process exports first.

Another process also tries each graph first: see `graph_trial`.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from fastshapley.errors import FileFormatError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import Batcher, Results
from fastshapley.serving.graph_trial import QUICK, TRIAL_COMMAND

# With -P, Python imports nothing from the current folder.
EXPORT_COMMAND = (sys.executable, "-P", "-m", "fastshapley", "export")
_TOLERANCE = 1e-6  # largest gap between the sum of the values and the prediction, relative to the prediction


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
    """Loads models, and keeps track of the processes and graphs that run.

    Parameters
    ----------
    export_timeout : float, default=600.0
        Longest time that one export may take, in seconds.
    export_command : sequence of str, optional
        Command that exports. It is called with the explainer's file, ``--output`` and the graph's file.
    trial_timeout : float, default=60.0
        Longest time that a new graph may take for some examples, in seconds.
    """

    def __init__(
        self,
        export_timeout: float = 600.0,
        export_command: Sequence[str] = EXPORT_COMMAND,
        trial_timeout: float = 60.0,
    ) -> None:
        self._export_timeout, self._export_command = export_timeout, export_command
        self._trial_timeout = trial_timeout
        self._processes: set[subprocess.Popen[bytes]] = set()  # exports and trials that are running
        self._graphs: WeakSet[Graph] = WeakSet()  # also graphs that were replaced while they ran

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
            If the file is damaged, cannot be exported, or its graph does not end in time.
        """
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist or is not a file")
        data = file.read_bytes() if file.suffix == ".onnx" else self._export(file)
        quick = self._is_quick(data, file)
        graph = Graph(data)
        self._graphs.add(graph)

        def compute(*arrays: Array) -> Results:
            return run_graph(graph, *arrays)

        return ServedModel(name, graph, data, Batcher(compute, quick=quick))

    def stop_runs(self, seconds: float) -> None:
        """Stop runs of all loaded graphs that have taken longer than this. They raise an error.

        Parameters
        ----------
        seconds : float
            Longest time of a run, in seconds.
        """
        for graph in list(self._graphs):
            graph.stop_runs(seconds)

    def close(self) -> None:
        """Stop the exports, trials and graphs that are running."""
        for process in list(self._processes):
            process.kill()
        self.stop_runs(0.0)

    def _export(self, file: Path) -> bytes:
        """Export a saved explainer in another process, because this one must not import torch."""
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / "graph.onnx"
            self._run(
                [*self._export_command, str(file), "--output", str(graph)], file, "export", self._export_timeout
            )
            return graph.read_bytes()

    def _is_quick(self, data: bytes, file: Path) -> bool:
        """Try a graph in another process, and return whether it is fast enough for the event loop."""
        limit = self._trial_timeout
        # The process ends soon even if nobody is left to stop it.
        return self._run([*TRIAL_COMMAND, str(limit + 10)], file, "trial", limit, data) == QUICK

    def _run(self, command: Sequence[str], file: Path, work: str, timeout: float, data: bytes = b"") -> str:
        """Run a process that works on a file, with data as its input, and return what it prints."""
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            self._processes.add(process)
            try:
                output, errors = process.communicate(data, timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                reason = f"its {work} took more than {timeout:g} seconds"
                raise FileFormatError(f"{file} cannot be served: {reason}") from None
            finally:
                self._processes.discard(process)
        if process.returncode:
            reason = (errors.decode(errors="replace").strip().splitlines() or [f"its {work} was stopped"])[-1]
            raise FileFormatError(f"{file} cannot be served: {reason.removeprefix('fastshapley export: ')}")
        return output.decode()


def run_graph(graph: Graph, *arrays: Array) -> Results:
    """Run a graph and check its results: numbers must be finite, and values must sum to the predictions.

    For numbers far from the training data, a network can return values so large that their sum is all rounding.

    Parameters
    ----------
    graph : Graph
        The graph.
    *arrays : ndarray
        Its inputs.

    Returns
    -------
    results : dict of str to ndarray
        The graph's results. If some are not valid, ``valid`` of shape (n,) tells which rows are.
    """
    results: Results = dict(graph(*arrays))
    values, base, predictions = (results[name] for name in ("shap_values", "base_values", "predictions"))
    # The sum of squares is finite if all numbers are, and it is the fastest test.
    finite = all(math.isfinite(np.vdot(part, part)) for part in (values, predictions))
    if not finite or (graph.normalized and not _sums(values, base, predictions).all()):
        with np.errstate(invalid="ignore", over="ignore"):
            valid = np.logical_and(np.isfinite(values).all((1, 2)), np.isfinite(predictions).all(1))
            results["valid"] = valid & _sums(values, base, predictions) if graph.normalized else valid
    return results


def _sums(values: Array, base: Array, predictions: Array) -> NDArray[np.bool_]:
    """Return the rows (n,) whose values and base values sum to their predictions."""
    gaps = np.abs(values.sum(1) + base - predictions)
    good: NDArray[np.bool_] = (gaps <= _TOLERANCE * np.maximum(1.0, np.abs(predictions))).all(1)
    return good
