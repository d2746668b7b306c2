"""Run the application with uvicorn, with limits on slow clients and a shutdown that loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastshapley.serving.app import ServingApp
from fastshapley.serving.json_logging import configure_json_logging
from fastshapley.serving.responses import error_response
from fastshapley.serving.server_state import ServerState

logger = logging.getLogger(__name__)

_MAX_FRAMING_BYTES = 64 * 1024  # bytes of a request's header, or of its trailers
_DRAIN_SECONDS = 0.3  # time for requests that were under way when the shutdown began; it is waited for twice
_EXIT_SECONDS = 3.0  # time for the threads to end after a shutdown
_KEEP_ALIVE_SECONDS = 75  # longer than load balancers keep idle connections
_MAX_CONNECTIONS = 1000
_HEALTH_PATH = b"/v2/health/"
_BODY_HEADERS = (b"content-length", b"transfer-encoding")
_UPGRADE_REFUSED = error_response(
    400, "this server speaks HTTP/1.1 only: send a request with a body without the header Upgrade"
)
_STOP_SIGNALS = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []  # next to those that uvicorn handles


def serve(app: ServingApp, host: str, port: int, *, patience: float = 30.0, log_requests: bool = False) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then answer the requests that are under way.

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
        http=partial(_GuardedConnection, waiting={}, patience=patience),  # type: ignore[arg-type]  # only called
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(patience),
        limit_concurrency=_MAX_CONNECTIONS,
    )
    try:
        server = _DrainingServer(config, app.server_state)
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
        server.returned = True
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
        self.returned = False  # whether `run` has returned

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            for number in _STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP.
                    signal.signal(number, self.handle_exit)
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.stopping = True
        limit = threading.Timer(self._stop_seconds(), self._exit_if_stuck)
        limit.daemon = True
        limit.start()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        await asyncio.sleep(_DRAIN_SECONDS)
        for server in self.servers:
            server.close()
        await asyncio.sleep(_DRAIN_SECONDS)
        await super().shutdown(sockets)

    def _stop_seconds(self) -> float:
        """Return how long a shutdown may take, until the process has ended."""
        return 2 * _DRAIN_SECONDS + (self.config.timeout_graceful_shutdown or 0) + _EXIT_SECONDS

    def _exit_if_stuck(self) -> None:
        """End the process if a graph keeps it from ending: Python waits for all threads."""
        if not self.returned or not threading.main_thread().is_alive():
            logger.critical("a graph does not end: the server stops without waiting for it")
            os._exit(1)


class _GuardedConnection(HttpToolsProtocol):
    """A connection whose client must send headers, and read answers, in time, and whose framing has a limit.

    Framing is all that is not body: request lines, headers, sizes of chunks and trailers. If there are too many
    connections, a new one replaces the one that has waited longest for a request.

    Parameters
    ----------
    waiting : dict
        The server's connections that have no request under way, the oldest first. The values are not used.
    patience : float
        Time in seconds in which a client must send a request's header and read an answer.
    """

    def __init__(
        self, *arguments: Any, waiting: dict[_GuardedConnection, None], patience: float, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._waiting, self._patience = waiting, patience
        self._header_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._framing_bytes = 0  # bytes since the last complete header, chunk header or part of a body
        self._header_complete = False
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._header_timer = self._start_timer()
        if len(self.connections) >= _MAX_CONNECTIONS and self._waiting:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        self._waiting[self] = None

    def data_received(self, data: bytes) -> None:
        if self._upgraded:
            return  # The parser would take the rest of the body as the next request.
        self._framing_bytes += len(data)
        super().data_received(data)
        if not self._answering():
            self._header_timer = self._header_timer or self._start_timer()
        if self._framing_bytes > _MAX_FRAMING_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._header_complete:  # Trailers are dropped: they must not become headers of the request.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        _cancel(self._header_timer)
        self._header_timer, self._framing_bytes, self._header_complete = None, 0, True
        self._waiting.pop(self, None)
        self._upgraded = self.parser.should_upgrade()
        if self._upgraded and any(name in _BODY_HEADERS for name, _ in self.headers):
            self.app = _UPGRADE_REFUSED
        # Health checks are answered however many connections there are.
        self.limit_concurrency = None if self.url.startswith(_HEALTH_PATH) else self.config.limit_concurrency
        super().on_headers_complete()
        if self._upgraded:
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        if self._answering():
            self._framing_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self._answering():  # The application limits the size of the body and the time for it.
            self._framing_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self._waiting[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_timer = self._reading_timer or self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._reading_timer)
        self._reading_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        _cancel(self._header_timer)
        _cancel(self._reading_timer)
        self._header_timer = self._reading_timer = None
        super().connection_lost(exc)

    def _answering(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._patience, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer is not None:
        timer.cancel()
