"""A server with slow, many or malicious clients, and its shutdown."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from problems import records
from servers import Server, ask, serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
from fastshapley.serving.server import is_loopback

EXPLAIN = "/v1/models/people:explain"


@pytest.fixture(scope="module")
def body(exported: Any) -> bytes:
    """A request for one row."""
    return json.dumps({"instances": records(exported.X[:1])}).encode()


@pytest.fixture(scope="module")
def server(exported: Any) -> Iterator[Server]:
    """A server with little patience."""
    with serving(exported.graph, "--timeout", "2") as running:
        yield running


def request(body: bytes) -> bytes:
    """Return the bytes of a request."""
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def open_sockets(server: Server) -> int:
    """Return how many sockets the server's process has."""
    links = []
    for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It may have been closed meanwhile.
            links.append(os.readlink(file))
    return sum(link.startswith("socket:") for link in links)


def received(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    connection.settimeout(60)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_a_body_that_does_not_come_is_answered_with_408(server: Server, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(request(body)[:-10])
        answer = received(slow)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the request took more than 2 seconds" in answer
    assert b"connection: close" in answer


def test_a_client_that_does_not_send_its_header_is_disconnected(server: Server, body: bytes) -> None:
    silent, slow, late = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(3))
    with silent, slow, late:
        slow.sendall(b"POST ")
        late.sendall(request(body))
        assert late.recv(65536).startswith(b"HTTP/1.1 200")
        late.sendall(b"POST ")  # This is the second request of a connection that had a good one.
        # Each connection ends. Otherwise reading from it would time out.
        assert [received(one) for one in (silent, slow)] == [b"", b""]
        received(late)


def test_a_header_without_end_is_cut_off(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as endless:
        endless.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            endless.sendall((b"x: " + b"y" * 1000 + b"\r\n") * 30_000)


@pytest.mark.parametrize("line", [b"", b"x: " + b"y" * 995 + b"\r\n"], ids=["one trailer", "many trailers"])
def test_trailers_without_end_are_cut_off(server: Server, line: bytes) -> None:
    before = server.memory()
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as endless:
        endless.sendall(head.encode() + b"1\r\n[\r\n0\r\n" + b"x: ")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            endless.sendall((line or b"y" * 1000) * 50_000)
    assert server.memory() - before < 20e6
    assert server.ask("/v2/health/live")[0] == 200


def test_chunk_extensions_without_end_are_cut_off(server: Server) -> None:
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as endless:
        endless.sendall(head.encode() + b"1;x=")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            endless.sendall(b"y" * 50_000_000)


def test_small_chunks_and_short_trailers_are_taken(server: Server, body: bytes) -> None:
    """The framing of this request is longer than the limit, which holds between two parts of the body."""
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b" " * 30_000 + body)
    with socket.create_connection(("127.0.0.1", server.port)) as chunked:
        chunked.sendall(head.encode() + chunks + b"0\r\nx: y\r\n\r\n")
        assert received(chunked).startswith(b"HTTP/1.1 200")


def test_a_trailer_does_not_become_a_header(exported: Any, body: bytes) -> None:
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    token = b"authorization: Bearer sesame\r\n"
    with serving(exported.graph, environment={"FASTSHAPLEY_TOKEN": "sesame"}) as server:
        for header, trailer, status in ((token, b"", b"200"), (b"", token, b"401")):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(head.encode() + header + b"connection: close\r\n\r\n" + chunk + trailer + b"\r\n")
                assert received(client).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("seconds", [0.0, 0.3], ids=["one packet", "two packets"])
def test_the_body_of_an_upgrade_is_not_answered_as_a_request(server: Server, seconds: float) -> None:
    inner = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as upgrading:
        upgrading.sendall(f"{head}content-length: {len(inner)}\r\n\r\n".encode())
        time.sleep(seconds)
        with suppress(BrokenPipeError, ConnectionResetError):
            upgrading.sendall(inner)
        answer = received(upgrading)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"without the header Upgrade" in answer
    assert b"connection: close" in answer
    assert b"HTTP/1.1 200" not in answer


def test_an_upgrade_without_a_body_is_answered_and_the_connection_closed(server: Server) -> None:
    """Java's client asks every server for HTTP/2 in this way."""
    head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as upgrading:
        upgrading.sendall(head)
        answer = received(upgrading)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer


def test_health_checks_have_room_beside_many_half_open_connections(exported: Any, body: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with serving(exported.graph) as server, ExitStack() as stack:
        for _ in range(1100):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            silent.sendall(b"GET / HT")
        assert server.ask("/v2/health/ready")[0] == 200
        assert server.ask(EXPLAIN, body)[0] == 200


def test_health_checks_have_room_beside_many_requests(exported: Any, body: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with serving(exported.graph) as server, ExitStack() as stack:
        for _ in range(1100):
            unfinished = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            unfinished.sendall(request(body)[:-1])
        assert server.ask("/v2/health/ready")[0] == 200
        assert server.ask(EXPLAIN, body)[0] == 503


def test_every_answer_forbids_guessing_its_type(server: Server) -> None:
    for path in ("/", "/v1/models", "/metrics", "/nowhere", "/models/people.onnx"):
        with closing(server.connect()) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.headers.get_all("x-content-type-options") == ["nosniff"], path


def test_a_body_that_is_too_long_is_refused(server: Server) -> None:
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
            raise AssertionError("the server took 80 MB")
    assert server.ask("/v2/health/live")[0] == 200


def test_large_bodies_share_a_limited_memory_and_wait_for_it(exported: Any, body: bytes) -> None:
    """Forty clients send eight megabytes each, but not the last byte."""
    with serving(exported.graph) as server, ExitStack() as stack:
        before = server.memory()

        def send(client: socket.socket) -> None:
            with suppress(OSError):  # The server may not read all of it.
                client.sendall(request(body + b" " * (8_000_000 - len(body)))[:-1])

        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(40)]
        threads = [threading.Thread(target=send, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        highest, end = 0, time.monotonic() + 5
        while time.monotonic() < end:
            highest = max(highest, server.memory() - before)
            time.sleep(0.1)
        assert 50e6 < highest < 160e6
        assert server.ask("/v2/health/live")[0] == 200
        assert server.ask(EXPLAIN, body)[0] == 200
        for client in clients:
            client.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(60)
        large = body + b" " * 1_000_000
        connections = [stack.enter_context(closing(server.connect())) for _ in range(24)]
        threads = [threading.Thread(target=one.request, args=("POST", EXPLAIN, large)) for one in connections]
        for thread in threads:
            thread.start()
        for thread, connection in zip(threads, connections, strict=True):
            thread.join(60)
            assert connection.getresponse().status == 200


def test_a_client_that_does_not_read_its_answer_is_disconnected(exported: Any) -> None:
    """The answer has 5.6 MB, which is more than the 4 MB that Linux keeps for a socket by default."""
    body = json.dumps({"instances": records(exported.X[:1]) * 10_000}).encode()
    with serving(exported.graph, "--timeout", "4") as server, socket.socket() as client:
        before = open_sockets(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(request(body))
        assert client.recv(12) == b"HTTP/1.1 200"
        # A second request does not keep the connection open.
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert open_sockets(server) == before + 1
        until(lambda: open_sockets(server) == before, seconds=20)
        assert server.ask("/v2/health/live")[0] == 200


def test_five_hundred_connections_are_all_answered(server: Server, body: bytes) -> None:
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


def test_bytes_that_are_not_http_are_not_answered_with_200(server: Server) -> None:
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


def test_a_shutdown_under_load_loses_no_request(exported: Any, body: bytes) -> None:
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
                    except OSError:  # The server no longer listens, and nothing was sent.
                        return
                    answered = 0
                    try:
                        while connection.sock is not None:  # The last answer closes the connection.
                            assert ask(connection, EXPLAIN, body) == expected
                            answered += 1
                            answers.append(1)
                    except BaseException as error:
                        # A connection that was made during the shutdown may not have been accepted.
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_that_began_before_the_shutdown_is_answered(
    exported: Any, body: bytes, number: signal.Signals
) -> None:
    with serving(exported.graph) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(request(body)[:-10])
            time.sleep(0.3)
            server.process.send_signal(number)
            time.sleep(1)
            slow.sendall(request(body)[-10:])
            answer = received(slow)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert server.process.wait(30) in (0, -number)


def test_a_port_that_is_in_use_is_an_error(exported: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = ["--port", str(taken.getsockname()[1]), "--json"]
        command = [sys.executable, "-m", "fastshapley", "serve", str(exported.graph), *place]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    message = json.loads(done.stderr.splitlines()[-1])
    assert message["kind"] == "OSError"
    assert "cannot listen on 127.0.0.1" in message["error"]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_loopback_addresses_are_recognised(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
