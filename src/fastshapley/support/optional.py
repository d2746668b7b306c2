"""Import packages that only some features need."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or name the extra that installs it.

    Parameters
    ----------
    module : str
        Name of the module, such as ``"onnxruntime"``.
    extra : str
        Extra of this package that installs the module.

    Returns
    -------
    module : ModuleType
        The imported module.

    Raises
    ------
    ImportError
        If the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}: install it with pip install 'fastshapley[{extra}]'") from error
