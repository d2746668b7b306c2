"""Packages that only some features need."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {module.partition('.')[0]}: install it with pip install 'fastshapley[{extra}]'"
        ) from error
