"""The models that a server answers for. Their files may be replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from fastshapley.errors import InputError
from fastshapley.serving.model_loader import ModelLoader, ServedModel
from fastshapley.serving.predictor import Predictor

logger = logging.getLogger(__name__)

OnReload = Callable[[str, bool], None]


class ModelStore(Mapping[str, ServedModel]):
    """The models by name.

    Parameters
    ----------
    files : mapping of str to Path
        Graphs (``.onnx``), or explainers that `FastSHAP.save` wrote, by name of the model.
    loader : ModelLoader, optional
        Loads the files.
    poll_seconds : float, default=1.0
        Time between two checks for changed files, in seconds.

    Raises
    ------
    InputError
        If a name cannot be part of an address.
    """

    def __init__(
        self, files: Mapping[str, Path], *, loader: ModelLoader | None = None, poll_seconds: float = 1.0
    ) -> None:
        for name in files:
            if not re.fullmatch(r"[\w.-]+", name):
                raise InputError(f"{name!r} is not a name for a model: use letters, digits, '.', '_' and '-'")
        self._files = dict(files)
        self._loader = loader or ModelLoader()
        self._poll_seconds = poll_seconds
        self._versions = {name: self._file_versions(name) for name in self._files}
        self._models = {name: self._loader.load(name, file) for name, file in self._files.items()}
        self._closed = asyncio.Event()

    @classmethod
    def from_arguments(cls, arguments: Iterable[str]) -> ModelStore:
        """Load the models that the command line names.

        Parameters
        ----------
        arguments : iterable of str
            ``NAME=FILE``, or ``FILE``, whose stem is then the name.

        Returns
        -------
        models : ModelStore
            The models.

        Raises
        ------
        InputError
            If two models have the same name.
        """
        return cls(named_files(arguments))

    def __getitem__(self, name: str) -> ServedModel:
        """Return a model by its name."""
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._models)

    def __len__(self) -> int:
        """Return the number of models."""
        return len(self._models)

    @property
    def predictors(self) -> set[Predictor]:
        """The predictors that the models ask."""
        found = {model.source.predictor for model in self._models.values()}
        return {predictor for predictor in found if predictor is not None}

    async def watch(self, on_reload: OnReload) -> None:
        """Reload files that change, until `close` is called.

        The old model answers until the new one is loaded. If a file cannot be read, the old model stays.

        Parameters
        ----------
        on_reload : callable
            Called with the model's name and whether its file could be read.
        """
        while not self._closed.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._poll_seconds)
            for name, file in self._files.items():
                version = self._file_versions(name)
                if self._closed.is_set() or None in version or version == self._versions[name]:
                    continue
                self._versions[name] = version
                on_reload(name, await self._reload(name, file))

    def stop_runs(self, seconds: float) -> None:
        """Stop runs of graphs that have taken longer than this.

        Parameters
        ----------
        seconds : float
            Longest time of a run, in seconds.
        """
        self._loader.stop_runs(seconds)

    async def close(self) -> None:
        """Stop watching, and stop exports, trials, graphs and calls of predictors that are running."""
        self._closed.set()
        self._loader.close()
        for predictor in self.predictors:
            await predictor.close()

    def _file_versions(self, name: str) -> list[tuple[int, int, int] | None]:
        return [_file_version(file) for file in self._loader.files(name, self._files[name])]

    async def _reload(self, name: str, file: Path) -> bool:
        """Replace one model, and return whether its file could be read."""
        try:
            model = await asyncio.to_thread(self._loader.load, name, file)
        except Exception as error:  # Whatever the error is, the old model must stay.
            logger.error("the file of %s has changed but cannot be read, the old model stays: %s", name, error)
            return False
        if model.graph.columns != self._models[name].graph.columns:
            logger.warning("the columns of %s have changed to %s", name, model.graph.columns)
        self._models[name] = model
        logger.info("reloaded %s", name)
        return True


def named_files(arguments: Iterable[str]) -> dict[str, Path]:
    """Return the files that the command line names.

    Parameters
    ----------
    arguments : iterable of str
        ``NAME=FILE``, or ``FILE``, whose stem is then the name.

    Returns
    -------
    files : dict of str to Path
        The files by name.

    Raises
    ------
    InputError
        If two models have the same name.
    """
    files: dict[str, Path] = {}
    for argument in arguments:
        name, equals, path = ("", "", "") if Path(argument).exists() else argument.partition("=")
        file = Path(path if equals else argument)
        name = name if equals else file.stem
        if name in files:
            raise InputError(f"two models have the name {name!r}: pass NAME=FILE to rename one")
        files[name] = file
    return files


def _file_version(file: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced or written, or None if there is no file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
