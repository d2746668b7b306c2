"""KServe's V1 protocol: rows as JSON objects or lists.

A request is ``{"instances": [{"age": 39, "job": "clerk"}, ...]}``, with rows as objects or as lists in the order of
the columns. The whole body may also be one row. If the graph takes the model's outputs, they are in ``outputs``.
Where they are optional, a null stands for the outputs of a row that are not known.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import Results
from fastshapley.serving.model_loader import ServedModel
from fastshapley.serving.openapi_schemas import (
    array_schema,
    example_row,
    fixed_numbers_schema,
    object_schema,
    operation,
    row_schema,
    sums_to_schema,
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
    readiness,
)


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
        If the body or a row is not as it should be.
    """
    outputs = body.get("outputs") if isinstance(body, dict) and "instances" in body else None
    rows = _instances(body)
    if not isinstance(rows, list) or not rows:
        raise InputError('the body must be {"instances": [row, ...]} or one row as an object')
    check_row_count(len(rows), max_rows)
    return graph_inputs(graph.encode(rows), outputs, graph, finds=finds)


def _instances(body: Any) -> Any:
    """Return what the body has in the place of the rows."""
    return body.get("instances", [body]) if isinstance(body, dict) else None


def write_explanations(results: Results, graph: Graph, sums_to: str | None = None) -> dict[str, Any]:
    """Return predictions, and one explanation per row.

    Parameters
    ----------
    results : dict of str to ndarray
        The graph's results.
    graph : Graph
        The graph.
    sums_to : str, optional
        Whose output the values sum to. By default that of the graph without optional outputs.

    Returns
    -------
    answer : dict
        ``predictions``, ``explanations`` (values, base values and standard errors of each row),
        ``feature_names``, ``grid`` for images on a grid, ``output_names`` and ``sums_to``.
    """
    results = _drop_single_output(results, graph)
    predictions = results["predictions"]
    others = [(name, values) for name, values in results.items() if name != "predictions"]
    answer: dict[str, Any] = {
        "predictions": predictions,
        "explanations": [{name: values[row] for name, values in others} for row in range(len(predictions))],
        "feature_names": graph.players,
    }
    if (grid := graph.about["players"]["grid"]) is not None:
        answer["grid"] = grid
    return {**answer, "output_names": graph.output_names, "sums_to": sums_to or graph.sums_to}


def write_predictions(results: Results, graph: Graph, sums_to: str | None = None) -> dict[str, Any]:
    """Return the predictions, which are base values plus Shapley values.

    Parameters
    ----------
    results : dict of str to ndarray
        The graph's results.
    graph : Graph
        The graph.
    sums_to : str, optional
        Whose output the predictions are. By default that of the graph without optional outputs.

    Returns
    -------
    answer : dict
        ``predictions``, ``output_names`` and ``sums_to``.
    """
    predictions = _drop_single_output(results, graph)["predictions"]
    return {
        "predictions": predictions,
        "output_names": graph.output_names,
        "sums_to": sums_to or graph.sums_to,
    }


def _drop_single_output(results: Results, graph: Graph) -> Results:
    if len(graph.output_names) > 1:
        return results
    return {name: values[..., 0] for name, values in results.items()}


def _read_explain(body: Any, model: ServedModel, max_rows: int) -> RowsRequest:
    arrays = read_rows(body, model.graph, max_rows, finds=model.finds_outputs)
    return RowsRequest(
        arrays,
        lambda results, sums_to: write_explanations(results, model.graph, sums_to),
        lambda: _instances(body),
    )


def _read_predict(body: Any, model: ServedModel, max_rows: int) -> RowsRequest:
    arrays = read_rows(body, model.graph, max_rows, finds=model.finds_outputs)
    return RowsRequest(
        arrays,
        lambda results, sums_to: write_predictions(results, model.graph, sums_to),
        lambda: _instances(body),
    )


def _list_models(state: ServerState) -> Response:
    return JsonResponse({"models": sorted(state.models)})


def _show_model(model: ServedModel) -> Response:
    return readiness(model)


def _describe_server() -> dict[str, Any]:
    names = array_schema({"type": "string"})
    return {"/v1/models": {"get": operation("List the models", object_schema(models=names))}}


def _describe_model(model: ServedModel, max_rows: int) -> dict[str, Any]:
    name, graph, finds = model.name, model.graph, model.finds_outputs
    request, example = _describe_request(graph, max_rows, finds)
    number = {"type": "number"}
    value = number if len(graph.output_names) == 1 else array_schema(number)
    explanations = array_schema(object_schema(shap_values=array_schema(value), base_values=value))
    names = array_schema({"type": "string"})
    predictions = {
        "predictions": array_schema(value),
        "output_names": names,
        "sums_to": sums_to_schema(graph, finds=finds),
    }
    explanation = object_schema(explanations=explanations, feature_names=names, **predictions)
    return {
        f"/v1/models/{name}": {"get": operation("Check whether a model is ready", {"type": "object"})},
        f"/v1/models/{name}:explain": {
            "post": operation("Return Shapley values with standard errors", explanation, request, example)
        },
        f"/v1/models/{name}:predict": {
            "post": operation(
                "Return predictions: base values plus Shapley values",
                object_schema(**predictions),
                request,
                example,
            )
        },
    }


def _describe_request(graph: Graph, max_rows: int, finds: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a request, and an example."""
    row, outputs = row_schema(graph), len(graph.output_names)
    instances = {**array_schema(row), "minItems": 1, "maxItems": max_rows}
    example: dict[str, Any] = {"instances": [example_row(graph)]}
    if graph.needs_outputs and not finds:
        example["outputs"] = [[0.5] * outputs]
        request = object_schema(
            instances={**instances, "maxItems": 1},
            outputs={**array_schema(fixed_numbers_schema(outputs)), "minItems": 1, "maxItems": 1},
        )
        return request, example
    request = object_schema(instances=instances)
    if graph.takes_outputs:
        unknown = {"type": "null", "description": "The outputs of this row are not known."}
        row_outputs = {"anyOf": [fixed_numbers_schema(outputs, nullable=True), unknown]}
        request["properties"]["outputs"] = {
            "type": ["array", "null"],
            "items": row_outputs,
            "description": "The model's outputs on the scale of the values, one list per row. Optional: without "
            + ("them, the server finds them." if finds else "them, values sum to the surrogate's output."),
        }
    if graph.image_shape is None:
        request = {"anyOf": [request, {**row["anyOf"][0], "description": "One row."}]}
    return request, example


KSERVE_V1 = Protocol(
    rows_routes=(
        RowsRoute("explain", "/v1/models/{name}:explain", _read_explain),
        RowsRoute("predict", "/v1/models/{name}:predict", _read_predict),
    ),
    model_routes=(ModelRoute("show", "/v1/models/{name}", _show_model),),
    server_routes=(ServerRoute("list", "/v1/models", _list_models),),
    describe_server=_describe_server,
    describe_model=_describe_model,
)
