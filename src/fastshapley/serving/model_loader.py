"""Load a model from its file: an exported graph, or a saved explainer that another process exports first.

Another process also tries each graph first: see `graph_trial`.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import Batcher, Results
from fastshapley.serving.graph_cache import GraphCache
from fastshapley.serving.graph_trial import QUICK, TRIAL_COMMAND
from fastshapley.serving.predictor import Predictor
from fastshapley.serving.user_model import UserModel

# With -P, Python imports nothing from the current folder.
EXPORT_COMMAND = (sys.executable, "-P", "-m", "fastshapley", "export")
_VERSION_DIGITS = 16  # of the digest
_TOLERANCE = 1e-6  # largest gap between the sum of the values and the prediction, relative to the prediction


@dataclass(frozen=True)
class OutputsSource:
    """Where the server finds the explained model's own output for rows whose request does not have it.

    Parameters
    ----------
    model : Path, optional
        ONNX file of the model.
    predictor : Predictor, optional
        Another server, which has the model.
    """

    model: Path | None = None
    predictor: Predictor | None = None


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
    source : OutputsSource, default=OutputsSource()
        Where the server finds the model's outputs.
    digest : str, default=""
        SHA-256 digest of the explainer's file.
    """

    name: str
    graph: Graph
    data: bytes
    run: Batcher
    source: OutputsSource = OutputsSource()
    digest: str = ""

    @property
    def version(self) -> str:
        """The beginning of the digest, which names this version of the explainer."""
        return self.digest[:_VERSION_DIGITS]

    @property
    def finds_outputs(self) -> bool:
        """Whether the server finds the model's outputs itself if a request does not have them."""
        return self.outputs_from in ("model", "predictor")

    @property
    def outputs_from(self) -> Literal["model", "predictor", "request"] | None:
        """Where the model's outputs come from. None if the graph takes none."""
        if not self.graph.takes_outputs:
            return None
        if self.source.model is not None:
            return "model"
        return "request" if self.source.predictor is None else "predictor"

    @property
    def not_ready(self) -> str | None:
        """Why the model is not ready, or None if it is."""
        predictor = self.source.predictor
        return None if predictor is None or predictor.ready else predictor.reason


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
    sources : mapping of str to OutputsSource, optional
        Where the server finds the outputs of the explained models, by name.
    """

    def __init__(
        self,
        export_timeout: float = 600.0,
        export_command: Sequence[str] = EXPORT_COMMAND,
        trial_timeout: float = 60.0,
        sources: Mapping[str, OutputsSource] | None = None,
    ) -> None:
        self._export_timeout, self._export_command = export_timeout, export_command
        self._trial_timeout, self._sources = trial_timeout, dict(sources or {})
        self._processes: set[subprocess.Popen[bytes]] = set()  # exports and trials that are running
        self._graphs: WeakSet[Graph | UserModel] = WeakSet()  # also graphs that were replaced while they ran

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
        InputError
            If the explainer cannot use the outputs of the model that it was given.
        """
        if not file.is_file():
            raise FileNotFoundError(f"{file} does not exist or is not a file")
        source = self._sources.get(name, OutputsSource())
        if source.model is not None and not source.model.is_file():
            raise FileNotFoundError(f"--model is {str(source.model)!r}, which does not exist or is not a file")
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if file.suffix != ".onnx":
            data = self._exported(file, digest)
        model_data = b"" if source.model is None else source.model.read_bytes()
        quick = self._is_quick(data, file, model_data)
        graph = Graph(data)
        if source != OutputsSource() and (not graph.takes_outputs or graph.sums_to == "game"):
            raise InputError(
                f"{name} explains {'a surrogate' if not graph.takes_outputs else 'a game of your own'}, which does "
                "not take the model's output: serve it without --model and --predictor, which may begin with the "
                "NAME= of the explainer that they are for"
            )
        self._graphs.add(graph)
        if source.model is None:
            run = Batcher(lambda *arrays: run_graph(graph, *arrays), quick=quick)
            return ServedModel(name, graph, data, run, source, digest)
        user_model = UserModel(model_data, graph)
        self._graphs.add(user_model)

        def compute(rows: Array, outputs: Array) -> Results:
            return run_graph(graph, rows, with_outputs(rows, outputs, user_model))

        return ServedModel(name, graph, data, Batcher(compute, quick=quick), source, digest)

    def files(self, name: str, file: Path) -> tuple[Path, ...]:
        """Return the files that a model is loaded from.

        Parameters
        ----------
        name : str
            Name of the model.
        file : Path
            The file of its explainer.

        Returns
        -------
        files : tuple of Path
            This file, and that of the explained model if the server has it.
        """
        model = self._sources.get(name, OutputsSource()).model
        return (file,) if model is None else (file, model)

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

    def _exported(self, file: Path, digest: str) -> bytes:
        """Return the graph of a saved explainer, from the cache beside its file if there is one."""
        cache = GraphCache(file, digest)
        data = cache.read()
        if data is None:
            data = self._export(file)
            if hashlib.sha256(file.read_bytes()).hexdigest() == digest:  # It was not replaced meanwhile.
                cache.write(data)
        return data

    def _export(self, file: Path) -> bytes:
        """Export a saved explainer in another process, because this one must not import torch."""
        with tempfile.TemporaryDirectory() as folder:
            graph = Path(folder) / "graph.onnx"
            self._run(
                [*self._export_command, str(file), "--output", str(graph)], file, "export", self._export_timeout
            )
            return graph.read_bytes()

    def _is_quick(self, data: bytes, file: Path, model: bytes) -> bool:
        """Try a graph and its model in another process, and return whether they suit the event loop."""
        limit = self._trial_timeout
        # The process ends soon even if nobody is left to stop it.
        command = [*TRIAL_COMMAND, str(limit + 10), str(len(data))]
        return self._run(command, file, "trial", limit, data + model) == QUICK

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


def with_outputs(rows: Array, outputs: Array, model: UserModel) -> Array:
    """Return the outputs of rows, from the user's model where they are not known.

    Parameters
    ----------
    rows : ndarray
        Encoded rows.
    outputs : ndarray of shape (n, outputs)
        Known outputs. A row with NaN is not known.
    model : UserModel
        The user's model.

    Returns
    -------
    outputs : ndarray of shape (n, outputs)
        The outputs.
    """
    unknown = np.isnan(outputs).any(1)
    if unknown.all():
        return model(rows)
    if unknown.any():
        outputs = outputs.copy()
        outputs[unknown] = model(rows[unknown])
    return outputs


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
