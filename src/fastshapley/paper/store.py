"""Results that were computed once are kept under a key of their settings, so that a run can be resumed."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fastshapley
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.errors import FileFormatError
from fastshapley.support.atomic_files import write_atomically, write_text
from fastshapley.support.optional import require
from fastshapley.training.checkpoint import Checkpoint, fingerprint
from fastshapley.value_functions import BaseGame
from fastshapley.value_functions.base_game import GameContext
from fastshapley.value_functions.registry import describe_game, restore_game

Arrays = dict[str, NDArray[Any]]


class Store:
    """Arrays in a folder, by kind and settings. Loading never executes anything.

    Parameters
    ----------
    folder : Path
        Where the arrays are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, kind: str, settings: Mapping[str, Any]) -> bool:
        """Return whether the arrays for these settings are there."""
        return self._path(kind, settings).exists()

    def remember(
        self, kind: str, settings: Mapping[str, Any], compute: Callable[[Checkpoint], Mapping[str, Any]]
    ) -> Arrays:
        """Return the arrays for these settings, and compute them if they are not there.

        Parameters
        ----------
        kind : str
            The name of the computation.
        settings : mapping
            Plain JSON values on which the result depends.
        compute : callable
            Returns the arrays, given a place for unfinished work that is cleared afterwards.

        Raises
        ------
        ValueError
            If a result is not an array of numbers or text.
        """
        path = self._path(kind, settings)
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            arrays = {name: np.asarray(value) for name, value in compute(Checkpoint(unfinished)).items()}
            if objects := [name for name, array in arrays.items() if array.dtype.hasobject]:
                raise ValueError(f"{objects} are not arrays of numbers or text")
            description = path.with_suffix(".json")
            write_text(description, _text(settings))
            write_atomically(path, lambda p: _save(p, arrays))
            shutil.rmtree(unfinished, ignore_errors=True)
        return _load(path)

    def _path(self, kind: str, settings: Mapping[str, Any]) -> Path:
        return self.folder / kind / f"{fingerprint(_text(settings))[:20]}.npz"


@cache
def revision(modules: tuple[str, ...], packages: tuple[str, ...]) -> str:
    """Return a hash of what a result depends on.

    Parameters
    ----------
    modules : tuple of str
        Modules and folders of this package whose code counts.
    packages : tuple of str
        Packages whose versions count.
    """
    folder = Path(fastshapley.__file__).parent
    digest = hashlib.sha256()
    for name in modules:
        for file in sorted([folder / f"{name}.py", *(folder / name).rglob("*.py")]):
            if file.exists():
                digest.update(file.read_bytes())
    for name in packages:
        digest.update(require(name, "paper").__version__.encode())
    return digest.hexdigest()[:16]


def game_arrays(game: BaseGame) -> dict[str, Any]:
    """Return a fitted game as arrays for a store."""
    config, tensors = describe_game(game)
    return {"config": json.dumps(config)} | {f"tensor.{name}": tensor.numpy() for name, tensor in tensors.items()}


def game_from(arrays: Arrays, schema: Schema, players: Partition, network: Any = None) -> BaseGame:
    """Return the game of `game_arrays`.

    Parameters
    ----------
    arrays : dict
        What `game_arrays` returned, and possibly others.
    schema : Schema
        The layout of the rows.
    players : Partition
        The players.
    network : nn.Module, optional
        A network with the layers of a surrogate for images.
    """
    tensors = {name[7:]: torch.from_numpy(array) for name, array in arrays.items() if name.startswith("tensor.")}
    context = GameContext(schema, players, torch.device("cpu"), given=network)
    game: BaseGame = restore_game(json.loads(str(arrays["config"])), tensors, context)
    return game


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=1, sort_keys=True)


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _load(path: Path) -> Arrays:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise FileFormatError(f"{path} cannot be read ({error}): delete it to compute it again") from error
