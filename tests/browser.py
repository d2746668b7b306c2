"""Open pages in a real browser, and read what they show."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fastshapley import FastSHAP
from fastshapley.export.graph import sealed
from fastshapley.serving.static_page import static_files, write_page

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("needs chromium", allow_module_level=True)

CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
RUN_GRAPH = """([graph, given]) => {
    const bytes = Uint8Array.from(atob(graph), (letter) => letter.charCodeAt(0));
    const found = Object.entries(new OnnxGraph(bytes.buffer).run(given));
    return Object.fromEntries(found.map(([name, { dims, data }]) => [name, [dims, Array.from(data)]]));
}"""


@contextmanager
def launched() -> Iterator[Any]:
    """Run Chromium until the end of the block."""
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        yield running
        running.close()


class Windows:
    """Opens pages and records their problems: console messages, errors, and requests outside their folder."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self._problems: list[str] = []

    def __call__(
        self,
        where: Path | str,
        *,
        excuse: str = "",
        route: tuple[str, Callable[[Any], None]] | None = None,
        **options: Any,
    ) -> Any:
        """Open the page of a file or an address. Messages that contain ``excuse`` are not problems."""
        address = where.as_uri() if isinstance(where, Path) else where
        within = (address.rpartition("/")[0] + "/", "blob:", "data:")
        self._contexts.append(self._browser.new_context(**options))
        page = self._contexts[-1].new_page()
        page.set_default_timeout(10_000)

        def said(message: Any) -> None:
            if not excuse or excuse not in message.text:
                self._problems.append(f"{message.type}: {message.text}")

        def requested(request: Any) -> None:
            if not request.url.startswith(within):
                self._problems.append(request.url)

        page.on("request", requested)
        page.on("console", said)
        page.on("pageerror", lambda error: self._problems.append(str(error)))
        page.on("dialog", lambda dialog: self._problems.append(dialog.message))
        if route is not None:
            page.route(*route)
        page.goto(address)
        return page

    def close(self) -> None:
        """Close all pages, and assert that there were no problems."""
        for context in self._contexts:
            context.close()
        assert self._problems == []


# Graphs


@contextmanager
def interpreter(browser: Any) -> Iterator[Any]:
    """Open an empty page with the scripts that run graphs."""
    page = browser.new_page()
    for name in ("tensors.js", "operators.js", "layers.js", "graph.js"):
        page.add_script_tag(content=static_files()[name].decode())
    yield page
    page.close()


def run_in_browser(page: Any, graph: bytes, **inputs: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Run a graph in the browser, and return its outputs."""
    given = {name: {"dims": list(x.shape), "data": x.ravel().tolist()} for name, x in inputs.items()}
    found = page.evaluate(RUN_GRAPH, [base64.b64encode(graph).decode(), given])
    return {name: np.array(data, dtype=float).reshape(dims) for name, (dims, data) in found.items()}


def assert_same_as_onnxruntime(page: Any, graph: bytes, tolerance: float, **inputs: NDArray[Any]) -> None:
    """Assert that a graph has the same outputs in the browser and in onnxruntime."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
    found = run_in_browser(page, graph, **inputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, atol=tolerance, rtol=tolerance, err_msg=name)


def changed(graph: Path, change: Callable[[dict[str, Any]], object] | None = None, operator: str = "") -> bytes:
    """Return a graph with other metadata, or with one operator renamed."""
    model = onnx.load(graph)
    if change is not None:
        entry = next(entry for entry in model.metadata_props if entry.key == "fastshapley")
        about = json.loads(entry.value)
        change(about)
        entry.value = json.dumps(about)
    if operator:
        next(node for node in model.graph.node if node.op_type == "Gemm").op_type = operator
    del model.metadata_props[-1]  # the digest
    return sealed(model.SerializeToString())


# The page


def page_of(graph: Path | bytes, folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write the page of a graph, given as a file or as bytes."""
    if isinstance(graph, bytes):
        return write_page("people", graph, folder, rows)
    return write_page(graph.stem, graph.read_bytes(), folder, rows)


def value(page: Any, name: str) -> float:
    """Return one of the numbers of the sum: base, sum or prediction."""
    return float(page.locator(f"#{name}").get_attribute("data-value"))


def bars(page: Any, what: str = "value") -> dict[str, float]:
    """Return the values that the page shows, by player, from the first line to the last."""
    script = "(bars, what) => bars.map((bar) => [bar.dataset.player, Number(bar.dataset[what])])"
    return dict(page.locator(".bar").evaluate_all(script, what))


def assert_shows(page: Any, fitted: FastSHAP, row: pd.DataFrame, output: int = 1) -> None:
    """Assert that the page shows the library's numbers for one row, and that they add up."""
    expected = fitted(row, errors=True)
    found, off = bars(page), bars(page, "error")
    for i, name in enumerate(expected.feature_names):
        assert found[name] == pytest.approx(expected.values[0, i, output], abs=1e-4)
        assert off[name] == pytest.approx(expected.error_std[0, i, output], abs=1e-4, nan_ok=True)
    assert value(page, "base") == pytest.approx(expected.base_values[0, output], abs=1e-4)
    assert value(page, "sum") == pytest.approx(sum(found.values()), abs=1e-9)
    assert value(page, "prediction") == pytest.approx(value(page, "base") + value(page, "sum"), abs=1e-4)


def fits(page: Any) -> bool:
    """Return whether nothing is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
