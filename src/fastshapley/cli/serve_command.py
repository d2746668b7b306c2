"""``fastshapley serve``: serve explanations over HTTP. This module does not import torch."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastshapley.cli.command import add_command, whole
from fastshapley.cli.early_checks import check_files, check_served
from fastshapley.errors import InputError


def add(commands: Any) -> None:
    """Add the command ``serve``."""
    parser = add_command(
        commands,
        "serve",
        _run,
        help="serve saved explainers over HTTP, with a page for people",
        description="Serve KServe's V1 and V2 protocols, a page at /, the API documentation at /docs and "
        "metrics at /metrics. For a conditional value function, requests may pass the model's outputs; without "
        "them, values sum to the surrogate's output. A file that changes is loaded again. After SIGTERM, the "
        "server answers the pending requests and stops. The log on standard error has one JSON object per line.",
        examples="""
            fastshapley serve credit.fastshap
            fastshapley serve credit=v2/explainer.onnx --host 0.0.0.0 --token-file token --rows examples.csv
        """,
        interrupted="the server has stopped",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="[NAME=]FILE",
        help="explainer, as written by fit, FastSHAP.save or export; the default NAME is that of the file",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port", type=_port, default=8080, help="port to listen on; 0 selects a free one (default: 8080)"
    )
    add_rows(parser)

    access = parser.add_argument_group("access")
    access.add_argument(
        "--token-file",
        type=Path,
        help="file with the bearer token that clients must send (or set $FASTSHAPLEY_TOKEN)",
    )
    access.add_argument(
        "--origin",
        action="append",
        default=[],
        help="origin whose pages may use the server, such as https://example.org (can be repeated)",
    )

    limits = parser.add_argument_group("limits and log")
    limits.add_argument(
        "--max-body", type=whole, metavar="BYTES", help="maximum size of a request body (default: 8,000,000)"
    )
    limits.add_argument(
        "--max-rows", type=whole, metavar="ROWS", help="maximum number of rows per request (default: 10,000)"
    )
    limits.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="maximum time per request (default: 30)"
    )
    limits.add_argument("--log-requests", action="store_true", help="log every request, not only failed ones")


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add ``--rows``."""
    parser.add_argument(
        "--rows",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="CSV or JSON file with example rows for the page (can be repeated)",
    )


def _run(options: argparse.Namespace) -> None:
    from fastshapley.support.optional import require

    for package in ("onnxruntime", "orjson", "prometheus_client", "starlette", "uvicorn", "httptools"):
        require(package, "serve")
    from fastshapley.serving.app import create_app
    from fastshapley.serving.example_rows import example_rows_by_model
    from fastshapley.serving.model_store import ModelStore
    from fastshapley.serving.request import Limits
    from fastshapley.serving.server import is_loopback, serve

    token = _token(options.token_file)
    check_files(options.rows, "--rows")
    check_served(map(_file_of, options.files))
    given = {"body": options.max_body, "rows": options.max_rows, "seconds": options.timeout}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    models = ModelStore.from_arguments(options.files)
    rows = example_rows_by_model(options.rows, {name: model.graph for name, model in models.items()})
    hosts = None
    if token is None and is_loopback(options.host):
        origins = [urlsplit(origin).hostname or "" for origin in options.origin]
        hosts = ["localhost", "127.0.0.1", "[::1]", options.host, *origins]
    app = create_app(models, limits=limits, token=token, origins=options.origin, hosts=hosts, example_rows=rows)
    serve(app, options.host, options.port, patience=limits.seconds, log_requests=options.log_requests)


def _file_of(argument: str) -> Path:
    """Return the file of an argument that is ``NAME=FILE`` or ``FILE``."""
    return Path(argument if Path(argument).exists() else argument.partition("=")[2] or argument)


def _token(file: Path | None) -> str | None:
    """Return the bearer token of a file or of the environment, or None if neither has one."""
    token = os.environ.get("FASTSHAPLEY_TOKEN")
    if file is not None:
        token = file.read_text(encoding="utf-8")
    token = None if token is None else token.strip()
    if token == "":
        raise InputError("the token is empty: write a token to its file, or leave the option out")
    return token


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 65535, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1 to 86400, got {text!r}")
    return seconds
