"""Parts of an OpenAPI document: schemas of rows, and operations."""

from __future__ import annotations

from typing import Any

from fastshapley.export.graph import Graph

_NUMBER = {"type": ["number", "boolean", "null"]}
_STATUS_DESCRIPTIONS = {
    400: "The body is not valid. The error tells where.",
    401: "A bearer token is needed.",
    408: "The request took too long.",
    413: "The body is too large or has too many rows.",
    502: "The predictor answered with an error.",
    503: "The predictor cannot be reached or is overloaded.",
    504: "The predictor did not answer in time.",
}


def object_schema(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object.

    Parameters
    ----------
    **properties : dict
        Schemas by key. All keys are required.

    Returns
    -------
    schema : dict
        The schema.
    """
    return {"type": "object", "properties": properties, "required": list(properties)}


def array_schema(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an array of any length.

    Parameters
    ----------
    items : dict
        Schema of each item.

    Returns
    -------
    schema : dict
        The schema.
    """
    return {"type": "array", "items": items}


def tuple_schema(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of an array with a schema for each place.

    Parameters
    ----------
    items : list of dict
        Schemas of the items, in order.

    Returns
    -------
    schema : dict
        The schema.
    """
    size = len(items)
    return {"type": "array", "prefixItems": items, "items": False, "minItems": size, "maxItems": size}


def fixed_numbers_schema(length: int, *, nullable: bool = False) -> dict[str, Any]:
    """Return the schema of an array of numbers.

    Parameters
    ----------
    length : int
        Number of items.
    nullable : bool, default=False
        Whether an item may be null.

    Returns
    -------
    schema : dict
        The schema.
    """
    number = {"type": ["number", "null"] if nullable else "number"}
    return {**array_schema(number), "minItems": length, "maxItems": length}


def sums_to_schema(graph: Graph, *, finds: bool = False) -> dict[str, Any]:
    """Return the schema of the word that says whose output the values sum to.

    Parameters
    ----------
    graph : Graph
        The graph that returns the values.
    finds : bool, default=False
        Whether the server finds the model's outputs itself if a request does not have them.

    Returns
    -------
    schema : dict
        The schema.
    """
    optional = graph.takes_outputs and not graph.needs_outputs and not finds
    words = ["model", "surrogate", "mixed"] if optional else ["model" if finds else graph.sums_to]
    description = "Whose output the values sum to."
    if optional:
        description += " It is the model for rows with outputs, and the surrogate for rows without."
    return {"type": "string", "enum": words, "description": description}


def row_schema(graph: Graph) -> dict[str, Any]:
    """Return the schema of a row.

    Parameters
    ----------
    graph : Graph
        The graph that takes the row.

    Returns
    -------
    schema : dict
        For tables, an object by column or an array in the order of the columns. For images, nested arrays.
    """
    if graph.image_shape is not None:
        schema: dict[str, Any] = {"type": "number"}
        for size in reversed(graph.image_shape):
            schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
        return schema
    columns = {column: _value_schema(graph.categories(column)) for column in graph.columns}
    size = len(columns)
    by_place = {"type": "array", "prefixItems": list(columns.values()), "minItems": size, "maxItems": size}
    return {"anyOf": [{**object_schema(**columns), "additionalProperties": False}, by_place]}


def example_row(graph: Graph) -> Any:
    """Return an example of a row.

    Parameters
    ----------
    graph : Graph
        The graph that takes the row.

    Returns
    -------
    row : dict or list
        Values by column, or an image as nested lists.
    """
    (row,) = graph.decode(graph.example()[0])
    return row if graph.image_shape is not None else dict(zip(graph.columns, row, strict=True))


def operation(
    summary: str,
    answer: dict[str, Any],
    request: dict[str, Any] | None = None,
    example: Any = None,
    *,
    public: bool = False,
) -> dict[str, Any]:
    """Return an operation: what a client can send to an address, and what comes back.

    Parameters
    ----------
    summary : str
        What the operation does.
    answer : dict
        Schema of the answer.
    request : dict, optional
        Schema of the body.
    example : object, optional
        Example of the body.
    public : bool, default=False
        Whether the operation needs no token.

    Returns
    -------
    operation : dict
        The operation as OpenAPI has it.
    """
    responses = {"200": _response("The answer.", answer)}
    for status, description in _STATUS_DESCRIPTIONS.items():
        if request is not None or status == 401:
            responses[str(status)] = _response(description, object_schema(error={"type": "string"}))
    parts: dict[str, Any] = {"summary": summary, "responses": responses}
    if request is not None:
        content = {"application/json": {"schema": request, "example": example}}
        parts["requestBody"] = {"required": True, "content": content}
    if public:
        parts["security"] = []
    return parts


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _value_schema(categories: list[Any] | None) -> dict[str, Any]:
    """Return the schema of a column's value. Unknown categories are not errors, so the schema allows them."""
    if categories is None:
        return _NUMBER
    return {
        "type": ["string", "number", "boolean", "null"],
        "description": "A category. Other values are treated as missing.",
        "examples": categories,
    }
