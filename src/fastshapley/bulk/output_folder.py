"""The folder that a bulk job writes to: who it belongs to, and which parts are in it."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from pyarrow import fs

from fastshapley.bulk.file_parts import Part
from fastshapley.errors import InputError
from fastshapley.training.checkpoint import same_outputs
from fastshapley.value_functions.sums import SumsTo

logger = logging.getLogger(__name__)

_MANIFEST = "_fastshapley.json"  # readers of Parquet ignore names that start with an underscore
_SUCCESS = "_SUCCESS"
_ABANDONED_AFTER = 3600 * 10**9  # nanoseconds after which an unfinished file is no longer being written
_PART_FILE = re.compile(r"part-\d+-\d+-[0-9a-f]{8}\.parquet")


@dataclass(frozen=True)
class Claim:
    """What ties a folder to a run.

    Parameters
    ----------
    key : str
        A hash of everything that the values depend on, except for the contents of the files and the model.
    outputs : list or None
        The outputs of the model for a few rows, or None if values do not come from calls of the model.
    files : tuple of str
        The paths of the files, for readers of the manifest.
    part_rows : int
        Approximate number of rows per part, for readers of the manifest.
    sums_to : {"model", "surrogate", "game"}
        Whose output the values sum to.
    """

    key: str
    outputs: list[Any] | None
    files: tuple[str, ...]
    part_rows: int
    sums_to: SumsTo


@dataclass(frozen=True)
class OutputFolder:
    """A folder of one Parquet file per part.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system of the folder.
    path : str
        The path on that file system.
    token : str, optional
        Part of the names of the unfinished files of this run.
    """

    system: fs.FileSystem
    path: str
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    def file_of(self, part: Part) -> str:
        """Return the path of the file that holds the values of a part."""
        return f"{self.path}/part-{part.name}.parquet"

    def temporary_file(self, part: Part) -> str:
        """Return a new path for the file of a part while it is written."""
        return f"{self.path}/_{part.name}.{self.token}.{secrets.token_hex(4)}"

    def claim(self, claim: Claim) -> None:
        """Tie the folder to a run; create the folder if it does not exist.

        Parameters
        ----------
        claim : Claim
            What identifies the run.

        Raises
        ------
        InputError
            If the folder is a file, belongs to another run, or holds other files.
        """
        manifest = f"{self.path}/{_MANIFEST}"
        if self.system.get_file_info(self.path).type == fs.FileType.File:
            raise InputError(f"output is {self.path}, which is a file: choose a folder")
        self.system.create_dir(self.path, recursive=True)
        if self.system.get_file_info(manifest).type == fs.FileType.File:
            self._check_manifest(manifest, claim)
            return
        names = [info.base_name for info in self.system.get_file_info(fs.FileSelector(self.path))]
        # A run that was killed while it wrote the manifest leaves a temporary file, which is not in the way.
        if others := sorted(name for name in names if not name.startswith((".", f"{_MANIFEST}."))):
            raise InputError(f"output {self.path} is not empty ({others[:3]}): choose another folder")
        temporary = f"{manifest}.{secrets.token_hex(4)}"
        content = {
            "key": claim.key,
            "files": claim.files,
            "part_rows": claim.part_rows,
            "sums_to": claim.sums_to,
            "answers": claim.outputs,
        }
        with self.system.open_output_stream(temporary) as file:
            file.write(json.dumps(content).encode())
        self.system.move(temporary, manifest)

    def _check_manifest(self, manifest: str, claim: Claim) -> None:
        with self.system.open_input_stream(manifest) as file:
            try:
                content = json.loads(file.read())
                key, outputs, sums_to = content["key"], content.get("answers"), content.get("sums_to")
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(f"{manifest} cannot be read: choose another folder, or delete this one") from None
        if key != claim.key:
            raise InputError(
                f"output {self.path} belongs to a run with other files, another explainer or other settings: "
                "choose another folder, or delete this one"
            )
        if sums_to not in (None, claim.sums_to):  # The first manifests do not say it.
            how = "with" if sums_to == "model" else "without"
            raise InputError(
                f"output {self.path} has values that sum to the output of the {sums_to}, and those of this run sum "
                f"to the output of the {claim.sums_to}: load the explainer {how} its model, choose another folder, "
                "or delete this one"
            )
        if outputs is None or claim.outputs is None:
            return
        if not same_outputs(torch.tensor(outputs), torch.tensor(claim.outputs)):
            raise InputError(
                f"output {self.path} belongs to a run with another model, which had other outputs: pass that "
                "model, choose another folder, or delete this one"
            )

    def missing(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts that are not in the folder; delete those of files that have changed.

        Parameters
        ----------
        parts : sequence of Part
            All parts of the run.

        Returns
        -------
        list of Part
            The parts that are still to be explained.
        """
        present = {info.base_name for info in self.system.get_file_info(fs.FileSelector(self.path))}
        names = [os.path.basename(self.file_of(part)) for part in parts]
        stale = {name for name in present if _PART_FILE.fullmatch(name)} - set(names)
        missing = [part for part, name in zip(parts, names, strict=True) if name not in present]
        if stale:
            logger.warning(
                "%d parts belong to files that have changed: they are deleted and explained again", len(stale)
            )
        for name in [_SUCCESS] * (_SUCCESS in present and bool(missing or stale)) + sorted(stale):
            self.system.delete_file(f"{self.path}/{name}")
        return missing

    def publish(self, temporary: str, part: Part) -> None:
        """Move the file of a part to its place, once it is complete."""
        if isinstance(self.system, fs.LocalFileSystem):
            # Without fsync a power failure could keep the name of the file and lose its bytes.
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        self.system.move(temporary, self.file_of(part))

    def discard(self, temporary: str) -> None:
        """Delete an unfinished file, if it is there."""
        with suppress(OSError):
            self.system.delete_file(temporary)

    def finish(self) -> None:
        """Mark the run as complete, and delete what lost workers have left.

        Unfinished files of other runs are deleted only if they are old, since such a run may still be at work.
        """
        with self.system.open_output_stream(f"{self.path}/{_SUCCESS}"):
            pass
        for info in self.system.get_file_info(fs.FileSelector(self.path)):
            name = info.base_name
            old = info.mtime_ns is not None and time.time_ns() - info.mtime_ns > _ABANDONED_AFTER
            if name.startswith("_") and name not in (_MANIFEST, _SUCCESS) and (old or f".{self.token}." in name):
                self.discard(info.path)
