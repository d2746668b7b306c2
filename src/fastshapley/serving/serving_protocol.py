"""What a serving protocol is: its addresses, how it reads rows and writes results, and its description.

To add a protocol, write a module such as `kserve_v1` that creates a `Protocol`, and list it in `routes.PROTOCOLS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.export.graph import Array, Graph
from fastshapley.serving.batching import Results
from fastshapley.serving.model_loader import ServedModel
from fastshapley.serving.responses import JsonResponse
from fastshapley.serving.server_state import ServerState


class TooManyRowsError(InputError):
    """A request has more rows than the limit."""


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """A request for explanations, as a protocol has read it.

    Parameters
    ----------
    arrays : tuple of ndarray
        The graph's inputs: encoded rows, and the model's outputs if the graph takes them.
    write : callable
        Turns the graph's results, and whose output the values sum to, into the body of the answer: JSON values and
        arrays.
    rows : callable
        Returns the rows as the client sent them, as JSON values, for a predictor.
    """

    arrays: tuple[Array, ...]
    write: Callable[[Results, str], dict[str, Any]]
    rows: Callable[[], list[Any]]


@dataclass(frozen=True)
class RowsRoute:
    """An address to which clients post rows.

    Parameters
    ----------
    action : str
        Name in counters and logs.
    path : str
        Address, with ``{name}`` for the model.
    read : callable
        Reads a request from the parsed body, the model and the largest number of rows.
    """

    action: str
    path: str
    read: Callable[[Any, ServedModel, int], RowsRequest]


@dataclass(frozen=True)
class ModelRoute:
    """An address that tells about one model.

    Parameters
    ----------
    action : str
        Name in counters and logs.
    path : str
        Address, with ``{name}`` for the model.
    respond : callable
        Returns the answer for a model.
    """

    action: str
    path: str
    respond: Callable[[ServedModel], Response]


@dataclass(frozen=True)
class ServerRoute:
    """An address that tells about the server.

    Parameters
    ----------
    action : str
        Name in counters and logs.
    path : str
        Address.
    respond : callable
        Returns the answer for a server's state.
    public : bool, default=False
        Whether the address needs no token.
    """

    action: str
    path: str
    respond: Callable[[ServerState], Response]
    public: bool = False


@dataclass(frozen=True)
class Protocol:
    """A serving protocol.

    Parameters
    ----------
    rows_routes : tuple of RowsRoute
        Addresses to which clients post rows.
    model_routes : tuple of ModelRoute
        Addresses that tell about a model.
    server_routes : tuple of ServerRoute
        Addresses that tell about the server.
    describe_server : callable
        Returns the OpenAPI paths of the server's addresses.
    describe_model : callable
        Returns the OpenAPI paths of a model's addresses, from the model and the largest number of rows.
    """

    rows_routes: tuple[RowsRoute, ...]
    model_routes: tuple[ModelRoute, ...]
    server_routes: tuple[ServerRoute, ...]
    describe_server: Callable[[], dict[str, Any]]
    describe_model: Callable[[ServedModel, int], dict[str, Any]]

    @property
    def paths(self) -> list[str]:
        """All addresses of the protocol."""
        rows = [route.path for route in self.rows_routes]
        models = [route.path for route in self.model_routes]
        return rows + models + [route.path for route in self.server_routes]


def check_row_count(rows: int, max_rows: int) -> None:
    """Raise an error if a request has too many rows.

    Parameters
    ----------
    rows : int
        Number of rows of the request.
    max_rows : int
        The limit.

    Raises
    ------
    TooManyRowsError
        If ``rows`` exceeds ``max_rows``.
    """
    if rows > max_rows:
        raise TooManyRowsError(f"{rows} rows exceed the limit of {max_rows}")


def graph_inputs(rows: Array, outputs: Any, graph: Graph, *, finds: bool = False) -> tuple[Array, ...]:
    """Return the inputs of a graph.

    Parameters
    ----------
    rows : ndarray
        Encoded rows.
    outputs : object
        The model's outputs as the client sent them: nested lists, or None. If they are optional, None may also
        stand for the outputs of a row, or for one output.
    graph : Graph
        The graph.
    finds : bool, default=False
        Whether the server finds outputs itself. Then they are optional.

    Returns
    -------
    arrays : tuple of ndarray
        The rows, and outputs of shape (n, outputs) if the graph takes them, with NaN where they are not known.

    Raises
    ------
    InputError
        If the graph needs outputs and they are missing, or if they have the wrong size or are not finite.
    """
    if not graph.takes_outputs:
        return (rows,)
    shape, needed = (len(rows), len(graph.output_names)), graph.needs_outputs and not finds
    if outputs is None:
        if needed:
            raise InputError(
                f"this is an explainer of the model itself, and needs the model's outputs: pass outputs of shape "
                f"{shape} with the rows. The server can also find them: start it with --predictor URL or --model "
                "FILE.onnx"
            )
        return rows, np.full(shape, np.nan)
    if not needed and isinstance(outputs, list) and any(isinstance(row, list) for row in outputs):
        outputs = [[None] * shape[1] if row is None else row for row in outputs]
    given = numeric_array("outputs", outputs, np.float64)
    if not needed and given.shape == shape[:1] and np.isnan(given).all():
        given = np.full(shape, np.nan)  # each row is null
    refused = ~np.isfinite(given) if needed else np.isinf(given)
    # Outputs may also be one flat list. Any other shape would mix up rows and outputs.
    if given.shape not in (shape, (shape[0] * shape[1],)) or refused.any():
        hint = "" if needed else "; pass null for a row whose outputs are not known"
        raise InputError(f"outputs must be finite and have shape {shape}, but have {given.shape}{hint}")
    return rows, given.reshape(shape)


def readiness(model: ServedModel) -> Response:
    """Return the answer to a client that asks whether a model is ready.

    Parameters
    ----------
    model : ServedModel
        The model.

    Returns
    -------
    response : Response
        Status 200 with ``name`` and ``ready``, or 503 with a ``reason``. ``needs`` lists what each request must
        have next to its rows.
    """
    headers = version_headers(model)
    if model.not_ready is None:
        needs = {"needs": ["outputs"]} if model.graph.needs_outputs and not model.finds_outputs else {}
        return JsonResponse({"name": model.name, "ready": True, **needs}, headers=headers)
    return JsonResponse({"name": model.name, "ready": False, "reason": model.not_ready}, 503, headers=headers)


def version_headers(model: ServedModel) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell which explainer has answered.

    Parameters
    ----------
    model : ServedModel
        The model.

    Returns
    -------
    headers : list of tuple of bytes
        ``x-model-version``, and ``x-model-digest`` with the SHA-256 digest of the explainer's file.
    """
    return [(b"x-model-version", model.version.encode()), (b"x-model-digest", b"sha256:" + model.digest.encode())]


def sums_of(arrays: tuple[Array, ...], graph: Graph) -> str:
    """Return whose output the values of a request sum to.

    Parameters
    ----------
    arrays : tuple of ndarray
        What `graph_inputs` returned.
    graph : Graph
        The graph.

    Returns
    -------
    sums_to : {"model", "surrogate", "game", "mixed"}
        See `Graph.sums_with`.
    """
    return graph.sums_with(arrays[1] if len(arrays) > 1 else None)


def numeric_array(name: str, values: Any, dtype: type[np.floating[Any]]) -> Array:
    """Turn JSON values into an array of numbers, with NaN for null.

    Parameters
    ----------
    name : str
        Name of the values in error messages.
    values : object
        Nested lists, or an array of objects.
    dtype : type
        Type of the array.

    Returns
    -------
    array : ndarray
        The numbers.

    Raises
    ------
    InputError
        If a value is neither a number nor null.
    """
    try:
        array = np.asarray(values, dtype=object)
        if not all(value is None or type(value) in (float, int) for value in array.flat):
            raise ValueError("other values are among them")
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must be numbers: {error}") from None
