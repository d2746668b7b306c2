"""``fastshapley serve``: answer over HTTP. Nothing here imports torch."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastshapley.cli.command import add_command, whole
from fastshapley.errors import InputError


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "serve",
        _run,
        help="answer over HTTP for saved explainers, with a page to look at",
        description="KServe's V1 and V2 protocols, a page at /, what there is at /docs, counters at /metrics. A "
        "file that changes is read again. SIGTERM stops it once what was asked for is answered. The log, on "
        "standard error, is a JSON object a line.",
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
        help="what fit, FastSHAP.save or export wrote; its name is the model's",
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine alone)")
    parser.add_argument("--port", type=_port, default=8080, help="default: 8080; 0 takes a free one")
    add_rows(parser)

    access = parser.add_argument_group("who may ask")
    access.add_argument(
        "--token-file", type=Path, help="a file with the bearer token to ask for (or $FASTSHAPLEY_TOKEN holds it)"
    )
    access.add_argument(
        "--origin", action="append", default=[], help="whose pages may use it, such as https://example.org (repeat)"
    )

    limits = parser.add_argument_group("limits and log")
    limits.add_argument("--max-body", type=whole, metavar="BYTES", help="the most of a body (default: 8,000,000)")
    limits.add_argument("--max-rows", type=whole, metavar="ROWS", help="the most of a request (default: 10,000)")
    limits.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="the most of a request (default: 30)")
    limits.add_argument("--log-requests", action="store_true", help="log every request, not only those that fail")


def add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a CSV or JSON file of rows to choose from on the page (repeat)",
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

    given = {"body": options.max_body, "rows": options.max_rows, "seconds": options.timeout}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    models = ModelStore.from_arguments(options.files)
    token = os.environ.get("FASTSHAPLEY_TOKEN")
    if options.token_file is not None:
        token = options.token_file.read_text(encoding="utf-8")
    token = None if token is None else token.strip()
    if token == "":
        raise InputError("the token is empty: fill its file, or leave it out")
    rows = example_rows_by_model(options.rows, {name: model.graph for name, model in models.items()})
    hosts = None
    if token is None and is_loopback(options.host):
        hosts = [
            "localhost",
            "127.0.0.1",
            "[::1]",
            options.host,
            *(urlsplit(o).hostname or "" for o in options.origin),
        ]
    app = create_app(models, limits=limits, token=token, origins=options.origin, hosts=hosts, example_rows=rows)
    serve(app, options.host, options.port, patience=limits.seconds, log_requests=options.log_requests)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, and is {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"must be seconds from 0.1 to 86400, and is {text!r}")
    return seconds
