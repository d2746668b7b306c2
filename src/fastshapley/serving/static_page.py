"""The page that shows an exported explainer. The browser itself runs the graph."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastshapley.support.atomic_files import write_bytes

# A page without a server loads its model just before this script.
_FIRST_SCRIPT = '<script src="tensors.js" defer></script>'


def static_files() -> dict[str, bytes]:
    """Return the page's files by name, as the server sends them. ``index.html`` is the page."""
    return {file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir()}


def write_page(name: str, graph: bytes, folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write the page of one model as files that open without a server.

    Parameters
    ----------
    name : str
        Name of the model, which is the page's title.
    graph : bytes
        The exported explainer.
    folder : Path
        Where to write. Missing folders are created.
    rows : sequence of mappings, optional
        Example rows to choose from: values by column.

    Returns
    -------
    page : Path
        Path of ``index.html``.
    """
    models = json.dumps({name: {"graph": base64.b64encode(graph).decode(), "rows": list(rows)}})
    static = static_files()
    page = static["index.html"].decode()
    assert _FIRST_SCRIPT in page
    needed = {file: data for file, data in static.items() if f'"{file}"' in page}
    needed["model.js"] = f"globalThis.fastshapleyModels = {models};\n".encode()
    # The page is written last: if it is there, all that it needs is there.
    scripts = f'<script src="model.js" defer></script>\n{_FIRST_SCRIPT}'
    needed["index.html"] = page.replace(_FIRST_SCRIPT, scripts).encode()
    for file, data in needed.items():
        write_bytes(folder / file, data)
    return folder / "index.html"
