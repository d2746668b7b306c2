"""The models that a server answers for: graphs from files, which may be replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import TOGETHER, Batcher, Results

logger = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks at the files
_EXPORT = 600.0  # seconds that an export may take
_QUICK = 2e-3  # seconds that a row may take on the event loop, and ten times that many rows together


@dataclass(frozen=True)
class Model:
    """A graph that is answered with: its name, its bytes, and how it is run."""

    name: str
    graph: Graph
    data: bytes
    run: Batcher


class Models(Mapping[str, Model]):
    """The models by name. A file that has changed is read anew; until that has worked, the old one answers.

    ``files`` are graphs (``.onnx``), or explainers that `FastSHAP.save` wrote, which another process exports.
    ``reloaded`` is told a model's name, and whether it could be read again.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        for name in files:
            if not re.fullmatch(r"[\w.-]+", name):
                raise InputError(f"a model cannot be called {name!r}: use letters, digits, '.', '_' and '-'")
        self._files = dict(files)
        self._seen = {name: _written(file) for name, file in self._files.items()}
        self._models = {name: read(name, file) for name, file in self._files.items()}
        self.reloaded: Callable[[str, bool], None] = lambda name, well: None
        self._closed = asyncio.Event()

    @classmethod
    def from_arguments(cls, arguments: Iterable[str]) -> Models:
        """The models of the command line: ``FILE``, which gives its name to the model, or ``NAME=FILE``."""
        files: dict[str, Path] = {}
        for argument in arguments:
            name, equals, path = ("", "", "") if Path(argument).exists() else argument.partition("=")
            file = Path(path if equals else argument)
            name = name if equals else file.stem
            if name in files:
                raise InputError(f"two models are called {name!r}: pass NAME=FILE")
            files[name] = file
        return cls(files)

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    async def watch(self) -> None:
        """Read files again that have changed, until it is closed."""
        while not self._closed.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), _LOOK)
            for name, file in self._files.items():
                written = _written(file)
                if self._closed.is_set() or written is None or written == self._seen[name]:
                    continue
                self._seen[name] = written
                try:
                    model = await asyncio.to_thread(read, name, file)
                except Exception as error:  # whatever it is, the old one goes on
                    logger.error("%s has changed, and cannot be read: the old one goes on: %s", name, error)
                    self.reloaded(name, False)
                    continue
                if model.graph.columns != self._models[name].graph.columns:
                    logger.warning("%s has other columns now: %s", name, model.graph.columns)
                self._models[name] = model
                logger.info("read %s again", name)
                self.reloaded(name, True)

    async def close(self) -> None:
        """Look no more, and leave no export behind."""
        self._closed.set()
        for process in _EXPORTS:
            process.terminate()


_EXPORTS: set[subprocess.Popen[str]] = set()  # under way


def read(name: str, file: Path) -> Model:
    """The model of a graph, or of a saved explainer."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist, or is no file")
    data = file.read_bytes() if file.suffix == ".onnx" else _exported(file)
    try:
        graph = Graph(data)
    except FileFormatError as error:
        raise FileFormatError(f"{file}: {error}") from error

    def compute(*arrays: Array) -> Results:
        """The graph's results, and where some are no numbers, for each row whether they are: ``finite``."""
        found: Results = dict(graph(*arrays))
        values, predictions = found["shap_values"], found["predictions"]
        # a sum of squares is finite if all of them are, and is quickest to look at
        if not all(math.isfinite(np.vdot(part, part)) for part in (values, predictions)):
            found["finite"] = np.isfinite(values.sum((1, 2)) + predictions.sum(1))
        return found

    return Model(name, graph, data, Batcher(compute, quick=_is_quick(graph)))


def _exported(file: Path) -> bytes:
    """The graph of a saved explainer, from a process that ends: this one needs no torch."""
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "graph.onnx"
        # -P: nothing is imported from the folder that this happens to be in
        command = [sys.executable, "-P", "-m", "fastshapley", "export", str(file), "--output", str(graph)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            _EXPORTS.add(process)
            try:
                _, said = process.communicate(timeout=_EXPORT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise FileFormatError(f"{file} cannot be served: its export took too long") from None
            finally:
                _EXPORTS.discard(process)
        if process.returncode:
            reason = (said.strip().splitlines() or ["its export was ended"])[-1]
            raise FileFormatError(f"{file} cannot be served: {reason.removeprefix('fastshapley export: ')}")
        return graph.read_bytes()


def _is_quick(graph: Graph) -> bool:
    """Whether the event loop can wait for a run, of one row and of as many as go together."""
    row, outputs = graph.example()
    for rows, most in ((1, _QUICK), (TOGETHER, 10 * _QUICK)):
        arrays = [np.repeat(array, rows, axis=0) for array in (row, outputs) if array is not None]
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            graph(*arrays)
            taken.append(time.perf_counter() - start)
        if min(taken) > most:
            return False
    return True


def _written(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
