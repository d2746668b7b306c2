"""Files that are there whole, or not at all, and text for them."""

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
    """Let ``write`` fill a temporary file beside ``path``, then move it there: never a half-written file."""
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
    """Refuse to write over a file that is read."""
    for path in map(Path, inputs):
        if path.exists() and output.exists() and output.samefile(path):
            raise InputError(f"--output is {output}, which is read too: name another file")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, or leave what was there."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(data)

    write_atomically(path, write)


def write_text(path: Path, text: str) -> None:
    """Write a text file, or leave what was there."""
    write_bytes(path, text.encode())


def json_text(value: Any) -> str:
    """JSON, with null for what it has no word for: a figure that could not be measured.

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
