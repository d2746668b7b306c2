"""Limits for what a file can make this process build: nothing is larger than the file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fastshapley.errors import FileFormatError

_NOT_SIZES = frozenset(("seed", "draws"))  # numbers that may be larger than the file


def check_sizes(described: Any, limit: int) -> None:
    """Check that a configuration names no size above a limit.

    Parameters
    ----------
    described : object
        Plain JSON values.
    limit : int
        The largest size that is possible: each entry of a tensor takes a byte or more.

    Raises
    ------
    FileFormatError
        If a size is larger.
    """
    if isinstance(described, dict):
        for name, value in described.items():
            if name not in _NOT_SIZES:
                check_sizes(value, limit)
    elif isinstance(described, list):
        for value in described:
            check_sizes(value, limit)
    elif isinstance(described, int) and described > limit:
        raise FileFormatError(f"the file is damaged: it has {limit} bytes, but names a size of {described}")


@contextmanager
def at_most_parameters(limit: int) -> Iterator[None]:
    """Refuse to build networks with more weights than a file can hold, before they get values.

    Parameters
    ----------
    limit : int
        The largest number of weights of all networks that this thread builds inside.

    Raises
    ------
    FileFormatError
        If networks have more weights.
    """
    left, thread = limit, threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal left
        if parameter is None or threading.get_ident() != thread:
            return
        left -= max(1, parameter.numel())
        if left < 0:
            raise FileFormatError(
                f"the file is damaged: it has {limit} bytes, but its networks have more weights than that"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
