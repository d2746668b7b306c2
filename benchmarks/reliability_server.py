"""A server with malicious clients and damaged graphs, for `reliability`. The servers are real processes."""

from __future__ import annotations

import http.client
import json
import random
import re
import resource
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
from problems import records
from reliability_files import prepare
from servers import Server, ask, serving

from fastshapley.export.graph import sealed

EXPLAIN, INFER, HEALTH = "/v1/models/people:explain", "/v2/models/people/infer", "/v2/health/live"
LARGE = 7_900_000  # bytes of a large body; the limit is 8,000,000
SOCKETS = 1100  # connections at once; the limit is 1000
FLOOD = 80_000_000  # bytes of a flood, if the server takes them
ODD_VALUES: list[Any] = [None, True, -1, 1e308, 10**30, "", "chef", "\x00", "é" * 50, [], {}, [[]], {"age": {}}]


def attacks(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Attack one server in several ways, one after the other, and ask for its health meanwhile."""
    _, X = prepare(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    parts: dict[str, Callable[[Server], tuple[int, Counter[str]]]] = {
        "bodies that are longer than the limit": lambda server: too_long(server, 2 if quick else 50),
        "trailers without end": lambda server: endless_trailers(server, 2 if quick else 200),
        "Upgrade: h2c with a body": lambda server: upgrades(server, 2 if quick else 50),
        "half-open connections, all at once": lambda server: half_open(server, 20 if quick else SOCKETS),
        "unfinished requests, all at once": lambda server: unfinished(server, X, 20 if quick else SOCKETS),
        "large bodies, all at once": lambda server: large_bodies(server, X, 5 if quick else 40),
        "malformed requests": lambda server: malformed(server, X, 50 if quick else 3000),
    }
    with serving(folder / "people.onnx") as server:
        good = {"instances": records(X[:2])}
        expected = server.ask(EXPLAIN, good)
        assert expected[0] == 200
        before, found = server.memory(), []
        for name, part in parts.items():
            with asking_health(server) as asked:
                times, counts = part(server)
                while not asked:  # at least one
                    time.sleep(0.01)
            found.append(
                {
                    "attack": name,
                    "times": times,
                    "answers": dict(sorted(counts.items())),
                    "health checks": len(asked),
                    "answered": sum(status == 200 for status, _ in asked),
                    "slowest": max(seconds for _, seconds in asked),
                    "same answer afterwards": server.ask(EXPLAIN, good) == expected,
                    "peak MB": peak(server) / 1e6,
                }
            )
        alive = server.process.poll() is None
        traces = sum("trace" in entry for entry in server.log)
    return {"MB before": before / 1e6, "attacks": found, "alive": alive, "unexpected errors in the log": traces}


@contextmanager
def asking_health(server: Server) -> Iterator[list[tuple[int, float]]]:
    """Ask for the server's health again and again, each time on a new connection; yield statuses and seconds."""
    asked: list[tuple[int, float]] = []
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(0.02):
            start = time.perf_counter()
            try:
                status = server.ask(HEALTH)[0]
            except OSError:
                status = 0
            asked.append((status, time.perf_counter() - start))

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield asked
    finally:
        stop.set()
        thread.join()


def peak(server: Server) -> int:
    """Return the largest memory that the process has had, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert match
    return 1024 * int(match[1])


def head(*lines: str) -> bytes:
    return "\r\n".join([f"POST {EXPLAIN} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


def answer(client: socket.socket, seconds: float = 60) -> str:
    """Return the status of each answer until the server closes the connection; "closed" without any."""
    client.settimeout(seconds)
    data = b""
    with suppress(ConnectionResetError, TimeoutError):
        while part := client.recv(65536):
            data += part
    return " ".join(code.decode() for code in re.findall(rb"HTTP/1\.1 (\d+)", data)) or "closed"


def flood(server: Server, start: bytes, piece: bytes) -> str:
    """Send a start and then a piece again and again, and return the answers."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        try:
            client.sendall(start)
            for _ in range(FLOOD // len(piece)):
                client.sendall(piece)
        except OSError:
            return answer(client)
        return f"{FLOOD // 10**6} MB were taken"


def too_long(server: Server, times: int) -> tuple[int, Counter[str]]:
    counts: Counter[str] = Counter()
    for _ in range(times):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head("content-length: 99999999999") + b"[")
            counts[answer(client)] += 1
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        counts[flood(server, head("transfer-encoding: chunked"), chunk)] += 1
    return 2 * times, counts


def endless_trailers(server: Server, times: int) -> tuple[int, Counter[str]]:
    counts: Counter[str] = Counter()
    start = head("transfer-encoding: chunked") + b"1\r\n[\r\n0\r\n"
    for _ in range(times):
        counts[flood(server, start + b"x: ", b"y" * 1000)] += 1
        counts[flood(server, start, b"x: " + b"y" * 995 + b"\r\n")] += 1
    return 2 * times, counts


def upgrades(server: Server, times: int) -> tuple[int, Counter[str]]:
    counts: Counter[str] = Counter()
    inner = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for number in range(times):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head("connection: upgrade", "upgrade: h2c", f"content-length: {len(inner)}"))
            time.sleep(0.05 * (number % 2))
            with suppress(OSError):
                client.sendall(inner)
            counts[answer(client)] += 1
    return times, counts


def half_open(server: Server, times: int) -> tuple[int, Counter[str]]:
    """Open connections and send the start of a request on each; then hold them all for three seconds."""
    with ExitStack() as stack:
        clients = []
        for _ in range(times):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
            with suppress(OSError):
                clients[-1].sendall(b"GET / HT")
        time.sleep(3)
        return times, Counter(map(state, clients))


def state(client: socket.socket) -> str:
    """Return whether a connection without an answer is open."""
    client.setblocking(False)
    try:
        return "answered" if client.recv(1) else "closed"
    except BlockingIOError:
        return "open"
    except OSError:
        return "closed"


def unfinished(server: Server, X: pd.DataFrame, times: int) -> tuple[int, Counter[str]]:
    """Send requests without their last byte, and hold them while ten valid requests come."""
    body = json.dumps({"instances": records(X[:1])}).encode()
    with ExitStack() as stack:
        for _ in range(times):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with suppress(OSError):
                client.sendall(head(f"content-length: {len(body)}") + body[:-1])
        counts = Counter(str(server.ask(EXPLAIN, body)[0]) for _ in range(10))
        time.sleep(3)
    time.sleep(0.5)
    return times, counts


def large_bodies(server: Server, X: pd.DataFrame, times: int) -> tuple[int, Counter[str]]:
    """Send large bodies of five kinds at once."""
    good = json.dumps({"instances": records(X[:1])}).encode()
    row = json.dumps(records(X[:1])[0]).encode()
    bodies = [
        good + b" " * (LARGE - len(good)),
        b'{"instances": [' + b", ".join([row] * (LARGE // (len(row) + 2) - 1)) + b"]}",
        b"[" * LARGE,
        json.dumps({"instances": [{**records(X[:1])[0], "job": "x" * (LARGE - 200)}]}).encode(),
        b'{"instances": [' + b"[0,0,0,0,0]," * (LARGE // 12 - 2) + b"[]]}",
    ]
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def send(number: int) -> None:
        try:
            status = str(server.ask(EXPLAIN, bodies[number % len(bodies)])[0])
        except (OSError, http.client.HTTPException):
            status = "closed"
        with lock:
            counts[status] += 1

    threads = [threading.Thread(target=send, args=(number,)) for number in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, counts


def malformed(server: Server, X: pd.DataFrame, times: int) -> tuple[int, Counter[str]]:
    """Send damaged V1 and V2 requests on one connection."""
    rng = random.Random(0)
    ages = np.asarray(X["age"][:2], dtype=float).tolist()
    flat = [ages[0], 30.0, 0, 0, 1, ages[1], None, 1, 1, 0]
    tensor = {"name": "rows", "shape": [2, 5], "datatype": "FP64", "data": flat}
    good = {
        EXPLAIN: json.dumps({"instances": records(X[:2])}).encode(),
        INFER: json.dumps({"inputs": [tensor]}).encode(),
    }
    assert all(server.ask(path, body)[0] == 200 for path, body in good.items())
    counts: Counter[str] = Counter()
    connection = server.connect()
    for number in range(times):
        path = (EXPLAIN, INFER)[number % 2]
        try:
            counts[str(ask(connection, path, mutated(good[path], rng))[0])] += 1
        except (OSError, http.client.HTTPException):
            counts["closed"] += 1
            connection.close()
            connection = server.connect()
    connection.close()
    return times, counts


def mutated(good: bytes, rng: random.Random) -> bytes:
    """Return a body with bytes changed, cut short, repeated, replaced, or with a wrong value in its JSON."""
    way = rng.randrange(5)
    if way == 0:
        changed = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if way == 1:
        return good[: rng.randrange(len(good))]
    if way == 2:
        return good * rng.randint(2, 3)
    if way == 3:
        return rng.randbytes(rng.randint(0, 200))
    body = json.loads(good)
    where: Any = body
    while True:
        key = rng.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if rng.random() < 0.4 or not isinstance(where[key], dict | list) or not where[key]:
            where[key] = rng.choice(ODD_VALUES)
            return json.dumps(body).encode()
        where = where[key]


def endless_graphs(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Offer a graph that never ends for a reload, and serve one that never ends for some rows."""
    _, X = prepare(folder)
    good, limit = {"instances": records(X[:1])}, 5.0
    served, conditional = folder / "served" / "people.onnx", folder / "conditional" / "people.onnx"
    for path in (served, conditional):
        path.parent.mkdir()
    shutil.copy(folder / "people.onnx", served)
    conditional.write_bytes(with_loop(served, 1000))
    times = 5 if quick else 50
    with serving(served, "--timeout", f"{limit:g}") as server:
        expected = server.ask(EXPLAIN, good)
        (folder / "new").write_bytes(with_loop(served, 0))
        (folder / "new").replace(served)
        time.sleep(3)  # the file is looked at every second
        with asking_health(server) as asked:
            same = sum(server.ask(EXPLAIN, good) == expected for _ in range(times))
            time.sleep(0.5)
        start = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(120)
        seconds = time.perf_counter() - start
    reload = {
        "limit": limit,
        "asked": times,
        "same answers": same,
        "health checks": len(asked),
        "answered": sum(status == 200 for status, _ in asked),
        "slowest": max(seconds for _, seconds in asked),
        "seconds to stop": seconds,
        "exit code": code,
        "trial was stopped": any("its trial was stopped" in entry["message"] for entry in server.log),
    }
    with serving(conditional, "--timeout", "2") as server:
        bad = {"instances": [{**records(X[:1])[0], "age": 2000}]}
        expected = server.ask(EXPLAIN, good)
        statuses = Counter(str(server.ask(EXPLAIN, bad)[0]) for _ in range(1 if quick else 5))
        health = server.ask(HEALTH)[0]
        end = time.monotonic() + 30
        while not (after := server.ask(EXPLAIN, good) == expected) and time.monotonic() < end:
            time.sleep(0.2)
    rows = {"answers": dict(statuses), "health afterwards": health, "good rows as before": after}
    return {"reload": reload, "rows": rows}


def with_loop(path: Path, oldest: float) -> bytes:
    """Return a graph whose values go through a loop, which never ends if the first row's age is above a limit."""
    helper, kinds = onnx.helper, onnx.TensorProto
    model = onnx.load(path)
    del model.metadata_props[-1]  # the digest of the file
    (last,) = (node for node in model.graph.node if "shap_values" in node.output)
    last.output[list(last.output).index("shap_values")] = "values"
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["in"], ["out"])],
        "body",
        [
            helper.make_tensor_value_info("step", kinds.INT64, []),
            helper.make_tensor_value_info("go", kinds.BOOL, []),
            helper.make_tensor_value_info("in", kinds.DOUBLE, None),
        ],
        [
            helper.make_tensor_value_info("on", kinds.BOOL, []),
            helper.make_tensor_value_info("out", kinds.DOUBLE, None),
        ],
    )
    model.graph.initializer.extend(
        [
            helper.make_tensor("first", kinds.INT64, [2], [0, 0]),
            helper.make_tensor("oldest", kinds.DOUBLE, [], [oldest]),
        ]
    )
    model.graph.node.extend(
        [
            helper.make_node("GatherND", ["rows", "first"], ["age"]),
            helper.make_node("Greater", ["age", "oldest"], ["endless"]),
            helper.make_node("Loop", ["", "endless", "values"], ["shap_values"], body=body),
        ]
    )
    return sealed(model.SerializeToString())
