"""KServe's V2 protocol (Open Inference Protocol): rows as tensors.

A request has one tensor ``rows`` with all columns, where categories are codes, or one tensor per column, where
categories are names. If the graph takes the model's outputs, they are in a tensor ``outputs``. Where they are
optional, nulls stand for outputs that are not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import Results
from fastshapley.serving.model_loader import ServedModel
from fastshapley.serving.openapi_schemas import (
    fixed_numbers_schema,
    object_schema,
    operation,
    sums_to_schema,
    tuple_schema,
)
from fastshapley.serving.responses import JsonResponse
from fastshapley.serving.server_state import ServerState
from fastshapley.serving.serving_protocol import (
    ModelRoute,
    Protocol,
    RowsRequest,
    RowsRoute,
    ServerRoute,
    check_row_count,
    graph_inputs,
    numeric_array,
    readiness,
)
from fastshapley.version import __version__

_VERSION_PATH = "/v2/models/{name}/versions/{version}"
_MAX_AXES = 8  # axes of a tensor
_INTEGER_RANGES = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
_LARGEST_FP32 = float(np.finfo(np.float32).max)
_DATATYPES = ("BOOL", "BYTES", "FP32", "FP64", *_INTEGER_RANGES)


def read_rows(body: Any, graph: Graph, max_rows: int, *, finds: bool = False) -> tuple[Array, ...]:
    """Read the rows of a request.

    Parameters
    ----------
    body : object
        The parsed body.
    graph : Graph
        The graph that takes the rows.
    max_rows : int
        Largest number of rows.
    finds : bool, default=False
        Whether the server finds the model's outputs itself if the request does not have them.

    Returns
    -------
    arrays : tuple of ndarray
        The graph's inputs.

    Raises
    ------
    InputError
        If the body or a tensor is not as it should be.
    """
    tensors, outputs = _rows_and_outputs(body, graph, max_rows, finds)
    if tensors.keys() == {"rows"} and graph.columns != ["rows"]:
        dtype = np.float64 if graph.image_shape is None else np.float32
        rows = graph.check(numeric_array("rows", tensors["rows"], dtype))
    elif graph.image_shape is None and tensors:
        rows = graph.encode(_rows_from_columns(tensors))
    else:
        raise InputError("the body needs an input with the name rows")
    if len(rows) == 0:
        raise InputError("the request has no rows")
    return graph_inputs(rows, None if outputs is None else outputs.tolist(), graph, finds=finds)


def _rows_and_outputs(body: Any, graph: Graph, max_rows: int, finds: bool) -> tuple[dict[str, Any], Any]:
    """Return the tensors of the rows, and that of the model's outputs or None."""
    tensors = _read_tensors(body, max_rows)
    needed = graph.needs_outputs and not finds
    is_column = "outputs" in graph.columns and "rows" not in tensors and not needed
    outputs = tensors.pop("outputs", None) if graph.takes_outputs and not is_column else None
    return tensors, outputs


def requested_outputs(body: Any, graph: Graph) -> list[str]:
    """Return the names of the output tensors that a request asks for.

    Parameters
    ----------
    body : object
        The parsed body.
    graph : Graph
        The graph.

    Returns
    -------
    names : list of str
        Names of the outputs, by default all.

    Raises
    ------
    InputError
        If an output is not known or asked for twice.
    """
    wanted = body.get("outputs") if isinstance(body, dict) else None
    if wanted is None:
        return graph.results
    names: list[Any] = []
    if isinstance(wanted, list) and len(wanted) <= len(graph.results):
        names = [part.get("name") if isinstance(part, dict) else None for part in wanted]
    if not names or any(name not in graph.results or names.count(name) > 1 for name in names):
        known = sorted(graph.results)
        raise InputError(f"outputs must name some of {known}, each at most once: pass [{{'name': ...}}, ...]")
    return names


def write_outputs(
    results: Results, outputs: Sequence[str], model: ServedModel, request_id: Any, sums_to: str
) -> dict[str, Any]:
    """Return the output tensors that a request asks for.

    Parameters
    ----------
    results : dict of str to ndarray
        The graph's results.
    outputs : sequence of str
        Names of the outputs.
    model : ServedModel
        The model.
    request_id : object
        The request's ``id``, which the answer repeats if it is a string.
    sums_to : str
        Whose output the values sum to.

    Returns
    -------
    answer : dict
        ``model_name``, ``model_version``, ``outputs``, ``parameters`` with ``sums_to``, and ``id``.
    """
    tensors = [
        {
            "name": output,
            "shape": list(results[output].shape),
            "datatype": "FP64",
            "data": results[output].ravel(),
        }
        for output in outputs
    ]
    answer = {
        "model_name": model.name,
        "model_version": model.version,
        "parameters": {"sums_to": sums_to},
        "outputs": tensors,
    }
    if isinstance(request_id, str):
        answer["id"] = request_id
    return answer


def model_metadata(name: str, graph: Graph, *, finds: bool = False) -> dict[str, Any]:
    """Return a model's metadata: its input and output tensors, columns and categories.

    Parameters
    ----------
    name : str
        Name of the model.
    graph : Graph
        The graph.
    finds : bool, default=False
        Whether the server finds the model's outputs itself.

    Returns
    -------
    metadata : dict
        The metadata as the protocol defines it.
    """
    outputs = [-1, len(graph.output_names)]
    datatype = "FP64" if graph.image_shape is None else "FP32"
    row_shape = graph.image_shape or (len(graph.columns),)
    inputs = [{"name": "rows", "datatype": datatype, "shape": [-1, *row_shape]}]
    if graph.takes_outputs:
        inputs.append({"name": "outputs", "datatype": "FP64", "shape": outputs})
    values = [-1, len(graph.players), len(graph.output_names)]
    shapes = {"base_values": outputs, "predictions": outputs}
    return {
        "name": name,
        "versions": [],
        "platform": "onnxruntime_onnx",
        "parameters": {
            "columns": graph.columns,
            "categories": {column: graph.categories(column) for column in graph.columns},
            "sums_to": "model" if finds else graph.sums_to,
            "link": graph.link,
            "optional_inputs": ["outputs"] if graph.takes_outputs and (finds or not graph.needs_outputs) else [],
        },
        "inputs": inputs,
        "outputs": [
            {"name": output, "datatype": "FP64", "shape": shapes.get(output, values)} for output in graph.results
        ],
    }


def _read_tensors(body: Any, max_rows: int) -> dict[str, Any]:
    """Return the input tensors by name, as arrays of objects."""
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(part, dict) for part in inputs):
        raise InputError('the body must be {"inputs": [{"name": ..., "shape": ..., "datatype": ..., "data": ...}]}')
    tensors: dict[str, Any] = {}
    for part in inputs:
        name = part.get("name")
        if not isinstance(name, str) or name in tensors:
            raise InputError(f"each input needs a different name, but one has {name!r}")
        tensors[name] = _read_tensor(name, part, max_rows)
    return tensors


def _read_tensor(name: str, part: dict[str, Any], max_rows: int) -> Any:
    """Return one tensor as an array of objects in its shape."""
    shape, datatype = part.get("shape"), part.get("datatype")
    if datatype not in _DATATYPES:
        raise InputError(f"{name} has datatype {datatype!r}: use one of {', '.join(_DATATYPES)}")
    valid = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if not isinstance(shape, list) or not valid or len(shape) > _MAX_AXES:
        raise InputError(f"{name} has an invalid shape: it must be a list of at most {_MAX_AXES} integers")
    if 0 in shape:
        raise InputError(f"{name} has shape {shape}, so the request has no rows: each size must be at least 1")
    values = _flat_values(name, part.get("data"), shape)
    check_row_count(shape[0] if shape else 0, max_rows)
    _check_datatype(name, values, datatype)
    tensor = np.empty(len(values), dtype=object)
    tensor[:] = values
    return tensor.reshape(shape)


def _flat_values(name: str, data: Any, shape: list[int]) -> list[Any]:
    """Return the values of a tensor, whose data are one flat list, or lists nested as its shape says."""
    if not isinstance(data, list):
        raise InputError(f"{name} has data of type {type(data).__name__}: pass a list of values")
    if list not in set(map(type, data)):
        size = math.prod(shape)
        if size != len(data):
            raise InputError(f"{name} has {len(data)} values, but its shape {shape} needs {size}")
        return data
    parts = [data]
    for axis, size in enumerate(shape):
        if any(not isinstance(part, list) or len(part) != size for part in parts):
            raise InputError(
                f"{name} has nested data whose lists do not match axis {axis} of its shape {shape}: pass lists of "
                f"length {size} there, or one flat list"
            )
        parts = [value for part in parts for value in part]
    if list in set(map(type, parts)):
        raise InputError(f"{name} has data that are nested deeper than its shape {shape}: pass one list per axis")
    return parts


def _check_datatype(name: str, values: list[Any], datatype: str) -> None:
    """Raise an error if a value is not of the tensor's datatype. Null is a missing value of any datatype."""
    given = [value for value in values if value is not None]
    if datatype == "BOOL":
        wrong = [value for value in given if value not in (False, True)]
    elif datatype in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[datatype]
        wrong = [
            value for value in given if not (_is_number(value) and low <= value <= high and value == value // 1)
        ]
    elif datatype == "FP32":
        wrong = [value for value in given if not (_is_number(value) and abs(value) <= _LARGEST_FP32)]
    elif datatype == "FP64":
        wrong = [value for value in given if not _is_number(value)]
    else:
        wrong = []  # BYTES may hold a category of any type.
    if wrong:
        raise InputError(f"{name} has the value {wrong[0]!r}, which is not of its datatype {datatype}")


def _is_number(value: Any) -> bool:
    return type(value) in (float, int)


def _rows_from_columns(tensors: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return rows from one tensor of shape (n,) or (n, 1) per column."""
    lengths = {tensor.shape[:1] for tensor in tensors.values()}
    if len(lengths) > 1 or any(not tensor.ndim or tensor.size != len(tensor) for tensor in tensors.values()):
        raise InputError("inputs per column must have shape (n,) or (n, 1), with the same n for all columns")
    columns = {name: tensor.ravel().tolist() for name, tensor in tensors.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _read_infer(body: Any, model: ServedModel, max_rows: int) -> RowsRequest:
    outputs = requested_outputs(body, model.graph)
    arrays = read_rows(body, model.graph, max_rows, finds=model.finds_outputs)

    def rows() -> list[Any]:
        tensors, _ = _rows_and_outputs(body, model.graph, max_rows, model.finds_outputs)
        if tensors.keys() == {"rows"} and model.graph.columns != ["rows"]:
            return model.graph.decode(arrays[0])
        return list(_rows_from_columns(tensors))

    return RowsRequest(
        arrays,
        lambda results, sums_to: write_outputs(results, outputs, model, body.get("id"), sums_to),
        rows,
    )


def _show_model(model: ServedModel) -> Response:
    metadata = model_metadata(model.name, model.graph, finds=model.finds_outputs)
    metadata["versions"] = [model.version]
    metadata["parameters"] |= {
        "outputs_from": model.outputs_from,
        "digest": f"sha256:{model.digest}",
        "fastshapley_version": model.graph.about["version"],
    }
    return JsonResponse(metadata)


def _model_ready(model: ServedModel) -> Response:
    return readiness(model)


def _show_server(state: ServerState) -> Response:
    return JsonResponse({"name": "fastshapley", "version": __version__, "extensions": []})


def _server_live(state: ServerState) -> Response:
    return JsonResponse({"live": True})


def _server_ready(state: ServerState) -> Response:
    reasons = {name: model.not_ready for name, model in state.models.items() if model.not_ready is not None}
    if not reasons or state.stopping:
        return JsonResponse({"ready": not state.stopping}, 503 if state.stopping else 200)
    return JsonResponse({"ready": False, "reasons": reasons}, 503)


def _describe_server() -> dict[str, Any]:
    live, ready = object_schema(live={"type": "boolean"}), object_schema(ready={"type": "boolean"})
    return {
        "/v2": {"get": operation("Return the server's name and version", {"type": "object"}, public=True)},
        "/v2/health/live": {"get": operation("Check whether the server runs", live, public=True)},
        "/v2/health/ready": {"get": operation("Check whether the server is ready", ready, public=True)},
    }


def _describe_model(model: ServedModel, max_rows: int) -> dict[str, Any]:
    graph, finds = model.graph, model.finds_outputs
    inputs = model_metadata(model.name, graph)["inputs"]
    tensors = [
        {"name": part["name"], "shape": [1, *part["shape"][1:]], "datatype": part["datatype"], "data": data}
        for part, data in zip(inputs, _example_tensors(graph), strict=True)
    ]
    optional = finds or not graph.needs_outputs
    needed = tensors[:1] if optional else tensors
    request = _request_schema(graph, tensors, nullable=optional)
    if len(needed) < len(tensors):
        request = {"anyOf": [_request_schema(graph, needed, nullable=optional), request]}
    parameters = object_schema(sums_to=sums_to_schema(graph, finds=finds))
    text = {"type": "string"}
    answer = object_schema(model_name=text, model_version=text, parameters=parameters, outputs={"type": "array"})
    infer = operation("Return Shapley values as tensors", answer, request, {"inputs": needed})
    shown = operation("Return a model's input and output tensors", {"type": "object"})
    ready = operation("Check whether a model is ready", {"type": "object"})
    paths: dict[str, Any] = {}
    for path in (f"/v2/models/{model.name}", _VERSION_PATH.format(name=model.name, version=model.version)):
        paths |= {path: {"get": shown}, f"{path}/ready": {"get": ready}, f"{path}/infer": {"post": infer}}
    return paths


def _example_tensors(graph: Graph) -> list[list[float | None]]:
    row = [None if value != value else value for value in graph.example()[0].ravel().tolist()]
    return [row, [0.5] * len(graph.output_names)] if graph.takes_outputs else [row]


def _request_schema(graph: Graph, examples: list[dict[str, Any]], *, nullable: bool) -> dict[str, Any]:
    """Return the schema of a request with one row."""
    tensors = []
    for part in examples:
        data = fixed_numbers_schema(len(part["data"]), nullable=nullable)
        if part["name"] == "rows" and graph.image_shape is None:
            data = tuple_schema([_code_schema(graph.categories(column)) for column in graph.columns])
        constants = {name: {"const": part[name]} for name in ("name", "shape", "datatype")}
        tensors.append(object_schema(**constants, data=data))
    return object_schema(inputs=tuple_schema(tensors))


def _code_schema(categories: list[Any] | None) -> dict[str, Any]:
    return {"type": ["number", "null"]} if categories is None else {"enum": [*range(len(categories)), None]}


KSERVE_V2 = Protocol(
    rows_routes=(
        RowsRoute("infer", "/v2/models/{name}/infer", _read_infer),
        RowsRoute("infer", f"{_VERSION_PATH}/infer", _read_infer),
    ),
    model_routes=(
        ModelRoute("metadata", "/v2/models/{name}", _show_model),
        ModelRoute("ready", "/v2/models/{name}/ready", _model_ready),
        ModelRoute("metadata", _VERSION_PATH, _show_model),
        ModelRoute("ready", f"{_VERSION_PATH}/ready", _model_ready),
    ),
    server_routes=(
        ServerRoute("server", "/v2", _show_server, public=True),
        ServerRoute("live", "/v2/health/live", _server_live, public=True),
        ServerRoute("ready", "/v2/health/ready", _server_ready, public=True),
    ),
    describe_server=_describe_server,
    describe_model=_describe_model,
)
