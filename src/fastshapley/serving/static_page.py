"""The page that shows an exported explainer: the browser runs the graph itself. This module needs no torch."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastshapley.support.atomic_files import write_bytes

_MARK = '<script src="tensors.js" defer></script>'  # before which a page with no server has its model


def static_files() -> dict[str, bytes]:
    """The page's files by name, as a server sends them; ``index.html`` is the page."""
    return {file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir()}


def write_page(name: str, graph: bytes, folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write the page of one graph as files that open with no server, and return the path of ``index.html``.

    ``rows`` are examples to start from, as JSON has them: values by column.
    """
    known = json.dumps({name: {"graph": base64.b64encode(graph).decode(), "rows": list(rows)}})
    static = static_files()
    page = static["index.html"].decode()
    assert _MARK in page
    found = {file: data for file, data in static.items() if f'"{file}"' in page}
    found["model.js"] = f"globalThis.fastshapleyModels = {known};\n".encode()
    # the page comes last: one that is there has all that it needs
    found["index.html"] = page.replace(_MARK, f'<script src="model.js" defer></script>\n{_MARK}').encode()
    for file, data in found.items():
        write_bytes(folder / file, data)
    return folder / "index.html"
