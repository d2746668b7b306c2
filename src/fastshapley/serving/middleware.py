"""What every request passes through: access checks, time limit, error answers, counters and the request log."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fastshapley.errors import InputError
from fastshapley.serving.request import ServerRequest
from fastshapley.serving.responses import RequestError, error_response
from fastshapley.serving.server_state import ServerState
from fastshapley.serving.serving_protocol import TooManyRowsError

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("fastshapley.requests")

Handler = Callable[[ServerRequest], Coroutine[Any, Any, Response]]
Endpoint = Callable[[Request, str], Coroutine[Any, Any, Response]]  # takes the name of the model too


class RequestMiddleware:
    """Turns handlers into endpoints that can face a client.

    Parameters
    ----------
    state : ServerState
        The server's models, limits and counters.
    token : str, optional
        Bearer token that protected endpoints ask for.
    hosts : sequence of str, optional
        Host names that the server answers to, by default all.
    """

    def __init__(self, state: ServerState, *, token: str | None = None, hosts: Sequence[str] | None = None) -> None:
        self._state = state
        self._token = None if token is None else token.encode()
        self._hosts = None if hosts is None else [name.encode("latin-1") for name in hosts]
        self._started: dict[asyncio.Task[Any], float] = {}  # start of each request that is being answered
        self._overdue: set[asyncio.Task[Any]] = set()

    def protected(self, action: str, handler: Handler) -> Endpoint:
        """Return an endpoint that asks for the token, if the server has one.

        Parameters
        ----------
        action : str
            Name of the endpoint in counters and logs.
        handler : callable
            Answers a `ServerRequest`.

        Returns
        -------
        endpoint : callable
            Answers a Starlette request and the name of a model.
        """
        token = self._token
        if token is None:
            return self.public(action, handler)

        async def check_token(request: ServerRequest) -> Response:
            scheme, _, given = request.http.headers.get("authorization", "").partition(" ")
            correct = hmac.compare_digest(given.strip().encode("latin-1"), token)
            if scheme.lower() != "bearer" or not correct:
                raise RequestError(401, "a bearer token is needed")
            return await handler(request)

        return self.public(action, check_token)

    def public(self, action: str, handler: Handler) -> Endpoint:
        """Return an endpoint that answers errors, keeps the time limit and counts its requests.

        Parameters
        ----------
        action : str
            Name of the endpoint in counters and logs.
        handler : callable
            Answers a `ServerRequest`.

        Returns
        -------
        endpoint : callable
            Answers a Starlette request and the name of a model.
        """
        state = self._state

        async def respond(http: Request, model_name: str) -> Response:
            start, task = time.perf_counter(), asyncio.current_task()
            assert task is not None
            self._started[task] = start
            request = ServerRequest(http, model_name, state.limits)
            try:
                try:
                    if self._hosts is not None:
                        self._check_host(request)
                    response = await handler(request)
                except Exception as error:
                    response = await _respond_to_error(error, request)
            except asyncio.CancelledError:
                if task not in self._overdue:
                    raise
                task.uncancel()
                response = error_response(408, f"the request took more than {state.limits.seconds:g} seconds")
            finally:
                del self._started[task]
                self._overdue.discard(task)
            seconds = time.perf_counter() - start
            # Clients can make up names: these must not fill the memory.
            label = model_name if model_name in state.models else ""
            state.counters.count_request(label, action, response.status_code, seconds)
            if response.status_code >= 400 or request_logger.isEnabledFor(logging.DEBUG):
                _log(http, response, action, seconds)
            return response

        return respond

    async def cancel_overdue(self) -> None:
        """Cancel requests that exceed the time limit, and stop runs of graphs, until this task is cancelled.

        One check from time to time is cheaper than a timer for each request.
        """
        seconds = self._state.limits.seconds
        pause = min(1.0, seconds / 4)
        while True:
            await asyncio.sleep(pause)
            latest_start = time.perf_counter() - seconds
            for task in [task for task, start in self._started.items() if start < latest_start]:
                self._overdue.add(task)
                task.cancel()
            self._state.models.stop_runs(seconds + pause)  # By then nobody waits for their results.

    def _check_host(self, request: ServerRequest) -> None:
        assert self._hosts is not None
        if request.host() not in self._hosts:
            names = ", ".join(name.decode("latin-1") for name in self._hosts)
            raise RequestError(421, f"this server only answers to the host names {names}")


async def _respond_to_error(error: Exception, request: ServerRequest) -> Response:
    """Return what a client may know about an error."""
    match error:
        case TooManyRowsError():
            return error_response(413, str(error))
        case InputError():
            return error_response(400, str(error))
        case ClientDisconnect():
            return error_response(400, "the client closed the connection")
        case RequestError():
            response = error_response(error.status, str(error))
            if not await request.discard_body():
                response.headers["connection"] = "close"
            return response
    logger.error("a request failed", exc_info=error)
    return error_response(500, "internal error")


def _log(http: Request, response: Response, action: str, seconds: float) -> None:
    failed = response.status_code >= 400
    fields = {
        "action": action,
        "path": http.scope["path"],
        "status": response.status_code,
        "milliseconds": round(1e3 * seconds, 3),
        "client": http.client.host if http.client else None,
    }
    if failed:
        fields["error"] = bytes(response.body).decode()
    request_logger.log(logging.WARNING if failed else logging.DEBUG, "request", extra={"fields": fields})
