"""MLflow: log, load and serve an explainer, as a pyfunc model whose artifact is its one file: no pickle."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from fastshapley.data.column import Column
from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.table_schema import TableSchema, require_table
from fastshapley.errors import FileFormatError, InputError, ModelError
from fastshapley.explainer import FastSHAP
from fastshapley.networks.backbone import Backbone
from fastshapley.support.optional import require
from fastshapley.version import __version__

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of type hints in mlflow's own modules, when they are imported
    mlflow: Any = require("mlflow", "mlflow")
    for _module in ("mlflow.pyfunc", "mlflow.models", "mlflow.types.schema", "pyarrow"):
        require(_module, "mlflow")
from fastshapley.bulk.arrow import value_names

logger = logging.getLogger(__name__)

_FILE = "explainer.fastshap"
_EXAMPLE = 5  # rows


def save_explainer(
    explainer: FastSHAP, path: str | os.PathLike[str], *, input_example: Any = None, **options: Any
) -> None:
    """Write a fitted explainer to a new folder, as an MLflow model; see `log_explainer` for the arguments.

    ``options`` go to `mlflow.pyfunc.save_model`.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = _arguments(explainer, Path(folder) / _FILE, input_example, options)
        mlflow.pyfunc.save_model(os.fspath(path), **given)


def log_explainer(
    explainer: FastSHAP, name: str = "explainer", *, input_example: Any = None, **options: Any
) -> Any:
    """Log a fitted explainer to the active run, or to a new one, as an MLflow model; its ``ModelInfo``.

    It is a pyfunc model: `mlflow.pyfunc.load_model(uri).predict(X)` and `mlflow models serve` take rows as the
    explainer does, and return a table of its values, base values and predictions, with the columns that
    ``explain_to`` writes: ``shap_<player>``, or ``shap_<player>_<output>`` where there are several outputs.
    Categories (of pandas' own type) come as their values, and not as CSV, which MLflow does not read for them.

    The user's model is not in it. An explainer that needs its model (marginal and baseline games, and images, whose
    networks are made of its layers) is logged too, and `load_explainer` takes the model; but it cannot be served.

    input_example: rows that show what the input looks like. By default some are made of the columns' values at fit,
        each column in an order of its own, so that none is a row that was trained on.
    options: go to `mlflow.pyfunc.log_model`, such as ``registered_model_name`` or ``pip_requirements``, which by
        default are this version of fastshapley. The report is in the model's metadata.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = _arguments(explainer, Path(folder) / _FILE, input_example, options)
        return mlflow.pyfunc.log_model(name=name, **given)


def load_explainer(
    uri: str | os.PathLike[str],
    model: Any = None,
    *,
    network: nn.Module | Backbone | None = None,
    value_function: Any = None,
    device: str | torch.device | None = None,
) -> FastSHAP:
    """The explainer of an MLflow model: a folder, ``models:/...``, ``runs:/...`` or another of its addresses.

    It also reads what `mlflow.shap.log_explainer` made of an explainer, which MLflow itself cannot: it looks for a
    pickle there. The other arguments are those of `FastSHAP.load`.
    """
    folder = mlflow.artifacts.download_artifacts(artifact_uri=os.fspath(uri))
    flavors = mlflow.models.Model.load(folder).flavors
    if flavors.get("python_function", {}).get("loader_module") == __name__:
        file = flavors["python_function"]["data"]
    elif "shap" in flavors:
        file = flavors["shap"]["serialized_explainer"]
    else:
        raise FileFormatError(
            f"uri is {os.fspath(uri)!r}, an MLflow model that log_explainer did not write: it has {sorted(flavors)}"
        )
    return FastSHAP.load(Path(folder, file), model, network=network, value_function=value_function, device=device)


class Served:
    """What MLflow calls: a table in, a table of values out."""

    def __init__(self, explainer: FastSHAP) -> None:
        self.explainer = explainer

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Values, base values and predictions of each row, (n, (players + 2) * outputs)."""
        explainer = self.explainer
        x = explainer._encode(self._with_keys(model_input))
        values, base, predictions = explainer.explain_encoded(x)
        columns = torch.cat([values, base[:, None], predictions[:, None]], dim=1).flatten(1)
        names = value_names(explainer.player_names_, explainer.output_names_)
        index = model_input.index if isinstance(model_input, pd.DataFrame) else None
        return pd.DataFrame(columns.cpu().numpy(), columns=names, index=index)

    def _with_keys(self, rows: Any) -> Any:
        """Rows whose columns are called as at ``fit``: numbers, of which MLflow makes texts."""
        schema = self.explainer.schema_
        if not isinstance(rows, pd.DataFrame) or not isinstance(schema, TableSchema) or schema.container != "frame":
            return rows
        return rows.rename(columns={column.name: column.key for column in schema.columns})


def _load_pyfunc(path: str) -> Served:
    """What MLflow loads a pyfunc model by."""
    try:
        return Served(FastSHAP.load(path))
    except FileFormatError as error:
        error.add_note("it can be loaded by fastshapley.interop.mlflow.load_explainer(uri, model=...)")
        raise


def _arguments(explainer: FastSHAP, file: Path, example: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of mlflow.pyfunc's functions that save; the explainer is written to ``file``."""
    for name in ("loader_module", "data_path", "python_model", "artifacts"):
        if name in options:
            raise InputError(f"{name} is what this function passes to MLflow itself: leave it out")
    explainer.save(file)
    if example is None:
        example = _example(explainer)
    if isinstance(example, pd.DataFrame):
        example = example.rename(columns=str)  # as the signature has them
    _warn_if_it_cannot_be_served(file, example)
    report = explainer.report_
    given = {
        "signature": _signature(explainer),
        "input_example": example,
        "pip_requirements": None if "conda_env" in options else [f"fastshapley[mlflow]=={__version__}"],
        "metadata": None if report is None else {"report": report.to_dict()},
    }
    return {**given, **options, "loader_module": __name__, "data_path": os.fspath(file)}


def _example(explainer: FastSHAP) -> Any:
    schema = explainer.schema_
    if isinstance(schema, ImageSchema):
        return np.zeros((1, *schema.shape), dtype=np.float32).clip(schema.low, schema.high)
    rows = schema.decode(explainer.reference_.sample[:_EXAMPLE].cpu())
    return rows.numpy() if isinstance(rows, torch.Tensor) else rows


def _warn_if_it_cannot_be_served(file: Path, example: Any) -> None:
    try:
        Served(FastSHAP.load(file)).predict(example)
    except (FileFormatError, ModelError) as error:
        logger.warning(
            "the explainer needs its model, which is not in its file: it can be loaded by load_explainer(uri, "
            "model=...), but not be served (%s)",
            error,
        )


def _signature(explainer: FastSHAP) -> Any:
    types, schema = mlflow.types, explainer.schema_
    if isinstance(schema, ImageSchema):
        inputs = types.Schema([types.TensorSpec(np.dtype(np.float32), (-1, *schema.shape))])
    else:
        table = require_table(schema, "signatures are")
        inputs = types.Schema([_spec(column, table) for column in table.columns])
    names = value_names(explainer.player_names_, explainer.output_names_)
    return mlflow.models.ModelSignature(inputs, types.Schema([types.ColSpec("double", name) for name in names]))


def _spec(column: Column, schema: TableSchema) -> Any:
    """A column in MLflow's words; one whose values have no type there, such as categories, is of any."""
    types = mlflow.types
    if column.categories is not None and column.dtype != "category":
        texts = all(isinstance(category, str) for category in column.categories)
        kind: Any = types.DataType.string if texts else types.schema.AnyType()
    else:
        numpy_types = {"b": types.DataType.boolean, "i": types.DataType.long, "f": types.DataType.double}
        dtype = pd.api.types.pandas_dtype(column.dtype)
        plain = isinstance(dtype, np.dtype) and dtype.kind in numpy_types
        kind = numpy_types[dtype.kind] if plain else types.schema.AnyType()
    return types.ColSpec(kind, column.name) if schema.container == "frame" else types.ColSpec(kind)
