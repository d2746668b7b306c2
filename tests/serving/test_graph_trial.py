"""Graphs that take long or never end: they are tried first, and no reload, request or shutdown waits for them."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from problems import records
from servers import serving, until

pytest.importorskip("uvicorn", reason="needs the serve extra")
from fastshapley.errors import FileFormatError
from fastshapley.export.graph import Graph, sealed
from fastshapley.serving.graph_trial import QUICK, SLOW, TRIAL_COMMAND, try_graph
from fastshapley.serving.model_loader import ModelLoader
from fastshapley.serving.model_store import ModelStore

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
EXPLAIN = "/v1/models/people:explain"


def with_loop(path: Path, oldest: float) -> bytes:
    """Return a graph whose values go through a loop, which never ends if the first row's age is above a limit."""
    model = onnx.load(path)
    del model.metadata_props[-1]  # the digest of the file
    (last,) = (node for node in model.graph.node if "shap_values" in node.output)
    last.output[list(last.output).index("shap_values")] = "values"
    values = onnx.helper.make_tensor_value_info("in", onnx.TensorProto.DOUBLE, None)
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["on"]), onnx.helper.make_node("Identity", ["in"], ["out"])],
        "body",
        [
            onnx.helper.make_tensor_value_info("step", onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            values,
        ],
        [
            onnx.helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("out", onnx.TensorProto.DOUBLE, None),
        ],
    )
    constants = {
        "first": onnx.helper.make_tensor("first", onnx.TensorProto.INT64, [2], [0, 0]),
        "oldest": onnx.helper.make_tensor("oldest", onnx.TensorProto.DOUBLE, [], [oldest]),
    }
    model.graph.initializer.extend(constants.values())
    model.graph.node.extend(
        [
            onnx.helper.make_node("GatherND", ["rows", "first"], ["age"]),
            onnx.helper.make_node("Greater", ["age", "oldest"], ["endless"]),
            onnx.helper.make_node("Loop", ["", "endless", "values"], ["shap_values"], body=body),
        ]
    )
    return sealed(model.SerializeToString())


def test_a_graph_is_quick_unless_it_has_loops(exported: Any) -> None:
    """The rows decide how long a loop takes, so it must not run on the event loop."""
    assert try_graph(exported.graph.read_bytes()) == QUICK
    assert try_graph(with_loop(exported.graph, 1e9)) == SLOW


def test_the_process_answers_or_fails_with_a_reason(exported: Any) -> None:
    for data, expected in (
        (exported.graph.read_bytes(), (0, b"quick", b"")),
        (b"no graph", (1, b"", b"the graph")),
    ):
        done = subprocess.run([*TRIAL_COMMAND, "60"], input=data, capture_output=True, check=False, timeout=120)
        assert (done.returncode, done.stdout, done.stderr[:9]) == expected


def test_the_process_ends_by_itself(exported: Any) -> None:
    """It must not go on if the server was killed."""
    done = subprocess.run(
        [*TRIAL_COMMAND, "1"], input=with_loop(exported.graph, 0), capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert b"Timeout" in done.stderr


def test_a_run_can_be_stopped(exported: Any) -> None:
    graph = Graph(with_loop(exported.graph, 1000))
    rows = graph.example()[0]
    graph(rows)
    rows[0, 0] = 2000
    errors: list[Exception] = []

    def run() -> None:
        try:
            graph(rows)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.2)
    graph.stop_runs(3600)
    assert thread.is_alive()
    graph.stop_runs(0)
    thread.join(60)
    assert "terminate" in str(errors[0])


def test_a_graph_that_never_ends_does_not_stop_the_reload_of_others(exported: Any, tmp_path: Path) -> None:
    endless, other = tmp_path / "endless.onnx", tmp_path / "other.onnx"
    for file in (endless, other):
        shutil.copy(exported.graph, file)
    loader = ModelLoader(trial_timeout=10.0)
    models = ModelStore({"endless": endless, "other": other}, loader=loader, poll_seconds=0.05)
    reloads: list[tuple[str, str]] = []

    async def main() -> None:
        first = models["endless"]
        endless.write_bytes(with_loop(exported.graph, 0))
        other.touch()
        watching = asyncio.create_task(models.watch(lambda name, result: reloads.append((name, result))))
        for _ in range(600):
            if len(reloads) == 2:
                break
            await asyncio.sleep(0.1)
        assert models["endless"] is first
        await models.close()
        await watching

    asyncio.run(main())
    assert reloads == [("endless", "failed"), ("other", "read")]


def test_a_shutdown_does_not_wait_for_a_trial(exported: Any, tmp_path: Path) -> None:
    endless, other = tmp_path / "people.onnx", tmp_path / "other.onnx"
    for file in (endless, other):
        shutil.copy(exported.graph, file)
    with serving(endless, other, "--timeout", "5") as server:
        (tmp_path / "new").write_bytes(with_loop(exported.graph, 0))
        (tmp_path / "new").replace(endless)
        time.sleep(3)
        assert server.ask(EXPLAIN, {"instances": records(exported.X[:1])})[0] == 200
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
    assert any(entry["message"].startswith("Finished server process") for entry in server.log)
    assert any("its trial was stopped" in entry["message"] for entry in server.log)


def test_rows_that_make_a_graph_endless_are_answered_with_408_and_others_are_explained(
    exported: Any, tmp_path: Path
) -> None:
    (tmp_path / "people.onnx").write_bytes(with_loop(exported.graph, 1000))
    good, bad = ({"instances": [{**records(exported.X[:1])[0], "age": age}]} for age in (40, 2000))
    with serving(tmp_path / "people.onnx", "--timeout", "2") as server:
        expected = server.ask(EXPLAIN, good)
        assert expected[0] == 200
        for _ in range(2):
            assert server.ask(EXPLAIN, bad)[0] == 408
            assert server.ask("/v2/health/live")[0] == 200
        until(lambda: server.ask(EXPLAIN, good) == expected)


@pytest.mark.parametrize("rows", [1, 300])  # 300 rows are more than a batch.
def test_a_shutdown_does_not_wait_for_a_graph_that_never_ends(exported: Any, tmp_path: Path, rows: int) -> None:
    (tmp_path / "people.onnx").write_bytes(with_loop(exported.graph, 1000))
    body = json.dumps({"instances": [{**records(exported.X[:1])[0], "age": 2000}] * rows}).encode()
    with serving(tmp_path / "people.onnx", "--timeout", "20") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST {EXPLAIN} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
    assert any(entry["message"].startswith("Finished server process") for entry in server.log)


def test_a_shutdown_ends_a_process_whose_threads_do_not_end() -> None:
    """A single operator cannot be stopped. Here, a thread that sleeps stands for it."""
    script = """
        import asyncio, signal, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from fastshapley.serving import server
        from fastshapley.serving.app import create_app
        from fastshapley.serving.model_store import ModelStore

        ThreadPoolExecutor(1).submit(time.sleep, 600)
        threading.Timer(1, signal.raise_signal, [signal.SIGTERM]).start()
        server.serve(create_app(ModelStore({})), "127.0.0.1", 0, patience=1)
    """
    lines = [line.strip() for line in script.splitlines()]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "Finished server process" in done.stderr


def test_a_damaged_graph_is_an_error(exported: Any) -> None:
    with pytest.raises(FileFormatError, match="the graph is cut short"):
        try_graph(exported.graph.read_bytes()[:1000])
