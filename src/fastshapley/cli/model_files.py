"""Load models for the command line, from files or by the names of Python objects."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley.errors import FileFormatError, InputError
from fastshapley.export.graph import open_session
from fastshapley.serving.user_model import output_matrix, output_name
from fastshapley.support.optional import require

_PICKLES = (".joblib", ".pkl", ".pickle")


def load_model(source: str, *, trust: bool = False) -> Any:
    """Load a model.

    Parameters
    ----------
    source : str
        A file of joblib, pickle, XGBoost, LightGBM, CatBoost or ONNX, or ``module:name`` for a Python object.
    trust : bool, default=False
        Whether to load a pickle, which can run arbitrary code.

    Returns
    -------
    object
        The model.

    Raises
    ------
    InputError
        If there is no such model, its file has an unknown suffix, or it is a pickle that is not trusted.
    FileFormatError
        If the file cannot be read as a model.
    """
    check_model(source, trust=trust)
    if _is_object(source):
        module, _, name = source.partition(":")
        return _imported(module, name)
    path = Path(source)
    try:
        return _readers()[path.suffix](path)
    except (ImportError, InputError):
        raise
    except Exception as error:  # Packages raise errors of all kinds for a file that is not theirs.
        raise FileFormatError(f"{source} cannot be read as a model: {error}") from error


def check_model(source: str, *, trust: bool = False) -> None:
    """Check what can be known of a model before it is loaded, without importing its package.

    Parameters
    ----------
    source : str
        The model, as `load_model` takes it.
    trust : bool, default=False
        Whether to load a pickle, which can run arbitrary code.

    Raises
    ------
    InputError
        If there is no such file or module, the file has an unknown suffix, or it is a pickle that is not trusted.
    """
    if _is_object(source):
        package = source.partition(":")[0].partition(".")[0]
        with _current_folder():
            if package not in sys.modules and importlib.util.find_spec(package) is None:
                raise InputError(f"model is {source}, which cannot be imported: there is no module {package!r}")
        return
    path = Path(source)
    if not path.is_file():
        raise InputError(f"model is {source!r}, which is neither a file nor module:function")
    if path.suffix in _PICKLES and not trust:
        raise InputError(
            f"model is {source!r}, a pickle, which can run arbitrary code when it is loaded: pass --trust if you "
            "trust it"
        )
    if path.suffix not in (readers := _readers()):
        raise InputError(
            f"model is {source!r}: use a file that ends in one of {sorted(readers)}, or module:function"
        )


def feature_names(model: Any) -> list[str] | None:
    """Return the columns that a model was trained on, or None if it does not know them.

    Parameters
    ----------
    model : object
        A model of scikit-learn, XGBoost, LightGBM or CatBoost, or a function.

    Returns
    -------
    list of str or None
        The names of the columns.
    """
    for name in ("feature_names_in_", "feature_names_", "feature_names", "feature_name"):
        found = getattr(model, name, None)
        found = found() if callable(found) else found
        if found is not None and len(found):
            return [str(column) for column in found]
    return None


class OnnxModel:
    """An ONNX classifier or regressor as a function of a table.

    Parameters
    ----------
    path : Path
        The file of the graph. The graph takes one matrix of numbers, or one input per column.
    """

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self._start()

    def __call__(self, rows: Any) -> NDArray[np.float64]:
        """Return the outputs of the model, (n, outputs)."""
        outputs = output_matrix(self.session.run([self.output], self._inputs(rows))[0])
        array = np.asarray(outputs, dtype=np.float64)
        return array.reshape(len(array), -1)

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data = state["data"]
        self._start()

    def _start(self) -> None:
        self.session = open_session(self.data, "the ONNX graph")
        self.output = output_name([output.name for output in self.session.get_outputs()])

    def _inputs(self, rows: Any) -> dict[str, Any]:
        wanted = self.session.get_inputs()
        import pandas as pd

        frame = pd.DataFrame(rows)
        if len(wanted) == 1:
            kind = np.float64 if "double" in wanted[0].type else np.float32
            return {wanted[0].name: frame.to_numpy(dtype=kind, na_value=np.nan)}
        given = {}
        for place, part in enumerate(wanted):
            column = frame[part.name] if part.name in frame else frame.iloc[:, place]
            dtype = "object" if "string" in part.type else "int64" if "int64" in part.type else "float32"
            given[part.name] = column.to_numpy(dtype=dtype)[:, None]
        return given


def _readers() -> dict[str, Callable[[Path], Any]]:
    """Return the function that reads a model, by the suffix of its file."""
    return {
        **dict.fromkeys(_PICKLES, _pickle),
        **dict.fromkeys((".json", ".ubj"), _xgboost),
        ".txt": _lightgbm,
        ".cbm": _catboost,
        ".onnx": OnnxModel,
    }


def _is_object(source: str) -> bool:
    """Return whether a model is given as ``module:name``."""
    module, colon, _ = source.partition(":")
    return bool(colon) and module.replace(".", "").replace("_", "").isalnum() and not os.path.exists(source)


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let modules of the current folder be imported inside."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _imported(module: str, name: str) -> Any:
    with _current_folder():
        try:
            found = importlib.import_module(module)
            for piece in name.split("."):
                found = getattr(found, piece)
        except (ImportError, AttributeError) as error:
            raise InputError(f"model is {module}:{name}, which cannot be imported: {error}") from error
    return found


def _pickle(path: Path) -> Any:
    import joblib

    return joblib.load(path)


def _xgboost(path: Path) -> Any:
    booster = require("xgboost", "paper").Booster()
    booster.load_model(path)
    return booster


def _lightgbm(path: Path) -> Any:
    return require("lightgbm", "paper").Booster(model_file=path)


def _catboost(path: Path) -> Any:
    import json

    catboost = require("catboost", "dev")
    model = catboost.CatBoost()
    model.load_model(str(path))
    loss = json.loads(model.get_metadata()["params"]).get("loss_function", {}).get("type", "")
    if loss in ("Logloss", "CrossEntropy", "MultiClass"):
        model = catboost.CatBoostClassifier()
        model.load_model(str(path))
    return model
