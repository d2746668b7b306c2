"""Log, load and serve explainers with MLflow, as pyfunc models without a pickle."""

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
from fastshapley.interop.encoded_rows import encode_rows
from fastshapley.networks.backbone import Backbone
from fastshapley.support.frames import as_pandas
from fastshapley.support.optional import require
from fastshapley.value_functions.sums import graph_sums_to
from fastshapley.version import __version__

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # mlflow warns of type hints in its own modules
    mlflow: Any = require("mlflow", "mlflow")
    for _module in ("mlflow.pyfunc", "mlflow.models", "mlflow.types.schema", "pyarrow"):
        require(_module, "mlflow")
from fastshapley.bulk.arrow import value_names

logger = logging.getLogger(__name__)

_FILE = "explainer.fastshap"
_EXAMPLE_ROWS = 5  # rows of the default input example


def save_explainer(
    explainer: FastSHAP, path: str | os.PathLike[str], *, input_example: Any = None, **options: Any
) -> None:
    """Save a fitted explainer as an MLflow model in a new folder.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer.
    path : str or os.PathLike
        The folder.
    input_example : DataFrame or array, optional
        Rows that show what the input looks like, as in `log_explainer`.
    **options
        Passed to `mlflow.pyfunc.save_model`.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = _arguments(explainer, Path(folder) / _FILE, input_example, options)
        mlflow.pyfunc.save_model(os.fspath(path), **given)


def log_explainer(
    explainer: FastSHAP, name: str = "explainer", *, input_example: Any = None, **options: Any
) -> Any:
    """Log a fitted explainer as an MLflow model, to the active run or to a new one.

    The result is a pyfunc model: ``mlflow.pyfunc.load_model(uri).predict(X)`` and ``mlflow models serve`` take rows
    as the explainer does. They return a table of values, base values and predictions with the columns of
    `FastSHAP.explain_to`: ``shap_<player>``, or ``shap_<player>_<output>`` if there are several outputs. The report
    is in the metadata of the model. A server accepts columns of pandas' categorical type as JSON, but not as CSV.

    The user's model is not part of the MLflow model. The values that a conditional value function serves therefore
    sum to the output of its surrogate; ``sums_to`` in the metadata says so. Explainers that need the model
    (marginal and baseline value functions, and networks for images that use its layers) can be logged and loaded
    with `load_explainer`, but not served.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer.
    name : str, default="explainer"
        The name of the MLflow model.
    input_example : DataFrame or array, optional
        Rows that show what the input looks like. The default is made of column values of the fit. Each column is
        shuffled on its own, so no example is a training row.
    **options
        Passed to `mlflow.pyfunc.log_model`, such as ``registered_model_name`` or ``pip_requirements``. The default
        requirement is this version of fastshapley.

    Returns
    -------
    mlflow.models.model.ModelInfo
        What MLflow knows of the logged model.
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
    """Load the explainer of an MLflow model.

    This function also reads explainers that were logged by `mlflow.shap.log_explainer`. MLflow itself cannot load
    these, since it expects a pickle.

    Parameters
    ----------
    uri : str or os.PathLike
        A folder, or a URI of MLflow such as ``models:/...`` or ``runs:/...``.
    model, network, value_function, device
        As in `FastSHAP.load`.

    Returns
    -------
    FastSHAP
        The fitted explainer.

    Raises
    ------
    FileFormatError
        If the MLflow model does not hold an explainer.
    """
    folder = mlflow.artifacts.download_artifacts(artifact_uri=os.fspath(uri))
    flavors = mlflow.models.Model.load(folder).flavors
    if flavors.get("python_function", {}).get("loader_module") == __name__:
        file = flavors["python_function"]["data"]
    elif "shap" in flavors:
        file = flavors["shap"]["serialized_explainer"]
    else:
        raise FileFormatError(
            f"uri is {os.fspath(uri)!r}, an MLflow model that was not written by log_explainer: its flavors are "
            f"{sorted(flavors)}"
        )
    return FastSHAP.load(Path(folder, file), model, network=network, value_function=value_function, device=device)


class Served:
    """The pyfunc model that MLflow calls.

    Parameters
    ----------
    explainer : FastSHAP
        A fitted explainer.
    """

    def __init__(self, explainer: FastSHAP) -> None:
        self.explainer = explainer

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return values, base values and predictions of rows.

        Parameters
        ----------
        model_input : DataFrame or array
            The rows.
        params : dict, optional
            Ignored. MLflow passes it.

        Returns
        -------
        DataFrame
            (n, (players + 2) * outputs), with the columns of `FastSHAP.explain_to`.
        """
        explainer = self.explainer
        x = encode_rows(explainer, self._with_keys(model_input))
        values, base, predictions = explainer.explain_encoded(x)
        columns = torch.cat([values, base[:, None], predictions[:, None]], dim=1).flatten(1)
        names = value_names(explainer.player_names_, explainer.output_names_)
        index = model_input.index if isinstance(model_input, pd.DataFrame) else None
        return pd.DataFrame(columns.cpu().numpy(), columns=names, index=index)

    def _with_keys(self, rows: Any) -> Any:
        """Return rows with the column labels of the fit. MLflow turns labels that are numbers into text."""
        schema = self.explainer.schema_
        if not isinstance(rows, pd.DataFrame) or not isinstance(schema, TableSchema) or schema.container != "frame":
            return rows
        return rows.rename(columns={column.name: column.key for column in schema.columns})


def _load_pyfunc(path: str) -> Served:
    """Load a pyfunc model. MLflow calls this function by its name."""
    try:
        return Served(FastSHAP.load(path))
    except FileFormatError as error:
        error.add_note("load it with fastshapley.interop.mlflow.load_explainer(uri, model=...)")
        raise


def _arguments(explainer: FastSHAP, file: Path, example: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Write the explainer to ``file``, and return the arguments of mlflow.pyfunc's functions that save."""
    for name in ("loader_module", "data_path", "python_model", "artifacts"):
        if name in options:
            raise InputError(f"{name} is passed to MLflow by this function: leave it out")
    explainer.save(file)
    if example is None:
        example = _example(explainer)
    example = as_pandas(example, "input_example")
    if isinstance(example, pd.DataFrame):
        example = example.rename(columns=str)  # the signature has text labels
    _warn_if_not_servable(file, example)
    report = explainer.report_
    given = {
        "signature": _signature(explainer),
        "input_example": example,
        "pip_requirements": None if "conda_env" in options else [f"fastshapley[mlflow]=={__version__}"],
        "metadata": {"sums_to": graph_sums_to(explainer.value_function_)}
        | ({} if report is None else {"report": report.to_dict()}),
    }
    return {**given, **options, "loader_module": __name__, "data_path": os.fspath(file)}


def _example(explainer: FastSHAP) -> Any:
    schema = explainer.schema_
    if isinstance(schema, ImageSchema):
        return np.zeros((1, *schema.shape), dtype=np.float32).clip(schema.low, schema.high)
    rows = schema.decode(explainer.reference_.sample[:_EXAMPLE_ROWS].cpu())
    return rows.numpy() if isinstance(rows, torch.Tensor) else rows


def _warn_if_not_servable(file: Path, example: Any) -> None:
    try:
        Served(FastSHAP.load(file)).predict(example)
    except (FileFormatError, ModelError) as error:
        logger.warning(
            "the explainer needs the model, which is not in its file: load it with load_explainer(uri, model=...). "
            "It cannot be served (%s)",
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
    """Describe a column to MLflow. Values that have no type there, such as categories, are of any type."""
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
