"""Start servers for tests, and send requests to them."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Server:
    """A running ``fastshapley serve``: its port, its process and its log."""

    port: int
    process: subprocess.Popen[str]
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send one request on a connection of its own. See `ask`."""
        connection = self.connect()
        try:
            return ask(connection, path, body, method=method, headers=headers)
        finally:
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def memory(self) -> int:
        """Return the memory of the process, in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert match
        return 1024 * int(match[1])


def ask(
    connection: http.client.HTTPConnection,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Send a request, and return the status and the parsed JSON, or the bytes if the answer is not JSON.

    A body of bytes is sent unchanged. Other bodies are sent as JSON.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, data, headers or {})
    response = connection.getresponse()
    content = response.read()
    if response.getheader("content-type") == "application/json":
        return response.status, json.loads(content)
    return response.status, content


@contextmanager
def serving(*arguments: str | os.PathLike[str], environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run a server on a free port until the end of the block."""
    options = [os.fspath(argument) for argument in arguments]
    process = subprocess.Popen(
        [sys.executable, "-m", "fastshapley", "serve", *options, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    server = Server(0, process)
    for line in process.stderr:
        assert line.startswith("{"), line + process.stderr.read()
        server.log.append(json.loads(line))
        if match := re.search(r"running on http://[^:]+:(\d+)", server.log[-1]["message"]):
            server.port = int(match[1])
            break
    assert server.port, f"the server ended with {process.wait()}"
    reader = threading.Thread(target=_read_log, args=(process, server.log))
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


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition was not true within {seconds:g} seconds"
        time.sleep(0.05)


def _read_log(process: subprocess.Popen[str], log: list[dict[str, Any]]) -> None:
    """Read the log to its end. A full pipe would stop the server."""
    assert process.stderr is not None
    for line in process.stderr:
        try:
            log.append(json.loads(line))
        except json.JSONDecodeError:
            log.append({"message": line, "trace": "this line is not JSON"})
