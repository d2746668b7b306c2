"""Servers that tests start, and requests to them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Server:
    """A running ``fastshapley serve``: its port, its process and what it has logged."""

    port: int
    process: subprocess.Popen[str]
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status and the JSON, or else the bytes, of an answer; a body of bytes is sent as it is."""
        connection = self.connect()
        try:
            return ask(connection, path, body, method=method, headers=headers)
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def memory(self) -> int:
        """Bytes that the process holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found
        return 1024 * int(found[1])


def ask(
    connection: http.client.HTTPConnection,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
    response = connection.getresponse()
    content = response.read()
    if response.getheader("content-type") == "application/json":
        return response.status, json.loads(content)
    return response.status, content


@contextmanager
def serving(*arguments: str | os.PathLike[str], environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server on a free port, until the end of the block."""
    command = [
        sys.executable,
        "-m",
        "fastshapley",
        "serve",
        *(os.fspath(argument) for argument in arguments),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    assert process.stderr is not None
    server = Server(0, process)
    for line in process.stderr:
        assert line.startswith("{"), line + process.stderr.read()
        server.log.append(json.loads(line))
        if found := re.search(r"running on http://[^:]+:(\d+)", server.log[-1]["message"]):
            server.port = int(found[1])
            break
    assert server.port, f"the server ended with {process.wait()}"
    reader = threading.Thread(target=_read, args=(process, server.log))
    reader.start()
    try:
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            reader.join()
            process.stderr.close()


def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def _read(process: subprocess.Popen[str], log: list[dict[str, Any]]) -> None:
    assert process.stderr is not None
    for line in process.stderr:  # to the end: a pipe that nobody empties would stop the server
        try:
            log.append(json.loads(line))
        except json.JSONDecodeError:
            log.append({"message": line, "trace": "a line that is no JSON"})
