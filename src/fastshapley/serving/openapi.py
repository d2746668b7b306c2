"""The server's OpenAPI document, with the columns and categories of its own models in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastshapley.export.graph import Graph
from fastshapley.serving.kserve import KINDS, about_v2
from fastshapley.serving.model_store import Model
from fastshapley.version import __version__

_NUMBER = {"type": ["number", "boolean", "null"]}
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_MEANINGS = {
    400: "The body is not what it should be; the error says where.",
    401: "A bearer token is needed.",
    408: "It took too long.",
    413: "The body, or its number of rows, is too large.",
}


def describe(models: Mapping[str, Model], rows: int, *, token: bool) -> dict[str, Any]:
    """The document: ``rows`` are the most of one request, ``token`` says whether one is needed."""
    paths: dict[str, Any] = {
        "/v1/models": {
            "get": _operation("The models", _object(models={"type": "array", "items": {"type": "string"}}))
        },
        "/v2": {"get": _operation("The server", {"type": "object"}, open_=True)},
        "/v2/health/live": {"get": _operation("Whether it runs", _object(live={"type": "boolean"}), open_=True)},
        "/v2/health/ready": {
            "get": _operation("Whether it is ready", _object(ready={"type": "boolean"}), open_=True)
        },
    }
    for name, model in sorted(models.items()):
        paths |= _paths(name, model.graph, rows)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "fastshapley",
            "version": __version__,
            "description": "Shapley values in one forward pass, by KServe's V1 and V2 protocols.",
        },
        "paths": paths,
    }
    if token:
        document["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"token": []}]
    return document


def _paths(name: str, graph: Graph, rows: int) -> dict[str, Any]:
    row, outputs = _row(graph), len(graph.output_names)
    instances = {"type": "array", "items": row, "minItems": 1, "maxItems": rows}
    request = _object(instances=instances)
    if graph.image_shape is None and not graph.needs_outputs:
        request = {"anyOf": [request, {**row["anyOf"][0], "description": "One row alone."}]}
    example: dict[str, Any] = {"instances": [_example(graph)]}
    if graph.needs_outputs:
        one = _numbers(outputs)
        request = _object(
            instances={**instances, "maxItems": 1},
            outputs={"type": "array", "items": one, "minItems": 1, "maxItems": 1},
        )
        example["outputs"] = [[0.5] * outputs]
    value: dict[str, Any] = {"type": "number"} if outputs == 1 else _NUMBERS
    values = {"type": "array", "items": value}
    row_answer = _object(shap_values=values, base_values=value)
    names = {"type": "array", "items": {"type": "string"}}
    predictions = {"predictions": values, "output_names": names}
    explanation = _object(explanations={"type": "array", "items": row_answer}, feature_names=names, **predictions)
    metadata = about_v2(name, graph)
    tensors = [
        {"name": part["name"], "shape": [1, *part["shape"][1:]], "datatype": part["datatype"], "data": data}
        for part, data in zip(metadata["inputs"], _example_tensors(graph), strict=True)
    ]
    return {
        f"/v1/models/{name}": {"get": _operation("Whether a model is ready", {"type": "object"})},
        f"/v1/models/{name}:explain": {
            "post": _operation("Shapley values of rows, with their standard errors", explanation, request, example)
        },
        f"/v1/models/{name}:predict": {
            "post": _operation("What the values add up to, of rows", _object(**predictions), request, example)
        },
        f"/v2/models/{name}": {"get": _operation("A model's tensors", {"type": "object"})},
        f"/v2/models/{name}/ready": {"get": _operation("Whether a model is ready", {"type": "object"})},
        f"/v2/models/{name}/infer": {
            "post": _operation(
                "Values of rows as tensors", {"type": "object"}, _tensors(graph, tensors), {"inputs": tensors}
            )
        },
    }


def _row(graph: Graph) -> dict[str, Any]:
    """A row, as an object by column or a list in their order, or an image as lists within lists."""
    if graph.image_shape is not None:
        found: dict[str, Any] = {"type": "number"}
        for size in reversed(graph.image_shape):
            found = {"type": "array", "items": found, "minItems": size, "maxItems": size}
        return found
    columns = {column: _value(graph.categories(column)) for column in graph.columns}
    size = len(columns)
    by_place = {"type": "array", "prefixItems": list(columns.values()), "minItems": size, "maxItems": size}
    return {"anyOf": [{**_object(**columns), "additionalProperties": False}, by_place]}


def _value(categories: list[Any] | None) -> dict[str, Any]:
    """A column's value. One that is no category is taken for missing, so that it is no error."""
    if categories is None:
        return _NUMBER
    return {
        "type": ["string", "number", "boolean", "null"],
        "description": "A category; anything else is treated as missing.",
        "examples": categories,
    }


def _example(graph: Graph) -> Any:
    row = graph.example()[0][0]
    if graph.image_shape is not None:
        return row.tolist()
    return {
        column: None if value != value else value if categories is None else categories[int(value)]
        for column, value in zip(graph.columns, row.tolist(), strict=True)
        for categories in (graph.categories(column),)
    }


def _example_tensors(graph: Graph) -> list[list[float | None]]:
    row = [None if value != value else value for value in graph.example()[0].ravel().tolist()]
    return [row, [0.5] * len(graph.output_names)] if graph.needs_outputs else [row]


def _tensors(graph: Graph, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """A V2 request of one row, in as many tensors as there are examples."""
    tensors = []
    for part in examples:
        size = len(part["data"])
        data = _numbers(size)
        if part["name"] == "rows" and graph.image_shape is None:
            columns = [_code(graph.categories(column)) for column in graph.columns]
            data = {"type": "array", "prefixItems": columns, "items": False, "minItems": size, "maxItems": size}
        fixed = {name: {"const": part[name]} for name in ("name", "shape")}
        tensors.append(_object(**fixed, datatype={"enum": list(KINDS)}, data=data))
    size = len(tensors)
    return _object(
        inputs={"type": "array", "prefixItems": tensors, "items": False, "minItems": size, "maxItems": size}
    )


def _code(categories: list[Any] | None) -> dict[str, Any]:
    return {"type": ["number", "null"]} if categories is None else {"enum": [*range(len(categories)), None]}


def _numbers(length: int) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "number"}, "minItems": length, "maxItems": length}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _operation(
    summary: str, answer: dict[str, Any], request: Any = None, example: Any = None, *, open_: bool = False
) -> dict[str, Any]:
    responses = {"200": {"description": "As asked for.", "content": {"application/json": {"schema": answer}}}}
    for status, meaning in _MEANINGS.items():
        if request is not None or status == 401:
            responses[str(status)] = {
                "description": meaning,
                "content": {"application/json": {"schema": _ERROR}},
            }
    found: dict[str, Any] = {"summary": summary, "responses": responses}
    if request is not None:
        content = {"application/json": {"schema": request, "example": example}}
        found["requestBody"] = {"required": True, "content": content}
    if open_:
        found["security"] = []
    return found
