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
from fastshapley.graph import Array, Graph
from fastshapley.serving.batching import Results

KINDS = ("BOOL", "BYTES", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")


def read_v1(body: Any, graph: Graph) -> tuple[Array, ...]:
    """The rows of a request, encoded, and the model's outputs if the graph needs them."""
    outputs = None
    if isinstance(body, dict) and "instances" in body:
        outputs, rows = body.get("outputs"), body["instances"]
    else:
        rows = [body] if isinstance(body, dict) else None
    if not isinstance(rows, list) or not rows:
        raise InputError('the body must be {"instances": [row, ...]}, or one row as an object')
    return _arrays(graph.encode(rows), outputs, graph)


def write_v1(found: Results, graph: Graph, *, explain: bool) -> dict[str, Any]:
    """Predictions, and with ``explain`` a row's values, base value and standard errors for each of them."""
    lists = {name: (values[..., 0] if values.shape[-1] == 1 else values).tolist() for name, values in found.items()}
    answer: dict[str, Any] = {"predictions": lists.pop("predictions")}
    if explain:
        columns = zip(*lists.values(), strict=True)
        answer["explanations"] = [dict(zip(lists, row, strict=True)) for row in columns]
        answer["feature_names"] = graph.players
        if (grid := graph.about["players"]["grid"]) is not None:
            answer["grid"] = grid
    answer["output_names"] = graph.output_names
    return answer


def read_v2(body: Any, graph: Graph) -> tuple[Array, ...]:
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


def write_v2(found: Results, body: Any, name: str) -> dict[str, Any]:
    """The tensors of the outputs that were asked for, by default of all."""
    wanted = body.get("outputs")
    if wanted is None:
        wanted = [{"name": output} for output in found]
    outputs = []
    for part in wanted if isinstance(wanted, list) else [None]:
        output = part.get("name") if isinstance(part, dict) else None
        if not isinstance(output, str) or output not in found:
            raise InputError(f"outputs are {sorted(found)}: pass them as [{{'name': ...}}, ...]")
        values = found[output]
        outputs.append(
            {"name": output, "shape": list(values.shape), "datatype": "FP64", "data": values.ravel().tolist()}
        )
    answer = {"model_name": name, "outputs": outputs}
    if isinstance(body.get("id"), str):
        answer["id"] = body["id"]
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
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise InputError(f"{name} has the shape {shape!r}: it must be a list of whole numbers")
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


def _by_column(tensors: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Rows of tensors (n,) or (n, 1), one for each column."""
    lengths = {name: tensor.shape[:1] for name, tensor in tensors.items()}
    if len(set(lengths.values())) != 1 or any(
        tensor.size != len(tensor) for tensor in tensors.values() if tensor.ndim
    ):
        raise InputError("inputs by column must each be of shape (n,) or (n, 1), with one n")
    if not all(tensor.ndim for tensor in tensors.values()):
        raise InputError("inputs by column must each be of shape (n,) or (n, 1)")
    columns = {name: tensor.ravel().tolist() for name, tensor in tensors.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
