"""KServe's protocols, from JSON values to arrays and back.

V1 has rows as people write them, ``{"instances": [{"age": 39, "job": "clerk"}, ...]}``, or as lists in the order of
the columns; one row alone may be the whole body. V2 has tensors: one of all rows, ``rows``, with categories as
codes; or one for each column, with categories by name. A graph may need the model's ``outputs`` too, in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastshapley.errors import InputError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import Results

_AXES = 8
KINDS = ("BOOL", "BYTES", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


class TooManyRows(InputError):
    """A request of more rows than one may have."""


def read_v1(body: Any, graph: Graph, most: int) -> tuple[Array, ...]:
    """The rows of a request, encoded, and the model's outputs if the graph needs them."""
    outputs = None
    if isinstance(body, dict) and "instances" in body:
        outputs, rows = body.get("outputs"), body["instances"]
    else:
        rows = [body] if isinstance(body, dict) else None
    if not isinstance(rows, list) or not rows:
        raise InputError('the body must be {"instances": [row, ...]}, or one row as an object')
    _check_number(len(rows), most)
    return _arrays(graph.encode(rows), outputs, graph)


def write_v1(found: Results, graph: Graph, *, explain: bool) -> dict[str, Any]:
    """Predictions, and with ``explain`` a row's values, base value and standard errors for each of them."""
    if len(graph.output_names) == 1:
        found = {name: values[..., 0] for name, values in found.items()}
    answer: dict[str, Any] = {"predictions": found["predictions"]}
    if explain:
        rest = [(name, values) for name, values in found.items() if name != "predictions"]
        rows = range(len(found["predictions"]))
        answer["explanations"] = [{name: values[row] for name, values in rest} for row in rows]
        answer["feature_names"] = graph.players
        if (grid := graph.about["players"]["grid"]) is not None:
            answer["grid"] = grid
    answer["output_names"] = graph.output_names
    return answer


def read_v2(body: Any, graph: Graph, most: int) -> tuple[Array, ...]:
    """The rows of a request, encoded, and the model's outputs if the graph needs them."""
    inputs = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(part, dict) for part in inputs):
        raise InputError('the body must be {"inputs": [{"name": ..., "shape": ..., "datatype": ..., "data": ...}]}')
    tensors = {}
    for part in inputs:
        name = part.get("name")
        if not isinstance(name, str) or name in tensors:
            raise InputError(f"each input needs a name of its own: {name!r}")
        tensors[name] = _tensor(name, part)
        _check_number(len(tensors[name]) if tensors[name].ndim else 0, most)
    outputs = tensors.pop("outputs", None) if graph.needs_outputs else None
    if tensors.keys() == {"rows"} and graph.columns != ["rows"]:
        kind = np.float64 if graph.image_shape is None else np.float32
        rows = graph.check(_numbers("rows", tensors["rows"], kind))
    elif graph.image_shape is None and tensors:
        rows = graph.encode(_by_column(tensors))
    else:
        raise InputError("the body needs an input called rows")
    if len(rows) == 0:
        raise InputError("there are no rows")
    return _arrays(rows, None if outputs is None else outputs.tolist(), graph)


def wanted_v2(body: Any, graph: Graph) -> list[str]:
    """The names of the outputs that are asked for, by default of all."""
    wanted = body.get("outputs") if isinstance(body, dict) else None
    if wanted is None:
        return graph.results
    names: list[Any] = []
    if isinstance(wanted, list) and len(wanted) <= len(graph.results):
        names = [part.get("name") if isinstance(part, dict) else None for part in wanted]
    if not names or any(name not in graph.results or names.count(name) > 1 for name in names):
        raise InputError(f"outputs are {sorted(graph.results)}, each at most once: pass [{{'name': ...}}, ...]")
    return names


def write_v2(found: Results, wanted: Sequence[str], name: str, identity: Any) -> dict[str, Any]:
    """The tensors of the outputs that were asked for."""
    outputs = [
        {
            "name": output,
            "shape": list(found[output].shape),
            "datatype": "FP64",
            "data": found[output].ravel(),
        }
        for output in wanted
    ]
    answer = {"model_name": name, "outputs": outputs}
    if isinstance(identity, str):
        answer["id"] = identity
    return answer


def about_v2(name: str, graph: Graph) -> dict[str, Any]:
    """A model's metadata: what goes in, and what comes out."""
    outputs = [-1, len(graph.output_names)]
    kind = "FP64" if graph.image_shape is None else "FP32"
    inputs = [{"name": "rows", "datatype": kind, "shape": [-1, *(graph.image_shape or (len(graph.columns),))]}]
    if graph.needs_outputs:
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
        },
        "inputs": inputs,
        "outputs": [
            {"name": output, "datatype": "FP64", "shape": shapes.get(output, values)} for output in graph.results
        ],
    }


def _arrays(rows: Array, outputs: Any, graph: Graph) -> tuple[Array, ...]:
    if not graph.needs_outputs:
        return (rows,)
    shape = (len(rows), len(graph.output_names))
    if outputs is None:
        raise InputError(f"this model's values need its outputs too: pass them as outputs, of shape {shape}")
    given = _numbers("outputs", outputs, np.float64)
    if given.size != shape[0] * shape[1] or not np.isfinite(given).all():
        raise InputError(f"outputs must be finite and of shape {shape}, and are {given.shape}")
    return rows, given.reshape(shape)


def _tensor(name: str, part: dict[str, Any]) -> Any:
    """A tensor of a request as an array of objects, in its shape."""
    shape, kind, data = part.get("shape"), part.get("datatype"), part.get("data")
    if kind not in KINDS:
        raise InputError(f"{name} has the datatype {kind!r}: it must be one of {', '.join(KINDS)}")
    whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if not isinstance(shape, list) or not whole or len(shape) > _AXES:
        raise InputError(f"{name} has a shape that is none: it must be a list of at most {_AXES} whole numbers")
    flat: list[Any] = []
    _flatten(data, flat, len(shape) + 1)
    size = 1
    for length in shape:
        size *= length  # Python's own, which does not overflow
    if size != len(flat):
        raise InputError(f"{name} has {len(flat)} values, and its shape {shape} is that of {size}")
    found = np.empty(len(flat), dtype=object)
    found[:] = flat
    return found.reshape(shape)


def _flatten(data: Any, flat: list[Any], depth: int) -> None:
    if not isinstance(data, list) or depth == 0:
        flat.append(data)
        return
    for part in data:
        if isinstance(part, list):
            _flatten(part, flat, depth - 1)
        else:
            flat.append(part)


def _numbers(name: str, values: Any, kind: type[np.floating[Any]]) -> Array:
    """Numbers, with null for a gap."""
    try:
        found = np.asarray(values, dtype=object)
        if not all(value is None or type(value) in (float, int) for value in found.flat):
            raise ValueError("something else is among them")
        with np.errstate(over="ignore"):
            return found.astype(kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be numbers: {error}") from None


def _check_number(rows: int, most: int) -> None:
    if rows > most:
        raise TooManyRows(f"there are {rows} rows, and {most} are the most")


def _by_column(tensors: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Rows of tensors (n,) or (n, 1), one for each column."""
    lengths = {tensor.shape[:1] for tensor in tensors.values()}
    if len(lengths) > 1 or any(not tensor.ndim or tensor.size != len(tensor) for tensor in tensors.values()):
        raise InputError("inputs by column must each be of shape (n,) or (n, 1), with one n")
    columns = {name: tensor.ravel().tolist() for name, tensor in tensors.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
