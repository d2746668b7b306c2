"""Write files atomically: a file is complete, or it is not there."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastshapley.errors import InputError

_PREFIX = ".fastshapley"  # start of the names of temporary files
# Errors of a full disk, a used-up quota, and a limit of the size of files.
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a temporary file beside ``path``, then move it to ``path``.

    A file that is replaced keeps its mode, and a link keeps pointing to it. If writing fails, the old file stays
    and the temporary file is removed. What a killed process left is removed by the next write in that folder.

    Parameters
    ----------
    path : Path
        The file to write. Missing parent folders are created.
    write : callable
        Function that is called with the path of an empty temporary file and fills it.

    Raises
    ------
    InputError
        If ``path`` is a device or a pipe.
    OSError
        If the file cannot be written. If the disk is full, the message says so and names the file.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise InputError(f"{path} is a device or a pipe: choose a file, which can be replaced by a complete one")
    with _naming_full_disk(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(target.parent)
        old = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        try:
            temporary.touch(0o666 if old is None else 0o600, exist_ok=False)
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if old is not None:
                temporary.chmod(old)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)


def create_text(path: Path, text: str) -> bool:
    """Write a text file in UTF-8 if there is none, and return whether there was none.

    Of several processes that do so at once, exactly one creates the file. The others find it complete.

    Parameters
    ----------
    path : Path
        The file to create. Missing parent folders are created.
    text : str
        Its content.
    """
    with _naming_full_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(path.parent)
        try:
            temporary.write_text(text, encoding="utf-8", newline="")
            _create(path, temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
    return True


def _create(path: Path, temporary: Path) -> None:
    """Let a path name a complete file, too; raise FileExistsError if it names one already."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # This file system has no links.
        with path.open("xb") as file:
            file.write(temporary.read_bytes())


def temporary_path(folder: Path) -> Path:
    """Return the path of a new temporary file or folder, and remove those that killed processes left there.

    Parameters
    ----------
    folder : Path
        The folder in which the result is later moved to its place.

    Returns
    -------
    path : Path
        The path. Its name tells the machine and the process.
    """
    here = f"{_PREFIX}.{platform.node()}"
    for left in folder.glob(f"{_PREFIX}.*"):
        machine, _, rest = left.name.rpartition(".")[0].rpartition(".")
        if machine == here and rest.isdecimal() and not _is_running(int(rest)):
            with suppress(OSError):  # Another process may remove it at the same time.
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()
    return folder / f"{here}.{os.getpid()}.{secrets.token_hex(4)}"


def _is_running(process: int) -> bool:
    """Return whether a process of this machine is running; True if that is not known."""
    if os.name != "posix":  # Elsewhere the call would end the process.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@contextmanager
def _naming_full_disk(path: Path) -> Iterator[None]:
    """Say which file could not be written where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        advice = "free some space there, or choose another folder"
        if error.errno == errno.EFBIG:
            advice = "raise the limit of the size of files (ulimit -f), or choose another folder"
        raise OSError(error.errno, f"{error.strerror}, {advice}", str(path)) from error


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
