"""What an explanation costs over HTTP: our server next to an empty handler, and to FastAPI around shap.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/serving.py          (ten minutes; needs Debian's wrk)

writes docs/results/serving.json after every part, and continues from there when it is started again; then it writes
serving.md.
The census: 12 columns, a LightGBM model, an explainer of the default recipe with error bars. KServe's own client is
installed into a virtual environment of its own.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import onnx
import onnxruntime

from fastshapley import FastSHAP
from fastshapley.datasets import load_census
from fastshapley.datasets.download import cache
from fastshapley.export.graph import Graph
from fastshapley.paper.table_page import table
from fastshapley.support.atomic_files import write_text

RESULT = Path(__file__).parent.parent / "docs" / "results" / "serving.json"
PEERS = Path(__file__).parent / "serving_peers.py"
FOLDER = cache() / "serving"
PATH = "/v1/models/census:explain"
ROUNDS, SECONDS = 7, 3
STACKS = ("plain", "quick")
NAMES = {
    "serve": "`fastshapley serve`",
    "tree": "FastAPI, `shap.TreeExplainer`",
    "kernel": "FastAPI, `shap.KernelExplainer`, 100 background rows",
}
INTRODUCTION = """
`FASTSHAPLEY_DATA=../shared/data python benchmarks/serving.py` writes this page. It requests one row of the census
(12 columns), explained by a network of the default recipe with error bars, over HTTP on the loopback interface of
two shared cores, with wrk. Each number is the median of seven rounds in which the servers take turns. Ratios are
the medians of the ratios within the rounds. The servers are:

- **empty**: a Starlette handler that reads the same body and sends the same, precomputed answer
- **without network**: our whole server, except that it does not run the graph
- **one layer**: our server with a graph of eight operators and 700 weights, instead of the explainer's 170,000
  weights; its answers are meaningless
- **bare**: a Starlette handler of three lines around the same graph, without checks, batches, limits and counters
- **ours**: `fastshapley serve`

Each runs on two stacks. "Plain" is uvicorn as `pip install uvicorn` installs it (h11, asyncio). "Quick" is the
stack of `fastshapley serve` (httptools, uvloop).
""".strip()
FOUND = """
There were two goals for the stack of `fastshapley serve`:

- At least .6 of the empty handler's throughput at 64 connections. It is {rate:.2f}: met.
- A median latency of at most 1.6 times the empty handler's. It is {latency:.1f} times: **not met**.

The bare handler does not meet them either: its latency is {bare:.1f} times the empty handler's, and its
throughput {bare_rate:.2f}, because it does not batch. Our server without the network has a latency of
{without:.1f} times, and with a graph of one layer {layer:.1f} times. Most of the time is therefore not
arithmetic: onnxruntime needs it to be called between two requests, and to start each of the explainer's
{operators} operators. One run takes {hot:.0f} µs right after another run, and {paused:.0f} µs after a pause. Five
settings of onnxruntime that we tried do not change this, nor do huge pages.

Rounds differ by a third and more, because the machine is shared. What helped:

- Requests that are read together are answered in the next turn of the event loop, by one run and without futures.
- Requests for rows bypass Starlette's routing and middleware.
- orjson writes arrays directly.
- Counters are plain numbers.
- All requests are checked for timeouts together from time to time, instead of with one timer each.
- For a single row, plain Python is used instead of NumPy where it suffices.
- The graph has {operators} operators instead of 100, with long axes last.
""".strip()
NEXT_TO = """
All servers explain the same row of the same model. TreeSHAP and KernelSHAP explain other games (along the paths
of the trees, and with background rows), so this compares times, not values. One forward pass is {tree:.1f} times
as fast as TreeSHAP and {kernel:,.0f} times as fast as KernelSHAP.
""".strip()
FAULTS = """
`tests/serving/test_faults.py` and `tests/serving/test_server.py` test these with every change: requests that
schemathesis generates from the OpenAPI document, 10,000 malformed bodies, endless bodies and headers, slow
senders, clients that do not read, 500 connections, a file that is truncated and replaced under load, and SIGTERM
under load. There was no crash, no wrong answer, and no accepted request was lost.
""".strip()
KSERVE = """
import asyncio, json, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

async def main(url, rows):
    v1, v2 = (InferenceRESTClient(RESTConfig(protocol=protocol)) for protocol in ("v1", "v2"))
    explained = await v1.explain(url, "census", {"instances": rows})
    predicted = await v1.infer(url, {"instances": rows}, "census")
    data = [value for row in rows for value in row.values()]
    tensor = InferInput("rows", [len(rows), len(rows[0])], "FP64", data)
    inferred = await v2.infer(url, InferRequest("census", [tensor]), model_name="census")
    outputs = {output.name: (output.shape, output.data) for output in inferred.outputs}
    print(json.dumps({
        "ready": await v2.is_server_ready(url), "live": await v2.is_server_live(url),
        "model ready": await v2.is_model_ready(url, "census"),
        "v1": [row["shap_values"] for row in explained["explanations"]],
        "v2": outputs["shap_values"],
        "predictions": predicted["predictions"] == explained["predictions"],
    }))

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


def prepare() -> None:
    """Fit the model and its explainer, once."""
    if (FOLDER / "answer.json").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    data = load_census()
    model = lightgbm.LGBMClassifier(n_estimators=200, num_leaves=10, verbose=-1, n_jobs=1)
    model.fit(data.X_train, data.y_train)
    joblib.dump(model, FOLDER / "model.joblib")
    explainer = FastSHAP(model, random_state=0, progress=False).fit(data.X_train)
    explainer.save(FOLDER / "census.fastshap")
    explainer.export_onnx(FOLDER / "census.onnx")
    rows = json.loads(data.X_test[:100].to_json(orient="records"))
    (FOLDER / "rows.json").write_text(json.dumps(rows))
    body = json.dumps({"instances": rows[:1]})
    script = 'wrk.method="POST"\nwrk.headers["content-type"]="application/json"\nwrk.body=[==[' + body + "]==]\n"
    (FOLDER / "post.lua").write_text(script)
    with running("ours", "quick") as url:
        write_text(FOLDER / "answer.json", json.dumps(ask(url, rows[:1])))


@contextmanager
def running(name: str, stack: str) -> Iterator[str]:
    """The URL of one of the servers of `serving_peers`, or of ``fastshapley serve``."""
    port = 8200 + len(_USED)
    _USED.append(port)
    command = [sys.executable, str(PEERS), name, str(port), str(FOLDER), stack]
    if name == "serve":
        command = [sys.executable, "-m", "fastshapley", "serve", str(FOLDER / "census.onnx"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=5)
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                time.sleep(0.1)
        _PIDS[url] = process.pid
        yield url
    finally:
        process.terminate()
        process.wait(60)


_USED: list[int] = []
_PIDS: dict[str, int] = {}


def ask(url: str, rows: list[Any]) -> dict[str, Any]:
    body = json.dumps({"instances": rows}).encode()
    request = urllib.request.Request(url + PATH, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        found: dict[str, Any] = json.load(response)
        return found


def wrk(url: str, connections: int, seconds: float = SECONDS) -> dict[str, float]:
    """The median latency in microseconds, and requests a second; no answer may fail."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "--latency"]
    command += ["-s", str(FOLDER / "post.lua"), url + PATH]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in text, text
    assert "Socket errors" not in text, text
    units = {"us": 1.0, "ms": 1e3, "s": 1e6}
    found: dict[str, float] = {}
    for percentile in ("50", "99"):
        match = re.search(rf"{percentile}%\s+([\d.]+)(us|ms|s)", text)
        assert match, text
        found[f"p{percentile}"] = float(match[1]) * units[match[2]]
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    count = re.search(r"(\d+) requests in", text)
    assert rate
    assert count
    return {**found, "rate": float(rate[1]), "requests": float(count[1])}


def stacks() -> Any:
    """Ours, ours without the network and an empty handler on both stacks, in turn."""
    found: dict[str, Any] = {}
    for stack in STACKS:
        names = ("empty", "without network", "one layer", "bare", "ours")
        with ExitStack() as servers:
            urls = [servers.enter_context(running(name, stack)) for name in names]
            rounds: dict[str, list[Any]] = {name: [] for name in names}
            for _ in range(ROUNDS):
                for name, url in zip(names, urls, strict=True):
                    one, many = wrk(url, 1), wrk(url, 64)
                    rounds[name].append({"p50": one["p50"], "p99": one["p99"], "rate": many["rate"]})
        found[stack] = {
            name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            for name, rows in rounds.items()
        }
        for name in names[1:]:
            pairs = list(zip(rounds[name], rounds["empty"], strict=True))
            found[stack][name]["p50 to empty"] = statistics.median(x["p50"] / e["p50"] for x, e in pairs)
            found[stack][name]["rate to empty"] = statistics.median(x["rate"] / e["rate"] for x, e in pairs)
    return found


def graph() -> Any:
    """What one run of the graph takes for one row, right after another and after a pause, and its operators."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = str(FOLDER / "optimized.onnx")
    session = onnxruntime.InferenceSession(FOLDER / "census.onnx", options, providers=["CPUExecutionProvider"])
    row, _ = Graph(FOLDER / "census.onnx").example()
    taken: dict[str, list[float]] = {"hot": [], "paused": []}
    for _ in range(4000):
        for name, pause in (("paused", 50e-6), ("hot", 0.0)):  # the second follows the first at once
            if pause:
                time.sleep(pause)
            start = time.perf_counter()
            session.run(None, {"rows": row})
            taken[name].append(1e6 * (time.perf_counter() - start))
    operators = len(onnx.load(FOLDER / "optimized.onnx").graph.node)
    return {"operators": operators, **{name: statistics.median(times) for name, times in taken.items()}}


def peers() -> Any:
    found: dict[str, Any] = {}
    with running("serve", "quick") as url, running("tree", "quick") as tree, running("kernel", "quick") as kernel:
        ours, trees, kernels = [], [], []
        for _ in range(3):
            ours.append((wrk(url, 1)["p50"], wrk(url, 64)["rate"]))
            trees.append((wrk(tree, 1)["p50"], wrk(tree, 64)["rate"]))
            kernels.append((wrk(kernel, 1, 20)["p50"], 0.0))
    for name, rows in (("serve", ours), ("tree", trees), ("kernel", kernels)):
        found[name] = {"p50": statistics.median(row[0] for row in rows)}
        if name != "kernel":
            found[name]["rate"] = statistics.median(row[1] for row in rows)
    return found


def soak() -> Any:
    """The memory of ``fastshapley serve`` over 100,000 requests of 64 connections."""
    with running("serve", "quick") as url:
        wrk(url, 64, 3)
        sizes, requests = [_memory(_PIDS[url])], 0.0
        while requests < 100_000:
            requests += wrk(url, 64, 3)["requests"]
            sizes.append(_memory(_PIDS[url]))
    return {"requests": requests, "MiB": sizes}


def _memory(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert match
    return round(int(match[1]) / 1024, 1)


def kserve() -> Any:
    """KServe's client explains through V1 and infers through V2; its values are the library's."""
    home = FOLDER / "kserve"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "kserve"], check=True)
    rows = json.loads((FOLDER / "rows.json").read_text())[:5]
    with running("serve", "quick") as url:
        command = [str(python), "-c", KSERVE, url, json.dumps(rows)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        said = json.loads(text.splitlines()[-1])
    expected = FastSHAP.load(FOLDER / "census.fastshap")(load_census().X_test[:5]).values
    shape, data = said.pop("v2")
    version = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(m.version('kserve'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    return {
        "version": version,
        "V1 differs by": float(np.abs(np.asarray(said.pop("v1")) - expected).max()),
        "V2 differs by": float(np.abs(np.reshape(data, shape) - expected).max()),
        **said,
    }


def main() -> None:
    prepare()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    parts: dict[str, Callable[[], Any]] = {
        "kserve": kserve,
        "graph": graph,
        "stacks": stacks,
        "peers": peers,
        "soak": soak,
    }
    for name, part in parts.items():
        if name not in found:
            found[name] = part()
            write_text(RESULT, json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(found[name], indent=1))
    write_text(RESULT.with_suffix(".md"), page(found))


def page(found: dict[str, Any]) -> str:
    stacks, peers, soak, kserve = (found[name] for name in ("stacks", "peers", "soak", "kserve"))
    quick = stacks["quick"]
    times = {name: peers[name]["p50"] / peers["serve"]["p50"] for name in ("tree", "kernel")}
    differs = max(kserve["V1 differs by"], kserve["V2 differs by"])
    parts = [
        "# What an explanation costs over HTTP",
        INTRODUCTION,
        table(
            [
                "",
                "p50, µs",
                "p99, µs",
                "requests per second, 64 connections",
                "p50, relative to empty",
                "rate, relative to empty",
            ],
            [
                [f"{stack}: {name}", *(f"{row[key]:.0f}" for key in ("p50", "p99", "rate")), *_ratios(row)]
                for stack in STACKS
                for name, row in stacks[stack].items()
            ],
        ),
        FOUND.format(
            rate=quick["ours"]["rate to empty"],
            bare_rate=quick["bare"]["rate to empty"],
            latency=quick["ours"]["p50 to empty"],
            bare=quick["bare"]["p50 to empty"],
            without=quick["without network"]["p50 to empty"],
            layer=quick["one layer"]["p50 to empty"],
            **found["graph"],
        ),
        "## Compared with common solutions",
        NEXT_TO.format(**times),
        table(
            ["", "p50, µs", "requests per second, 64 connections"],
            [
                [NAMES[name], f"{row['p50']:.0f}", f"{row['rate']:.0f}" if "rate" in row else ""]
                for name, row in peers.items()
            ],
        ),
        "## Memory",
        f"The memory of `fastshapley serve` over {soak['requests']:,.0f} requests from 64 connections, in MiB "
        f"every three seconds: {', '.join(f'{size:.1f}' for size in soak['MiB'])}.",
        "## KServe's own client",
        f"kserve {kserve['version']}, in a separate environment, explains with V1 and infers with V2.\n"
        f"Its values differ from the library's by at most {differs:.0e}.",
        "## Faults",
        FAULTS,
    ]
    return "\n\n".join(parts) + "\n"


def _ratios(row: dict[str, float]) -> list[str]:
    return [f"{row[key]:.2f}" if key in row else "1" for key in ("p50 to empty", "rate to empty")]


if __name__ == "__main__":
    main()
