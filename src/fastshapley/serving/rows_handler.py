"""Answer requests that send rows: read the body, run the graph, write the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.export.graph import Array
from fastshapley.serving.batching import MAX_BATCH_ROWS
from fastshapley.serving.middleware import Handler
from fastshapley.serving.model_loader import ServedModel
from fastshapley.serving.model_outputs import OutputsError, model_outputs
from fastshapley.serving.request import ServerRequest
from fastshapley.serving.responses import JsonResponse, RequestError
from fastshapley.serving.server_state import ServerState
from fastshapley.serving.serving_protocol import RowsRequest, RowsRoute, sums_of, version_headers

_SMALL_BODY = 64 * 1024  # bytes of a body that is parsed on the event loop
_LARGE_BODIES = 2  # number of larger bodies that are worked on at the same time
_BODIES_BYTES = 64_000_000  # memory for all larger bodies, in bytes; at least for those that are worked on


class RowsHandler:
    """Creates the handlers of all addresses that take rows.

    Parameters
    ----------
    state : ServerState
        The server's models, limits and counters.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._large_bodies = asyncio.Semaphore(_LARGE_BODIES)
        self._memory = asyncio.Semaphore(max(_LARGE_BODIES, _BODIES_BYTES // state.limits.body))

    def handler(self, route: RowsRoute) -> Handler:
        """Return the handler of one address.

        Parameters
        ----------
        route : RowsRoute
            The address, and how its requests are read.

        Returns
        -------
        handler : callable
            Answers a `ServerRequest`.
        """
        read, max_rows = route.read, self._state.limits.rows

        async def respond(request: ServerRequest) -> Response:
            request.check_content_type()
            model = find_model(self._state, request)
            body = await request.read_body(_SMALL_BODY + 1)
            if len(body) <= _SMALL_BODY:
                return await self._explain(model, read(_parse(body), model, max_rows))
            async with self._memory:  # Meanwhile, the client waits: the server reads no more of its body.
                await request.read_body()
                async with (
                    self._large_bodies
                ):  # Large bodies are parsed in threads: other requests go on meanwhile.
                    rows = await asyncio.to_thread(lambda: read(_parse(body), model, max_rows))
                    return await self._explain(model, rows)

        return respond

    async def _explain(self, model: ServedModel, request: RowsRequest) -> Response:
        arrays = await _known_outputs(model, request)
        sums_to = "model" if model.finds_outputs else sums_of(arrays, model.graph)
        try:
            results = await model.run(*arrays)
        except OutputsError as error:
            raise RequestError(500, str(error)) from None
        if "valid" in results and not (valid := results.pop("valid")).all():
            raise InputError(
                f"row {int(valid.argmin())} has numbers so far from the training data that the network overflows: "
                "its values are not finite or do not sum to the prediction"
            )
        rows = len(request.arrays[0])
        self._state.counters.count_rows(model.name, rows)
        headers = version_headers(model)
        if rows <= MAX_BATCH_ROWS:
            return JsonResponse(request.write(results, sums_to), headers=headers)
        return await asyncio.to_thread(lambda: JsonResponse(request.write(results, sums_to), headers=headers))


async def _known_outputs(model: ServedModel, request: RowsRequest) -> tuple[Array, ...]:
    """Return the graph's inputs, with the predictor's answer for rows whose outputs are not known."""
    if model.source.predictor is None:
        return request.arrays
    rows, outputs = request.arrays
    places = np.flatnonzero(np.isnan(outputs).any(1))
    if len(places):
        given = request.rows()
        returned = await model.source.predictor([given[place] for place in places], model.graph)
        outputs = outputs.copy()
        try:
            outputs[places] = model_outputs(returned, len(places), model.graph)
        except OutputsError as error:
            raise RequestError(502, f"the predictor of this model {error}") from None
    return rows, outputs


def find_model(state: ServerState, request: ServerRequest) -> ServedModel:
    """Return the model that a request names.

    Parameters
    ----------
    state : ServerState
        The server's models.
    request : ServerRequest
        The request.

    Returns
    -------
    model : ServedModel
        The model.

    Raises
    ------
    RequestError
        If there is no such model, or the address names another version than the one that is served.
    """
    try:
        model = state.models[request.model_name]
    except KeyError:
        raise RequestError(404, f"there is no such model: choose one of {sorted(state.models)}") from None
    version = request.http.path_params.get("version")
    if version is not None and version != model.version:
        raise RequestError(404, f"this version of {model.name} is not served: its version is {model.version}")
    return model


def _parse(body: bytearray) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error}") from None
