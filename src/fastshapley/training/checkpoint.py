"""Unfinished work on disk, so that a run that was killed can be resumed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from fastshapley.errors import TrainingError
from fastshapley.support.atomic_files import create_text, write_atomically
from fastshapley.support.frames import as_pandas

_START = b"fastshapley state\n"  # of a file with a state; its digest and the state as torch writes it follow
_DIGEST_BYTES = hashlib.sha256().digest_size
SAVE_INTERVAL = 5.0  # seconds between two saved states of a network in training


def fingerprint(*parts: Any) -> str:
    """Return a hash of tensors, and of anything with a stable ``repr``."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.detach().cpu().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def stable_text(value: Any) -> str:
    """Return a setting as text that is the same in every process, and different for different settings."""
    value = as_pandas(value, "a setting")
    if isinstance(value, nn.Module):
        return str(value) + fingerprint(*value.state_dict().values())
    if isinstance(value, BaseEstimator):
        return type(value).__name__ + str({k: stable_text(v) for k, v in value.get_params(deep=False).items()})
    if isinstance(value, pd.DataFrame):
        return fingerprint(pd.util.hash_pandas_object(value).tolist())
    if is_dataclass(value):
        return type(value).__name__ + str({f.name: stable_text(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, np.ndarray | Tensor):
        return fingerprint(str(value.dtype), value.tolist())
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text


def same_outputs(before: Tensor, after: Tensor) -> bool:
    """Return whether outputs for the same rows come from the same model.

    Outputs are compared up to rounding, which depends on the number of threads.
    """
    return before.shape == after.shape and torch.allclose(before, after, rtol=1e-4, atol=1e-6, equal_nan=True)


class Checkpoint:
    """Named states in a directory. Loading one never executes it.

    Parameters
    ----------
    directory : str, os.PathLike or None
        Where the states are kept. With None nothing is kept.
    interval : float, optional
        Seconds between two saved states of a network in training, by default `SAVE_INTERVAL`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, interval: float | None = None) -> None:
        self.directory = None if directory is None else Path(directory)
        self.interval = SAVE_INTERVAL if interval is None else interval

    def claim(self, key: str, seed: int) -> int:
        """Tie the directory to one run, and return the seed of that run.

        Raises
        ------
        TrainingError
            If the directory belongs to another run.
        """
        if self.directory is None:
            return seed
        path = self.directory / "run.json"
        if not path.exists() and create_text(path, json.dumps({"key": key, "seed": seed})):
            return seed
        try:
            run = json.loads(path.read_text())
            known, seed = run["key"], int(run["seed"])
        except (ValueError, KeyError, TypeError):
            raise TrainingError(
                f"checkpoint {self.directory}: run.json cannot be read: delete the directory"
            ) from None
        if known != key:
            raise self.refusal()
        return seed

    def of_share(self, name: str, key: str) -> Checkpoint:
        """Return a checkpoint in a subdirectory, for one process's share of the rows.

        States of another share are deleted.
        """
        if self.directory is None:
            return self
        own = Checkpoint(self.directory / name, self.interval)
        try:
            own.claim(key, 0)
        except TrainingError:
            shutil.rmtree(self.directory / name)
            own.claim(key, 0)
        return own

    def claim_outputs(self, y: Tensor) -> None:
        """Tie the directory to a model, by its outputs for some rows."""
        known = self.load("model")
        if known is None:
            self.save("model", {"y": y.cpu()})
        elif not same_outputs(known["y"], y.cpu()):
            raise self.refusal()

    def refusal(self) -> TrainingError:
        """Return the error for a run that the directory does not belong to."""
        return TrainingError(
            f"checkpoint {self.directory} belongs to a run with other data, another model or other settings: "
            "choose another directory, or delete this one"
        )

    def load(self, name: str) -> dict[str, Any] | None:
        """Return the state saved under ``name``, or None."""
        if self.directory is None or not (path := self.directory / f"{name}.pt").exists():
            return None
        try:
            return _read(path)
        except Exception as error:
            raise TrainingError(
                f"checkpoint {path} cannot be read ({error}): delete it to redo that part"
            ) from error

    def save(self, name: str, state: dict[str, Any]) -> None:
        """Save a state under ``name``, atomically."""
        if self.directory is not None:
            write_atomically(self.directory / f"{name}.pt", lambda path: _write(path, state))


def _write(path: Path, state: dict[str, Any]) -> None:
    with path.open("wb+") as file:  # If torch opens the file, the error of a full disk is another one.
        file.write(_START + bytes(_DIGEST_BYTES))
        torch.save(state, file)
        file.seek(len(_START) + _DIGEST_BYTES)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(len(_START))
        file.write(digest)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        if file.read(len(_START)) != _START:  # The first files have no digest.
            return torch.load(path, weights_only=True)
        digest, data = file.read(_DIGEST_BYTES), file.read()
    if hashlib.sha256(data).digest() != digest:
        raise ValueError("it is damaged: the SHA-256 digest differs")
    return torch.load(io.BytesIO(data), weights_only=True)
