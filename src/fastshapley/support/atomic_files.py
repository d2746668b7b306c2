"""Write files atomically: a file is complete, or it is not there."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastshapley.errors import InputError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a temporary file beside ``path``, then move it to ``path``.

    If writing fails, the old file stays and the temporary file is removed.

    Parameters
    ----------
    path : Path
        The file to write. Missing parent folders are created.
    write : callable
        Function that is called with the path of the temporary file and fills it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_output(output: Path, *inputs: str | os.PathLike[str]) -> None:
    """Raise an error if the output file is one of the input files.

    Parameters
    ----------
    output : Path
        The file to write.
    *inputs : path-like
        The files to read.

    Raises
    ------
    InputError
        If ``output`` is the same file as one of ``inputs``.
    """
    for path in map(Path, inputs):
        if path.exists() and output.exists() and output.samefile(path):
            raise InputError(f"--output is {output}, which is also an input: choose another file")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a binary file atomically.

    Parameters
    ----------
    path : Path
        The file to write.
    data : bytes
        Its content.
    """

    def write(temporary: Path) -> None:
        temporary.write_bytes(data)

    write_atomically(path, write)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8.

    Parameters
    ----------
    path : Path
        The file to write.
    text : str
        Its content.
    """
    write_bytes(path, text.encode())


def json_text(value: Any) -> str:
    """Return a value as JSON, with null in place of NaN and infinities.

    Parameters
    ----------
    value : object
        Dictionaries, lists, tuples, strings and numbers.

    Returns
    -------
    text : str
        The JSON text.

    Examples
    --------
    >>> json_text({"error": float("nan"), "rows": (1, 2)})
    '{"error": null, "rows": [1, 2]}'
    """
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
