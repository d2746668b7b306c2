"""The command line."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import fastshapley
from fastshapley.errors import ExportError, FileFormatError, InputError, ModelError, PartError, TrainingError

_TOLD = (ExportError, FileFormatError, InputError, ModelError, PartError, TrainingError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fastshapley`` with the given arguments, by default those of the process."""
    parser = argparse.ArgumentParser(prog="fastshapley", description=fastshapley.__doc__)
    parser.add_argument("--version", action="version", version=f"fastshapley {fastshapley.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")

    demo = commands.add_parser("demo", help="explain a model of scikit-learn's breast cancer table, or digits")
    demo.add_argument("--images", action="store_true", help="a network that reads scikit-learn's digits")
    demo.add_argument("--output", type=Path, default=Path("demo"), help="folder for the pictures (default: demo)")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")
    demo.set_defaults(run=_demo)

    fit = commands.add_parser(
        "fit",
        help="train an explainer of a model, and save it",
        description="Under torchrun, or with --ray, several processes train together, each on a share of the rows.",
    )
    fit.add_argument(
        "model", help="a .joblib, .json or .ubj (XGBoost), .txt (LightGBM), .cbm, .onnx, or module:name"
    )
    fit.add_argument("source", nargs="+", help="Parquet or CSV files, folders or globs: rows for the model")
    fit.add_argument("-o", "--output", type=Path, required=True, help="the explainer's file")
    fit.add_argument("--drop", nargs="+", default=[], help="columns that are no features")
    fit.add_argument("--trust", action="store_true", help="load a pickle, which can run anything")
    fit.add_argument("--value-function", choices=["surrogate", "marginal", "baseline"], default="surrogate")
    fit.add_argument("--link", choices=["identity", "logit", "log"], default="identity", help="of the outputs")
    fit.add_argument("--seed", type=int, help="for the same result again")
    fit.add_argument("--checkpoint", type=Path, help="folder for unfinished work, to go on from")
    fit.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help="train on a Ray cluster (default: here)")
    fit.add_argument("--workers", type=_whole, help="processes of Ray (default: one a processor)")
    fit.add_argument("--quiet", action="store_true", help="no progress bar")
    fit.set_defaults(run=_fit)

    explain = commands.add_parser(
        "explain",
        help="explain Parquet or CSV files of any size",
        description="Writes Parquet files: a column for each feature and output, the base value, the prediction "
        "and the key columns of the input. An interrupted run goes on where it was.",
    )
    explain.add_argument("file", type=Path, help="what FastSHAP.save wrote")
    explain.add_argument("source", nargs="+", help="Parquet or CSV files, folders, globs, or URIs such as s3://...")
    explain.add_argument("-o", "--output", required=True, help="folder for the values, or its URI")
    explain.add_argument("--keys", nargs="*", help="columns to copy (default: all that are no features)")
    explain.add_argument("--outputs", nargs="+", help="the outputs to explain, by name (default: all)")
    explain.add_argument(
        "--part-rows", type=_whole, metavar="ROWS", help="rows of a part, about (default: 262,144)"
    )
    explain.add_argument("--workers", type=_whole, help="threads, or processes of Ray (default: one a processor)")
    explain.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="on a Ray cluster (default: one of its own, here)"
    )
    explain.add_argument("--quiet", action="store_true", help="no progress bar")
    explain.set_defaults(run=_explain)

    export = commands.add_parser("export", help="write a saved explainer as an ONNX graph")
    export.add_argument("file", type=Path, help="what FastSHAP.save wrote")
    export.add_argument("--output", type=Path, help="the graph (default: the file's name, with .onnx)")
    export.set_defaults(run=_export)

    serve = commands.add_parser(
        "serve",
        help="answer over HTTP for saved explainers, with a page to look at",
        description="KServe's V1 and V2 protocols, a page at /, what there is at /docs, counters at /metrics. A "
        "file that changes is read again. SIGTERM stops it once what was asked for is answered.",
    )
    serve.add_argument(
        "files",
        nargs="+",
        metavar="[NAME=]FILE",
        help="what FastSHAP.save or export wrote; its name is the model's",
    )
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (default: this machine alone)")
    serve.add_argument("--port", type=_port, default=8080, help="default: 8080; 0 takes a free one")
    serve.add_argument(
        "--token-file", type=Path, help="a file with the bearer token to ask for (or $FASTSHAPLEY_TOKEN holds it)"
    )
    serve.add_argument(
        "--origin", action="append", default=[], help="whose pages may use it, such as https://example.org (repeat)"
    )
    serve.add_argument("--max-body", type=_whole, metavar="BYTES", help="the most of a body (default: 8,000,000)")
    serve.add_argument("--max-rows", type=_whole, metavar="ROWS", help="the most of a request (default: 10,000)")
    serve.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="the most of a request (default: 30)")
    serve.add_argument("--log-requests", action="store_true", help="log every request, not only those that fail")
    serve.set_defaults(run=_serve)

    page = commands.add_parser("page", help="write the page of a saved explainer as files that need no server")
    page.add_argument("file", type=Path, help="what FastSHAP.save or export wrote")
    page.add_argument("-o", "--output", type=Path, default=Path("page"), help="folder (default: page)")
    page.set_defaults(run=_page)
    for command in (serve, page):
        command.add_argument(
            "--rows",
            type=Path,
            action="append",
            default=[],
            help="a CSV or JSON file of rows to choose from (repeat)",
        )

    paper = commands.add_parser("paper", help="reproduce the FastSHAP paper's experiments")
    experiments = paper.add_subparsers(required=True, metavar="experiment")
    tabular = experiments.add_parser(
        "tabular",
        help="accuracy on the four tables: figures 2 and 3, the appendix and the ablation",
        description="Everything that the paper shows for tables, with both recipes side by side. An interrupted "
        "run goes on where it was; a second one only reads. A full run takes some hours on two processors.",
    )
    tabular.add_argument("--only", nargs="+", metavar="TABLE", help="census, marketing, bankruptcy or news")
    tabular.add_argument("--quick", action="store_true", help="less of everything: ten minutes on two processors")
    tabular.set_defaults(run=_paper_tabular)

    images = experiments.add_parser(
        "images",
        help="inclusion and exclusion on images: tables 1, 2 and 4, the curves, limited data and pictures",
        description="Everything that the paper shows for images, at a scale for a processor. An interrupted run "
        "goes on where it was; a second one only reads. A full run takes some hours on two processors.",
    )
    images.add_argument("--dataset", choices=["cifar10", "imagenette"], required=True, help="which images")
    images.add_argument("--quick", action="store_true", help="less of everything: minutes")
    for command in (tabular, images):
        command.add_argument(
            "--output", type=Path, default=Path("results"), help="folder for results (default: results)"
        )
        command.add_argument(
            "--store", type=Path, help="folder for what is computed once (default: in the user's cache)"
        )
        command.add_argument("--workers", type=int, help="processes (default: one a processor)")
        command.add_argument("--quiet", action="store_true", help="no progress bar")
    images.set_defaults(run=_paper_images)

    options = parser.parse_args(arguments)
    try:
        result: int = options.run(options)
    except (OSError, ImportError, *_TOLD) as error:
        print(f"fastshapley {options.command}: {error}", file=sys.stderr)
        return 1
    return result


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, and is {text!r}")
    return int(text)


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


def _demo(options: argparse.Namespace) -> int:
    from fastshapley import demo, image_demo

    run = image_demo.run if options.images else demo.run
    found = run(options.output, progress=not options.quiet)
    print(found.report)
    print(
        f"trained in {found.seconds_to_train:.0f} s; {found.microseconds_a_row:.0f} microseconds a row from then on"
    )
    print(f"pictures: {found.page.resolve()}")
    return 0


def _fit(options: argparse.Namespace) -> int:
    from fastshapley import FastSHAP
    from fastshapley.model_files import feature_names, load_model
    from fastshapley.optional import require

    require("pyarrow", "bulk")
    from fastshapley.parts import find_files
    from fastshapley.shares import joined, model_columns, read_share

    model = load_model(options.model, trust=options.trust)
    explainer = FastSHAP(
        model,
        value_function=options.value_function,
        link=options.link,
        random_state=options.seed,
        progress=not options.quiet,
    )
    files = find_files(options.source)
    columns = model_columns(files, feature_names(model), options.drop)
    if options.ray is not None:
        from fastshapley import distributed

        distributed.connect(options.ray or None)
        dataset = distributed.read_files(files, columns)
        explainer.fit(dataset, scaling=options.workers, checkpoint=options.checkpoint)
    else:
        with joined() as (rank, size):
            frame = read_share(files, columns, rank, size)
            together = "torchrun" if size > 1 else None
            explainer.fit(frame, scaling=together, checkpoint=options.checkpoint)
            if rank > 0:
                return 0
    explainer.save(options.output)
    print(explainer.report_)
    print(f"explainer: {options.output.resolve()}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from fastshapley import FastSHAP
    from fastshapley.optional import require

    require("pyarrow", "bulk")
    explainer = FastSHAP.load(options.file)
    explainer.progress = not options.quiet
    settings = {"keys": options.keys, "outputs": options.outputs, "workers": options.workers}
    if options.part_rows is not None:
        settings["part_rows"] = options.part_rows
    try:
        if options.ray is None:
            found = explainer.explain_to(options.source, options.output, **settings)
        else:
            from fastshapley import distributed

            address = options.ray or None
            found = distributed.explain_to(explainer, options.source, options.output, address=address, **settings)
    except KeyboardInterrupt:
        print("fastshapley explain: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    print(found)
    return 0


def _export(options: argparse.Namespace) -> int:
    from fastshapley import FastSHAP

    output = options.output or options.file.with_suffix(".onnx")
    FastSHAP.load(options.file).export_onnx(output)
    print(f"graph: {output.resolve()}")
    return 0


def _serve(options: argparse.Namespace) -> int:
    from fastshapley.optional import require

    for package in ("onnxruntime", "msgspec", "prometheus_client", "starlette", "uvicorn", "httptools"):
        require(package, "serve")
    from fastshapley.serving.app import Limits, create_app
    from fastshapley.serving.models import Models
    from fastshapley.serving.rows import by_model
    from fastshapley.serving.server import is_loopback, serve

    given = {"body": options.max_body, "rows": options.max_rows, "seconds": options.timeout}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})
    models = Models.from_arguments(options.files)
    token = os.environ.get("FASTSHAPLEY_TOKEN")
    if options.token_file is not None:
        token = options.token_file.read_text(encoding="utf-8")
    token = None if token is None else token.strip()
    if token == "":
        raise InputError("the token is empty: fill its file, or leave it out")
    rows = by_model(options.rows, {name: model.graph for name, model in models.items()})
    hosts = None
    if token is None and is_loopback(options.host):
        hosts = [
            "localhost",
            "127.0.0.1",
            "[::1]",
            options.host,
            *(urlsplit(o).hostname or "" for o in options.origin),
        ]
    app = create_app(models, limits=limits, token=token, origins=options.origin, hosts=hosts, rows=rows)
    serve(app, options.host, options.port, patience=limits.seconds, log_requests=options.log_requests)
    return 0


def _page(options: argparse.Namespace) -> int:
    from fastshapley.serving.models import read
    from fastshapley.serving.page import write_page
    from fastshapley.serving.rows import by_model

    model = read(options.file.stem, options.file)
    rows = by_model(options.rows, {model.name: model.graph})[model.name]
    print(f"page: {write_page(model.name, model.data, options.output, rows).resolve()}")
    return 0


def _paper_tabular(options: argparse.Namespace) -> int:
    from fastshapley.downloads import cache
    from fastshapley.paper import tabular
    from fastshapley.paper.tables import TABLES

    tables = options.only or list(TABLES)
    if unknown := set(tables) - set(TABLES):
        print(f"--only: no table {sorted(unknown)}; there are {list(TABLES)}", file=sys.stderr)
        return 2
    found = tabular.run(
        options.output,
        tables=[table for table in TABLES if table in tables],
        quick=options.quick,
        store=options.store or cache() / "paper",
        workers=options.workers,
        progress=not options.quiet,
    )
    for game in found["games"]:
        paper, default = (game["explainers"][arm]["l2"] for arm in ("paper", "default"))
        print(f"{game['table']:10} {game['game']:9}  l2 {default:.4f}  (paper's recipe {paper:.4f}, ", end="")
        print(f"printed {game['printed'][0]:.4f})")
    print(f"results: {(options.output / 'tabular.md').resolve()}")
    return 0


def _paper_images(options: argparse.Namespace) -> int:
    from fastshapley.downloads import cache
    from fastshapley.paper import images

    found = images.run(
        options.output,
        options.dataset,
        quick=options.quick,
        store=options.store or cache() / "paper",
        workers=options.workers,
        progress=not options.quiet,
    )
    for method, result in found["evaluators"]["paper"]["methods"].items():
        exclusion, inclusion = (result[way]["agreement"]["auc"] for way in ("exclusion", "inclusion"))
        print(f"{method:21} exclusion {exclusion:.3f}  inclusion {inclusion:.3f}  ({result['images']} images)")
    print(f"results: {(options.output / 'images.md').resolve()}")
    return 0
