"""The models that a server answers for. Their files may be replaced while it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastshapley.errors import InputError
from fastshapley.serving.model_loader import ModelLoader, ServedModel
from fastshapley.serving.predictor import Predictor

logger = logging.getLogger(__name__)

_LONGEST_SETTING = 200  # characters of a setting that the log shows

OnReload = Callable[[str, str], None]


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
    allow_changes : bool, default=False
        Whether a file may be replaced by an explainer with other columns, players, outputs or another link.

    Raises
    ------
    InputError
        If a name cannot be part of an address.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        *,
        loader: ModelLoader | None = None,
        poll_seconds: float = 1.0,
        allow_changes: bool = False,
    ) -> None:
        for name in files:
            if not re.fullmatch(r"[\w.-]+", name):
                raise InputError(f"{name!r} is not a name for a model: use letters, digits, '.', '_' and '-'")
        self._files = dict(files)
        self._loader = loader or ModelLoader()
        self._poll_seconds, self._allow_changes = poll_seconds, allow_changes
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

        The old model answers until the new one is loaded. If a file cannot be read, or its model takes or returns
        something else and that is not allowed, the old model stays.

        Parameters
        ----------
        on_reload : callable
            Called with the model's name and the result: ``"read"``, ``"failed"`` or ``"refused"``.
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

    async def _reload(self, name: str, file: Path) -> str:
        """Replace one model, and return the result for `watch`."""
        try:
            model = await asyncio.to_thread(self._loader.load, name, file)
        except Exception as error:  # Whatever the error is, the old model must stay.
            logger.error("the file of %s has changed but cannot be read, the old model stays: %s", name, error)
            return "failed"
        changes = model_changes(self._models[name], model)
        if changes and not self._allow_changes:
            logger.error(
                "the file of %s has changed, but the new explainer is refused and version %s stays: %s. "
                "To serve it, start the server again, or with --allow-changes",
                name,
                self._models[name].version,
                "; ".join(changes),
            )
            return "refused"
        if changes:
            logger.warning("%s has changed: %s", name, "; ".join(changes))
        self._models[name] = model
        logger.info("reloaded %s, which is now version %s", name, model.version)
        return "read"


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


def model_changes(old: ServedModel, new: ServedModel) -> list[str]:
    """Return what a client would notice if a model replaced another one, apart from other values.

    Parameters
    ----------
    old, new : ServedModel
        The models.

    Returns
    -------
    changes : list of str
        What has changed, with the old and the new setting.
    """
    changes = []
    for what, describe in _CONTRACT.items():
        before, after = describe(old), describe(new)
        if before != after:
            changes.append(f"{what}: {_shortened(before)} before, {_shortened(after)} now")
    return changes


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SETTING else f"{text[:_LONGEST_SETTING]}..."


def _kinds(model: ServedModel) -> list[str]:
    return ["number" if model.graph.categories(name) is None else "category" for name in model.graph.columns]


# What requests and answers depend on. New categories are not in it: a retrained model may know more of them.
_CONTRACT: dict[str, Callable[[ServedModel], Any]] = {
    "columns": lambda model: model.graph.columns,
    "kinds of columns": _kinds,
    "shape of images": lambda model: model.graph.image_shape,
    "players": lambda model: model.graph.players,
    "outputs": lambda model: model.graph.output_names,
    "link": lambda model: model.graph.link,
    "scale of the outputs": lambda model: model.graph.scale,
    "outputs of the model in each request": lambda model: (
        "needed" if model.graph.needs_outputs and not model.finds_outputs else "not needed"
    ),
}


def _file_version(file: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is replaced or written, or None if there is no file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
