"""The bytes of an explainer's file without its tensors: the configuration and the digest.

This module does not import torch, so what a file says about its explainer can be shown in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, deserialize

from fastshapley.errors import FileFormatError, InputError
from fastshapley.version import __version__

FORMAT = 3  # Format 1 held tables only.
_FIRST_WITH_DIGEST = 3  # format
_DIGEST = "sha256"  # name of the digest in the configuration, where it comes first
_NO_DIGEST = "0" * 64  # what the digest is computed with
_KEY = "fastshapley"  # name of the configuration in the metadata
_LONGEST_HEADER = 100_000_000  # bytes that safetensors accepts
_READ_BYTES = 1 << 20  # bytes that are read from a stream at once


def metadata_of(config: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of a file with this configuration and a digest of zeros."""
    return {_KEY: json.dumps({_DIGEST: _NO_DIGEST, **config})}


def with_own_digest(data: bytes) -> bytes:
    """Return a file with its digest in the place of the zeros."""
    return _with_digest(data, _NO_DIGEST, hashlib.sha256(data).hexdigest())


def _with_digest(data: bytes, old: str, new: str) -> bytes:
    """Return a file with another digest."""
    name = f'{{\\"{_DIGEST}\\": \\"'  # JSON inside of JSON
    return data.replace(f"{name}{old}".encode(), f"{name}{new}".encode(), 1)


def read_config(path: Path) -> dict[str, Any]:
    """Return the configuration in a file: everything but the tensors. It needs no model.

    Parameters
    ----------
    path : Path
        The file of an explainer.

    Raises
    ------
    FileFormatError
        If the file is damaged, is of another kind or of a newer format.
    """
    data = read_file(path)
    with naming_other_files(path):
        deserialize(data)
    return configuration(data, path)


@contextmanager
def naming_other_files(where: Any) -> Iterator[None]:
    """Say which file is not one of safetensors, where it is parsed inside."""
    try:
        yield
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        if str(where).endswith(".onnx"):
            raise FileFormatError(
                f"{where} is a graph, for serve and page: pass the file that it was exported from"
            ) from None
        raise FileFormatError(f"{where} is cut short, damaged or not an explainer file ({error})") from error


def read_file(file: str | os.PathLike[str] | IO[bytes]) -> bytes:
    """Return all bytes of a file; of a stream, those that `save` wrote, so that others may follow."""
    if not isinstance(file, str | os.PathLike):
        check_binary(file)
        start = _exactly(file, 8)
        header = _exactly(file, min(int.from_bytes(start, "little"), _LONGEST_HEADER))
        return start + header + _exactly(file, _size(header))
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file that FastSHAP.save wrote")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return path.read_bytes()


def _exactly(file: IO[bytes], size: int) -> bytes:
    """Return ``size`` bytes, or fewer if the stream ends.

    A pipe returns a part at a time, and a damaged header asks for too many bytes.
    """
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, _READ_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def check_binary(file: Any) -> None:
    """Raise an error if an object is neither a path nor a stream that is open in binary mode."""
    if isinstance(file, io.TextIOBase) or not (hasattr(file, "read") or hasattr(file, "write")):
        raise InputError(
            f"path is {file!r}: pass a path, or a file that is open in binary mode, such as open(path, 'rb')"
        )


def _size(header: bytes) -> int:
    """Return the number of bytes that follow the header of safetensors; 0 for something else."""
    try:
        return max(
            int(entry["data_offsets"][1]) for name, entry in json.loads(header).items() if name != "__metadata__"
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0


def configuration(data: bytes, where: Any) -> dict[str, Any]:
    """Return the configuration in the bytes of a file of safetensors, and check the digest.

    Parameters
    ----------
    data : bytes
        The whole file.
    where : object
        The name of the file, for error messages.

    Raises
    ------
    FileFormatError
        If the file is damaged, is of another kind or of a newer format.
    """
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    if _KEY not in metadata:
        raise FileFormatError(f"{where} is a safetensors file, but not one that FastSHAP.save wrote")
    try:
        config: dict[str, Any] = json.loads(metadata[_KEY])
        written, version, digest = int(config["format"]), config["version"], str(config.get(_DIGEST))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{where} is damaged: its configuration cannot be read ({error})") from error
    if written > FORMAT:
        raise FileFormatError(
            f"{where} was written by fastshapley {version} in format {written}; this is {__version__}, which reads "
            f"formats up to {FORMAT}: upgrade fastshapley"
        )
    if written >= _FIRST_WITH_DIGEST or _DIGEST in config:
        _check_digest(data, digest, where)
    return config


def _check_digest(data: bytes, digest: str, where: Any) -> None:
    if hashlib.sha256(_with_digest(data, digest, _NO_DIGEST)).hexdigest() != digest:
        raise FileFormatError(
            f"{where} is damaged: its content is not what FastSHAP.save wrote (the SHA-256 digest differs). "
            "Copy or save it again"
        )
