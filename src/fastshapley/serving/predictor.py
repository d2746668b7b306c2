"""A predictor: another server that holds the model, and that is asked for the model's outputs over HTTP."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import orjson

from fastshapley.errors import InputError
from fastshapley.export.graph import Graph
from fastshapley.serving.batching import MAX_BATCH_ROWS
from fastshapley.serving.http_client import HttpAnswer, HttpClient, HttpError
from fastshapley.serving.responses import RequestError

logger = logging.getLogger(__name__)

_CONNECTIONS = 8  # calls of a predictor at the same time
_MAX_CALL_ROWS = 1000  # rows of one call
_MAX_ANSWER_BYTES = 32_000_000
_CHECK_PAUSE = 2.0  # time between two checks whether the predictor is ready, in seconds
_CHECK_SECONDS = 5.0  # longest time of such a check
_LONGEST_ANSWER = 200  # characters of an answer that an error message quotes
_OVERLOADED = (429, 503)  # statuses of a predictor that is not able to answer now
_CALLS = re.compile(r"(?P<base>.*)/(?P<protocol>v[12])/models/(?P<name>[^/:]+)(:predict|/infer)")

ProtocolName = Literal["v1", "v2"]


@dataclass(frozen=True)
class PredictorAddress:
    """Where a predictor is, and how it is asked.

    Parameters
    ----------
    url : str
        Address before the path that the protocol defines.
    name : str
        Name of the model at the predictor.
    protocol : {"v1", "v2"}, default="v1"
        KServe's protocol that the predictor speaks.
    output : str, optional
        Output tensor that holds the predictions (V2). By default the only one, or the one named "predictions" or
        with "prob" in its name.

    Raises
    ------
    InputError
        If the address is not valid.
    """

    url: str
    name: str
    protocol: ProtocolName = "v1"
    output: str | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise InputError(f"--predictor is {_hidden(self.url)!r}: pass an address such as http://predictor:8080")
        if parts.username is not None or parts.query or parts.fragment:
            raise InputError(
                f"--predictor is {_hidden(self.url)!r}: pass an address without a user, a query and a fragment; "
                "--predictor-token-file takes a token"
            )

    @classmethod
    def parse(
        cls, url: str, name: str, protocol: ProtocolName = "v1", output: str | None = None
    ) -> PredictorAddress:
        """Return the address of a predictor from what the command line says.

        Parameters
        ----------
        url : str
            Address of the server, or the full address of a call, which ends with ``/v1/models/NAME:predict`` or
            ``/v2/models/NAME/infer``.
        name : str
            Name of the model, if the address does not tell it.
        protocol : {"v1", "v2"}, default="v1"
            Protocol, if the address does not tell it.
        output : str, optional
            Output tensor that holds the predictions.

        Returns
        -------
        address : PredictorAddress
            The address.
        """
        call = _CALLS.fullmatch(url)
        if call is None:
            return cls(url.rstrip("/"), name, protocol, output)
        given: ProtocolName = "v1" if call["protocol"] == "v1" else "v2"
        return cls(call["base"], unquote(call["name"]), given, output)

    @property
    def call_path(self) -> str:
        """Path to which rows are posted."""
        return self._model_path + (":predict" if self.protocol == "v1" else "/infer")

    @property
    def ready_path(self) -> str:
        """Path that tells whether the model is ready."""
        return self._model_path + ("" if self.protocol == "v1" else "/ready")

    @property
    def _model_path(self) -> str:
        return f"{urlsplit(self.url).path}/{self.protocol}/models/{quote(self.name, safe='')}"


class Predictor:
    """Asks a predictor for the model's outputs.

    Requests that come while all connections are in use wait. The next free connection takes all rows that wait, up
    to a limit, in one call.

    Parameters
    ----------
    address : PredictorAddress
        Where the predictor is.
    seconds : float, default=10.0
        Longest time until a request has its outputs, in seconds.
    token : str, optional
        Bearer token that the predictor asks for.

    Attributes
    ----------
    ready : bool
        Whether the predictor was ready at the last check.
    reason : str
        Why it is not ready.
    """

    def __init__(self, address: PredictorAddress, *, seconds: float = 10.0, token: str | None = None) -> None:
        self.address = address
        self.ready, self.reason = False, "the predictor was not asked yet"
        self._seconds = seconds
        headers = {} if token is None else {"authorization": f"Bearer {token}".encode().decode("latin-1")}
        self._client = HttpClient(urlsplit(address.url), headers, _MAX_ANSWER_BYTES)
        self._waiting: list[_PendingCall] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_CONNECTIONS)  # halves of a batch wait for it, too

    async def __call__(self, rows: Sequence[Any], graph: Graph) -> Any:
        """Return what the predictor returns for rows.

        Parameters
        ----------
        rows : sequence
            Rows as JSON values: objects by column, or lists in the order of the columns, or images.
        graph : Graph
            The graph that takes the same rows.

        Returns
        -------
        returned : list
            One number or list of numbers per row. They are not checked.

        Raises
        ------
        RequestError
            If the predictor does not answer in time (504), cannot be reached or is overloaded (503), or answers
            with an error or with something else (502).
        """
        parts = [rows[start : start + _MAX_CALL_ROWS] for start in range(0, len(rows), _MAX_CALL_ROWS)]
        calls = [_PendingCall(part, graph) for part in parts]
        self._waiting += calls
        self._start_calls()
        try:
            async with asyncio.timeout(self._seconds):
                answers = await asyncio.gather(*(call.answer for call in calls))
        except TimeoutError:
            raise self._failure(504, f"did not answer within {self._seconds:g} seconds") from None
        return [row for answer in answers for row in answer]

    async def watch(self) -> None:
        """Check from time to time whether the predictor is ready, until this task is cancelled."""
        known: bool | None = None
        while True:
            self.ready, self.reason = await self._check()
            if self.ready and known is not True:
                logger.info("the predictor at %s is ready", self.address.url)
            elif not self.ready and known is not False:
                logger.warning("the predictor at %s is not ready: %s", self.address.url, self.reason)
            known = self.ready
            await asyncio.sleep(_CHECK_PAUSE)

    async def close(self) -> None:
        """Stop all calls and close the connections."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._client.close()

    async def _check(self) -> tuple[bool, str]:
        """Return whether the predictor is ready, and why it is not."""
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                answer = await self._client.send(self.address.ready_path)
        except TimeoutError:
            return False, f"the predictor did not answer within {_CHECK_SECONDS:g} seconds"
        except (OSError, HttpError) as error:
            return False, f"the predictor cannot be asked: {_reason(error)}"
        if answer.status != 200:
            return False, f"the predictor answered {_shown(answer)}"
        try:
            said = orjson.loads(answer.body).get("ready", True)
        except (orjson.JSONDecodeError, AttributeError):
            said = True  # An answer with status 200 is enough.
        is_ready = str(said).lower() == "true"
        return is_ready, "" if is_ready else "the predictor is not ready"

    def _start_calls(self) -> None:
        """Start calls for the requests that wait, while there are free connections."""
        while len(self._calls) < _CONNECTIONS and (batch := self._next_batch()):
            task = asyncio.create_task(self._answer(batch))
            self._calls.add(task)
            task.add_done_callback(self._call_done)

    def _call_done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.result()
            self._start_calls()

    def _next_batch(self) -> list[_PendingCall]:
        """Take the oldest request and those that fit into the same call."""
        waiting = [call for call in self._waiting if not call.answer.done()]  # The others were cancelled.
        batch: list[_PendingCall] = []
        rows, rest = 0, []
        for call in waiting:
            fits = not batch or (rows + len(call.rows) <= MAX_BATCH_ROWS and call.kind == batch[0].kind)
            if fits:
                batch.append(call)
                rows += len(call.rows)
            else:
                rest.append(call)
        self._waiting = rest
        return batch

    async def _answer(self, batch: list[_PendingCall]) -> None:
        """Ask for a batch. If the predictor refuses it, ask for its halves: one request may have a bad row."""
        try:
            returned = await self._ask([row for call in batch for row in call.rows], batch[0].graph)
        except RequestError as error:
            if len(batch) > 1 and error.status == 502:
                batch = [call for call in batch if not call.answer.done()]
                half = len(batch) // 2
                await asyncio.gather(*(self._answer(part) for part in (batch[:half], batch[half:]) if part))
                return
            for call in batch:
                call.fail(error)
        except asyncio.CancelledError:
            for call in batch:
                call.answer.cancel()
            raise
        except Exception as error:  # No client is left waiting.
            for call in batch:
                call.fail(error)
        else:
            start = 0
            for call in batch:
                call.finish(returned[start : start + len(call.rows)])
                start += len(call.rows)

    async def _ask(self, rows: list[Any], graph: Graph) -> list[Any]:
        """Send one call, and return one number or list of numbers per row."""
        body = {"instances": rows} if self.address.protocol == "v1" else self._v2_request(rows, graph)
        try:
            async with self._free, asyncio.timeout(self._seconds):
                answer = await self._client.send(self.address.call_path, orjson.dumps(body))
        except TimeoutError:
            raise self._failure(504, f"did not answer within {self._seconds:g} seconds") from None
        except ssl.SSLError as error:
            raise self._failure(502, f"has no valid TLS connection: {_reason(error)}") from None
        except OSError as error:
            raise self._failure(503, f"cannot be reached: {_reason(error)}") from None
        except HttpError as error:
            raise self._failure(502, f"failed: {error}") from None
        if answer.status in _OVERLOADED or answer.status == 504:
            raise self._failure(504 if answer.status == 504 else 503, f"answered {_shown(answer)}")
        if answer.status != 200:
            raise self._failure(502, f"answered {_shown(answer)}")
        try:
            found = orjson.loads(answer.body)
            returned = found["predictions"] if self.address.protocol == "v1" else self._v2_predictions(found, rows)
        except (ValueError, LookupError, TypeError):
            raise self._failure(502, f"sent no predictions: it answered {_shown(answer)}") from None
        if not isinstance(returned, list) or len(returned) != len(rows):
            raise self._failure(
                502, f"did not send one prediction for each of {len(rows)} rows: it answered {_shown(answer)}"
            )
        return returned

    def _failure(self, status: int, what: str) -> RequestError:
        logger.warning("the predictor at %s %s", self.address.url, what)
        return RequestError(status, f"the predictor of this model {what}")

    def _v2_request(self, rows: list[Any], graph: Graph) -> dict[str, Any]:
        """Return one tensor with all columns if they are numbers, otherwise one tensor per column."""
        ordered = [[row[column] for column in graph.columns] if isinstance(row, dict) else row for row in rows]
        if all(graph.categories(column) is None for column in graph.columns):  # Images have no columns.
            shape = [len(rows), *(graph.image_shape or (len(graph.columns),))]
            datatype = "FP64" if graph.image_shape is None else "FP32"
            flat = _numbers(np.array(ordered, dtype=object).ravel().tolist())
            inputs = [{"name": "rows", "shape": shape, "datatype": datatype, "data": flat}]
        else:
            inputs = []
            for column, values in zip(graph.columns, map(list, zip(*ordered, strict=True)), strict=True):
                is_number = graph.categories(column) is None
                data, datatype = (_numbers(values), "FP64") if is_number else (values, "BYTES")
                inputs.append({"name": column, "shape": [len(rows), 1], "datatype": datatype, "data": data})
        request: dict[str, Any] = {"inputs": inputs}
        if self.address.output is not None:
            request["outputs"] = [{"name": self.address.output}]
        return request

    def _v2_predictions(self, found: Any, rows: list[Any]) -> list[Any]:
        """Return the tensor that holds the predictions, as one list per row."""
        tensors = {str(part["name"]): part for part in found["outputs"]}
        wanted = self.address.output
        if wanted is None:
            likely = [name for name in tensors if name == "predictions" or "prob" in name.lower()]
            names = list(tensors) if len(tensors) == 1 else likely
            if len(names) != 1:
                raise self._failure(
                    502,
                    f"sent the tensors {list(tensors)}: choose one with --predictor-output when the server starts",
                )
            (wanted,) = names
        if wanted not in tensors:
            raise self._failure(502, f"sent the tensors {list(tensors)}, but not {wanted!r}")
        shape, data = tensors[wanted]["shape"], np.array(tensors[wanted]["data"], dtype=object).ravel().tolist()
        width = math.prod(shape[1:])
        if shape[0] != len(rows) or width * len(rows) != len(data):
            raise self._failure(502, f"sent {wanted!r} of shape {shape} for {len(rows)} rows")
        return data if len(shape) == 1 else [data[row * width : (row + 1) * width] for row in range(len(rows))]


class _PendingCall:
    """Rows that wait for the predictor, and its answer."""

    def __init__(self, rows: Sequence[Any], graph: Graph) -> None:
        self.rows, self.graph = rows, graph
        # Rows of different forms do not fit into one call.
        self.kind = (type(rows[0]), tuple(graph.columns))
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def finish(self, answer: list[Any]) -> None:
        """Give the answer to the request, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Let the request fail, if it still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


def _numbers(values: list[Any]) -> list[Any]:
    """Return values of a tensor of numbers, in which a boolean is 0 or 1."""
    return [float(value) if isinstance(value, bool) else value for value in values]


def _shown(answer: HttpAnswer) -> str:
    """Return the beginning of an answer, for messages."""
    text = " ".join(answer.body[: 4 * _LONGEST_ANSWER].decode(errors="replace").split())
    text = "".join(character for character in text if character.isprintable())
    if 300 <= answer.status < 400:
        target = answer.headers.get("location", "")[:_LONGEST_ANSWER]
        return f"{answer.status}, a redirect to {target!r}, which is not followed"
    return f"{answer.status}: {text[:_LONGEST_ANSWER] or 'an empty body'}"


def _reason(error: Exception) -> str:
    """Return why a connection failed, in one line. The operating system's own words name no addresses."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number)
    return " ".join(str(error or type(error).__name__).split())[:_LONGEST_ANSWER]


def _hidden(url: str) -> str:
    """Return an address without the user and password that it may hold."""
    return re.sub(r"//[^/@]*@", "//***@", url)
