"""What was computed once is kept under a key of its settings: a run that was interrupted goes on where it was."""

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
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.players import Partition
from fastshapley.data.table_schema import Schema
from fastshapley.errors import FileFormatError
from fastshapley.export import file_format as persistence
from fastshapley.support.atomic_files import write_atomically, write_text
from fastshapley.support.optional import require
from fastshapley.training.checkpoint import Checkpoint, fingerprint
from fastshapley.value_functions import BaseGame

Arrays = dict[str, NDArray[Any]]


class Store:
    """Arrays in a folder, by kind and settings. Loading never executes anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, kind: str, settings: Mapping[str, Any]) -> bool:
        return self._path(kind, settings).exists()

    def remember(
        self, kind: str, settings: Mapping[str, Any], compute: Callable[[Checkpoint], Mapping[str, Any]]
    ) -> Arrays:
        """What ``compute`` gave for these settings, now or before.

        It is handed a place for unfinished work, which is cleared once it is done.
        """
        path = self._path(kind, settings)
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            arrays = {name: np.asarray(value) for name, value in compute(Checkpoint(unfinished)).items()}
            if objects := [name for name, array in arrays.items() if array.dtype.hasobject]:
                raise ValueError(f"{objects} are no arrays of numbers or text")
            description = path.with_suffix(".json")
            write_text(description, _text(settings))
            write_atomically(path, lambda p: _save(p, arrays))
            shutil.rmtree(unfinished, ignore_errors=True)
        return _load(path)

    def _path(self, kind: str, settings: Mapping[str, Any]) -> Path:
        return self.folder / kind / f"{fingerprint(_text(settings))[:20]}.npz"


@cache
def revision(modules: tuple[str, ...], packages: tuple[str, ...]) -> str:
    """A hash of our code in some modules, and of the versions of packages: of what makes a result."""
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
    """A fitted game as arrays that a store holds."""
    config, tensors = persistence.describe_game(game)
    return {"config": json.dumps(config)} | {f"tensor.{name}": tensor.numpy() for name, tensor in tensors.items()}


def game_from(arrays: Arrays, schema: Schema | ImageSchema, players: Partition, network: Any = None) -> BaseGame:
    """The game of `game_arrays`; for images, ``network`` has the layers of its own."""
    tensors = {name[7:]: torch.from_numpy(array) for name, array in arrays.items() if name.startswith("tensor.")}
    config, place = json.loads(str(arrays["config"])), torch.device("cpu")
    game: BaseGame = persistence.build_game(config, tensors, schema, players, None, network, place)
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
        raise FileFormatError(f"{path} cannot be read ({error}): delete it, and it is computed again") from error
