"""``fastshapley serve``: serve explanations over HTTP. This module does not import torch."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastshapley.cli.command import add_command, whole
from fastshapley.cli.early_checks import check_files, check_served
from fastshapley.errors import InputError

if TYPE_CHECKING:
    from fastshapley.serving.model_loader import OutputsSource

_PREDICTOR_SECONDS = 10.0  # default of --predictor-timeout


def add(commands: Any) -> None:
    """Add the command ``serve``."""
    parser = add_command(
        commands,
        "serve",
        _run,
        help="serve saved explainers over HTTP, with a page for people",
        description="Serve KServe's V1 and V2 protocols, a page at /, the API documentation at /docs and "
        "metrics at /metrics. An explainer of the model itself (marginal, baseline, conditional) needs the model's "
        "output for each row: from --predictor, from --model, or with each request. Without it, values of a "
        "conditional explainer sum to the surrogate's output. A file that changes is loaded again. After "
        "SIGTERM, the server answers the pending requests and stops. The log "
        "on standard error has one JSON object per line.",
        examples="""
            fastshapley serve credit.fastshap
            fastshapley serve credit.fastshap --predictor http://credit-predictor
            fastshapley serve credit.fastshap --model credit-model.onnx
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
    _add_outputs(parser)

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

    limits = parser.add_argument_group("limits, changes and log")
    limits.add_argument(
        "--max-body", type=whole, metavar="BYTES", help="maximum size of a request body (default: 8,000,000)"
    )
    limits.add_argument(
        "--max-rows", type=whole, metavar="ROWS", help="maximum number of rows per request (default: 10,000)"
    )
    limits.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="maximum time per request (default: 30)"
    )
    limits.add_argument(
        "--allow-changes",
        action="store_true",
        help="let a changed file have other columns, players or outputs, or another link",
    )
    limits.add_argument("--log-requests", action="store_true", help="log every request, not only failed ones")


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the explained model's own output comes from."""
    outputs = parser.add_argument_group("output of the explained model")
    outputs.add_argument(
        "--predictor",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="server with the model, such as http://credit-predictor: it is asked at /v1/models/NAME:predict, "
        "where NAME is that of the explainer. A full address (/v1/models/NAME:predict or /v2/models/NAME/infer) is "
        "used as it is (can be repeated)",
    )
    outputs.add_argument(
        "--predictor-protocol",
        choices=("v1", "v2"),
        default="v1",
        help="KServe protocol of --predictor (default: v1)",
    )
    outputs.add_argument(
        "--predictor-output", metavar="TENSOR", help="output tensor with the predictions, for protocol v2"
    )
    outputs.add_argument(
        "--predictor-token-file", type=Path, metavar="FILE", help="file with the bearer token for the predictor"
    )
    outputs.add_argument(
        "--predictor-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="maximum time that the predictor may take (default: 10, or less with a smaller --timeout)",
    )
    outputs.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]FILE.onnx",
        help="the model as an ONNX file, which the server runs itself (can be repeated)",
    )
    kserve = parser.add_argument_group("arguments that KServe adds to an explainer's container")
    kserve.add_argument("--model_name", metavar="NAME", help="name of the only explainer")
    kserve.add_argument("--predictor_host", metavar="HOST", help="like --predictor http://HOST")
    kserve.add_argument("--http_port", dest="port", type=_port, default=argparse.SUPPRESS, help="like --port")
    kserve.add_argument("--workers", type=whole, metavar="N", help="ignored: the server is one process")


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
    from fastshapley.serving.model_loader import ModelLoader
    from fastshapley.serving.model_store import ModelStore, named_files
    from fastshapley.serving.request import Limits
    from fastshapley.serving.server import is_loopback, serve

    token = _token(options.token_file)
    check_files(options.rows, "--rows")
    check_served(map(_file_of, options.files))
    given = {"body": options.max_body, "rows": options.max_rows, "seconds": options.timeout}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    files = named_files(options.files)
    if options.model_name is not None:
        if len(files) != 1:
            raise InputError(
                f"--model_name names one explainer, but there are {len(files)}: pass NAME=FILE instead"
            )
        files = {options.model_name: next(iter(files.values()))}
    loader = ModelLoader(sources=_sources(options, list(files), limits.seconds))
    models = ModelStore(files, loader=loader, allow_changes=options.allow_changes)
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


def _sources(options: argparse.Namespace, names: Sequence[str], seconds: float) -> dict[str, OutputsSource]:
    """Return where the outputs of the explained models come from."""
    from fastshapley.serving.model_loader import OutputsSource
    from fastshapley.serving.predictor import Predictor, PredictorAddress

    given = options.predictor
    if options.predictor_host is not None:
        host = options.predictor_host
        given = [*given, host if host.startswith(("http://", "https://")) else f"http://{host}"]
    addresses, models = _by_name(given, names, "--predictor"), _by_name(options.model, names, "--model")
    if both := sorted(addresses.keys() & models.keys()):
        raise InputError(f"{both[0]} has both --predictor and --model: pass one of them")
    limit = options.predictor_timeout or min(_PREDICTOR_SECONDS, 0.8 * seconds)
    token = None if options.predictor_token_file is None else _read_token(options.predictor_token_file)
    sources: dict[str, OutputsSource] = {}
    for name, url in addresses.items():
        address = PredictorAddress.parse(url, name, options.predictor_protocol, options.predictor_output)
        sources[name] = OutputsSource(predictor=Predictor(address, seconds=limit, token=token))
    for name, file in models.items():
        if Path(file).suffix != ".onnx":
            raise InputError(f"--model is {file!r}: serve takes an ONNX file (.onnx), which cannot execute code")
        sources[name] = OutputsSource(model=Path(file))
    return sources


def _by_name(arguments: Sequence[str], names: Sequence[str], option: str) -> dict[str, str]:
    """Return the value of an option for each explainer. A value without a name is for all that have no own."""
    found: dict[str, str] = {}
    general: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in names:
            if name in found:
                raise InputError(f"{option} is given twice for {name!r}: pass it once")
            found[name] = value
        elif equals and re.fullmatch(r"[\w.-]+", name) and not Path(argument).exists():
            raise InputError(f"{option} is for {name!r}, which is not served: choose one of {sorted(names)}")
        else:
            general.append(argument)
    if len(general) > 1:
        raise InputError(f"{option} is given {len(general)} times without a name: pass NAME=... for each explainer")
    return {**dict.fromkeys(names, general[0]), **found} if general else found


def _token(file: Path | None) -> str | None:
    """Return the bearer token of a file or of the environment, or None if neither has one."""
    if file is not None:
        return _read_token(file)
    token = os.environ.get("FASTSHAPLEY_TOKEN")
    return None if token is None else _checked_token(token)


def _read_token(file: Path) -> str:
    return _checked_token(file.read_text(encoding="utf-8"))


def _checked_token(text: str) -> str:
    token = text.strip()
    if not token:
        raise InputError("the token is empty: write a token to its file, or leave the option out")
    if not token.isprintable():
        raise InputError("the token has characters that are not printable: write one line to its file")
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
