"""Running the application: uvicorn, with its patience limited, and a stop that loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import socket
import sys
import time
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

logger = logging.getLogger(__name__)

_HEAD = 64 * 1024  # bytes of a request's head
_DRAIN = 0.3  # seconds of a stop in which requests that were on their way are still answered
_CONNECTIONS = 1000


def serve(app: Starlette, host: str, port: int, *, patience: float = 30.0, log_requests: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, and then finish what was begun.

    ``patience`` are the seconds that a client has to send a request's head, and to read an answer, and that a stop
    may take.
    """
    log_as_json(requests=log_requests)
    if not is_loopback(host):
        logger.warning("listening on %s: others than this machine may reach it", host)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(_Protocol, patience=patience),  # type: ignore[arg-type]  # what makes a protocol will do
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than load balancers keep theirs
        timeout_graceful_shutdown=math.ceil(patience),
        limit_concurrency=_CONNECTIONS,
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config).run()
    except SystemExit:  # which is how uvicorn fails to start
        raise OSError(f"cannot listen on {host}, port {port}: the log above says why") from None


class _Server(uvicorn.Server):
    """One that goes on answering for a moment before it stops listening, and for another after that.

    A connection that is closed while a request is on its way to it loses that request. So each answer of these
    moments says that it is the connection's last, and only then are those closed on which nothing came.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.service.stopping = True  # type: ignore[union-attr]  # the application is ours
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        await asyncio.sleep(_DRAIN)
        for server in self.servers:
            server.close()
        await asyncio.sleep(_DRAIN)
        await super().shutdown(sockets)


class _Protocol(HttpToolsProtocol):
    """A connection whose client must send heads of requests, and read answers, in time."""

    def __init__(self, *arguments: Any, patience: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._patience = patience
        self._head: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes since the last whole head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = self._timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            return  # a request is being answered; how long its body may take is the application's business
        self._waiting += len(data)
        self._head = self._head or self._timer()
        if self._waiting > _HEAD:
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._head = _cancelled(self._head)
        self._waiting = 0
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self._reading or self._timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reading = _cancelled(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._reading = _cancelled(self._head), _cancelled(self._reading)
        super().connection_lost(exc)

    def _timer(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._patience, self.transport.abort)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer, where there was one."""
    if timer is not None:
        timer.cancel()
    return None


def log_as_json(*, requests: bool) -> None:
    """One JSON object a line, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    if requests:
        logging.getLogger("fastshapley.requests").setLevel(logging.DEBUG)


class _Lines(logging.Formatter):
    """A record as a JSON object: when, how grave, who, what, and the fields that came with it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
