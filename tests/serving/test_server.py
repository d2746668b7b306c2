"""A server whose clients are slow, many or rude, and one that is told to stop."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from problems import records
from servers import Server, ask, serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
EXPLAIN = "/v1/models/people:explain"


@pytest.fixture(scope="module")
def body(exported: Any) -> bytes:
    return json.dumps({"instances": records(exported.X[:1])}).encode()


@pytest.fixture(scope="module")
def server(exported: Any) -> Iterator[Server]:
    with serving(exported.graph, "--timeout", "2") as running:
        yield running


def request(body: bytes) -> bytes:
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    connection.settimeout(60)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_a_body_that_does_not_come_is_not_waited_for(server: Server, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(request(body)[:-10])
        answer = received(slow)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the request took more than 2 seconds" in answer
    assert b"connection: close" in answer


def test_a_head_that_does_not_come_is_not_waited_for(server: Server, body: bytes) -> None:
    silent, slow, late = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(3))
    with silent, slow, late:
        slow.sendall(b"POST ")
        late.sendall(request(body))
        assert late.recv(65536).startswith(b"HTTP/1.1 200")
        late.sendall(b"POST ")  # of the second request, on a connection that had a good one
        # each ends, or else the reading of it times out
        assert [received(one) for one in (silent, slow)] == [b"", b""]
        received(late)


def test_a_head_without_end_is_cut_off(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            endless.sendall((b"x: " + b"y" * 1000 + b"\r\n") * 30_000)


def test_a_body_that_is_too_long_is_cut_off(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as long:
        long.sendall(f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n".encode())
        long.sendall(b"[")
        assert received(long).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", server.port)) as chunked:
        head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        chunked.sendall(head.encode())
        try:
            for _ in range(20_000):
                chunked.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            raise AssertionError("80 MB were taken")
    assert server.ask("/v2/health/live")[0] == 200


def test_someone_who_does_not_read_is_left(server: Server, exported: Any) -> None:
    rows = records(exported.X[:1]) * 5000
    with socket.create_connection(("127.0.0.1", server.port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(request(json.dumps({"instances": rows}).encode()))
        time.sleep(1)
        # a second request is no reason to wait longer
        deaf.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        time.sleep(4)
        assert server.ask("/v2/health/live")[0] == 200
        assert len(received(deaf)) < 3_000_000


def test_five_hundred_connections(server: Server, body: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    expected = server.ask(EXPLAIN, body)
    connections = [server.connect() for _ in range(500)]
    for connection in connections:
        connection.request("POST", EXPLAIN, body)
    for connection in connections:
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["predictions"]) == (200, expected[1]["predictions"])
        connection.close()


def test_no_http_at_all(server: Server) -> None:
    for noise in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00" * 1000,
        b"HELO there\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as rude:
            rude.sendall(noise)
            assert not received(rude).startswith(b"HTTP/1.1 200")
    assert server.ask("/v2/health/live")[0] == 200


def test_a_stop_under_load_loses_no_request(exported: Any, body: bytes) -> None:
    with serving(exported.graph) as server:
        expected = server.ask(EXPLAIN, body)
        answers: list[int] = []
        failures: list[BaseException] = []
        stopping = threading.Event()

        def load() -> None:
            while True:
                with closing(server.connect()) as connection:
                    try:
                        connection.connect()
                    except OSError:  # it no longer listens: nothing was asked
                        return
                    answered = 0
                    try:
                        while connection.sock is not None:  # until an answer says that it was the last
                            assert ask(connection, EXPLAIN, body) == expected
                            answered += 1
                            answers.append(1)
                    except BaseException as error:
                        # a connection that was made while it stopped may not have been accepted
                        if answered or not stopping.is_set() or not isinstance(error, ConnectionError):
                            failures.append(error)
                        return

        threads = [threading.Thread(target=load) for _ in range(16)]
        for thread in threads:
            thread.start()
        until(lambda: len(answers) > 500)
        before = len(answers)
        stopping.set()
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert not failures
        assert len(answers) >= before
        server.process.wait(30)
        assert any(entry["message"].startswith("Finished server process") for entry in server.log)


def test_what_was_begun_is_finished(exported: Any, body: bytes) -> None:
    with serving(exported.graph) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(request(body)[:-10])
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(1)
            slow.sendall(request(body)[-10:])
            answer = received(slow)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert server.process.wait(30) in (0, -signal.SIGTERM)


def test_a_port_that_is_taken(exported: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = ["--port", str(taken.getsockname()[1]), "--json"]
        command = [sys.executable, "-m", "fastshapley", "serve", str(exported.graph), *place]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["kind"] == "OSError"
    assert "cannot listen on 127.0.0.1" in told["error"]
