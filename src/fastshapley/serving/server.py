"""Run the application with uvicorn, with limits on slow clients and a shutdown that loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import socket
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastshapley.serving.app import ServingApp
from fastshapley.serving.json_logging import configure_json_logging
from fastshapley.serving.server_state import ServerState

logger = logging.getLogger(__name__)

_MAX_HEADER_BYTES = 64 * 1024  # bytes of a request's header
_DRAIN_SECONDS = 0.3  # time for requests that were under way when the shutdown began; it is waited for twice
_KEEP_ALIVE_SECONDS = 75  # longer than load balancers keep idle connections
_MAX_CONNECTIONS = 1000


def serve(app: ServingApp, host: str, port: int, *, patience: float = 30.0, log_requests: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, then answer the requests that are under way.

    Parameters
    ----------
    app : ServingApp
        The application.
    host : str
        Address to listen on.
    port : int
        Port to listen on. 0 chooses a free port.
    patience : float, default=30.0
        Time in seconds in which a client must send a request's header and read an answer, and in which a shutdown
        must finish.
    log_requests : bool, default=False
        Whether to log all requests, and not only those that fail.

    Raises
    ------
    OSError
        If the server cannot listen on this address.
    """
    configure_json_logging(log_requests=log_requests)
    if not is_loopback(host):
        logger.warning("listening on %s: other machines may reach this server", host)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(_TimedConnection, patience=patience),  # type: ignore[arg-type]  # uvicorn only calls it
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(patience),
        limit_concurrency=_MAX_CONNECTIONS,
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _DrainingServer(config, app.server_state).run()
    except SystemExit:  # uvicorn exits if it cannot start.
        raise OSError(f"cannot listen on {host}, port {port}: the log above says why") from None


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address.

    Parameters
    ----------
    host : str
        IP address or host name.

    Returns
    -------
    loopback : bool
        Whether it is a loopback address.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _DrainingServer(uvicorn.Server):
    """A server that answers for a moment before it stops listening, and for another moment after that.

    If a connection is closed while a request is under way on it, the request is lost. So each answer of these
    moments tells the client that it is the connection's last one. Only then are idle connections closed.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.stopping = True
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        await asyncio.sleep(_DRAIN_SECONDS)
        for server in self.servers:
            server.close()
        await asyncio.sleep(_DRAIN_SECONDS)
        await super().shutdown(sockets)


class _TimedConnection(HttpToolsProtocol):
    """A connection whose client must send headers, and read answers, in time."""

    def __init__(self, *arguments: Any, patience: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience = patience
        self._header_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0  # bytes since the last complete header

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_timer = self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            return  # A request is being answered. The application limits the time for its body.
        self._header_bytes += len(data)
        self._header_timer = self._header_timer or self._start_timer()
        if self._header_bytes > _MAX_HEADER_BYTES:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        _cancel(self._header_timer)
        self._header_timer, self._header_bytes = None, 0
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_timer = self._reading_timer or self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._reading_timer)
        self._reading_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._header_timer)
        _cancel(self._reading_timer)
        self._header_timer = self._reading_timer = None
        super().connection_lost(exc)

    def _start_timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._patience, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer is not None:
        timer.cancel()
