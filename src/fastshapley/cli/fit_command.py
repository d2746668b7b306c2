"""``fastshapley fit``: train an explainer of a model on files of rows, and save it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshapley.cli import report_command as report
from fastshapley.cli.command import GOES_ON, Result, add_command, add_quiet, add_trust, positive, whole
from fastshapley.errors import InputError
from fastshapley.support.atomic_files import check_output

if TYPE_CHECKING:
    from fastshapley import FastSHAP, Groups


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "fit",
        _run,
        help="train an explainer of a model, and save it",
        description="Trains an explainer of a model on rows such as it was trained on, measures how far it is from "
        "the exact Shapley values on rows that are held out, and saves it to one file. The columns are those that "
        "the model knows, if it does, else all but those to --drop. A fit that was interrupted, or killed, goes on "
        "where it was when the same command is given again. Under torchrun, or with --ray, several processes train "
        "together, each on a share of the rows.",
        examples="""
            fastshapley fit model.joblib --trust train.parquet -o credit.fastshap
            fastshapley fit booster.json "rows/*.csv" -o credit.fastshap --drop id label
            fastshapley fit scoring:predict train.csv -o credit.fastshap --groups job=title,salary
            torchrun --nproc-per-node 4 -m fastshapley fit model.onnx rows/ -o credit.fastshap
        """,
        keys=f"{report.KEYS}; seconds, resumed (whether it went on with what an earlier run had left)",
        interrupted=GOES_ON,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a .joblib, .json or .ubj (XGBoost), .txt (LightGBM), .cbm, .onnx, or module:function",
    )
    parser.add_argument(
        "source", metavar="DATA", nargs="+", help="Parquet or CSV files, folders or globs: rows for the model"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the explainer's file")
    add_quiet(parser)

    given = parser.add_argument_group("model and data")
    add_trust(given)
    given.add_argument("--logits", action="store_true", help="the model is a classifier that returns logits")
    given.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns that are no features")
    given.add_argument(
        "--validation",
        metavar="DATA",
        nargs="+",
        help="rows that choose the best epochs and that the report is measured on (default: a fifth of DATA)",
    )

    game = parser.add_argument_group("what is explained")
    game.add_argument(
        "--groups",
        metavar="NAME=COLUMN,...",
        nargs="+",
        action="extend",
        type=_groups,
        default=[],
        help='columns that are one player, or all groups as JSON: {"job": ["title", "salary"]}',
    )
    game.add_argument(
        "--value-function",
        choices=["surrogate", "marginal", "baseline"],
        default="surrogate",
        help="what the output is when only some players are known (default: surrogate)",
    )
    game.add_argument(
        "--link",
        choices=["identity", "logit", "log"],
        default="identity",
        help="the scale that the model's output is explained on (default: identity)",
    )

    work = parser.add_argument_group("training")
    work.add_argument(
        "--recipe",
        choices=["default", "paper", "sampling"],
        default="default",
        help="the paper's algorithm, or no network at all (default: default)",
    )
    work.add_argument("--time-budget", metavar="SECONDS", type=positive, help="the time that it may take, about")
    work.add_argument(
        "--evaluation-budget", metavar="ROWS", type=whole, help="the rows that it may call the model with"
    )
    work.add_argument("--seed", type=int, help="for the same result again")
    work.add_argument("--device", help="where the networks run (default: a GPU if there is one)")
    work.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        type=Path,
        help="unfinished work, to go on from; it is kept (default: FILE.unfinished, which is deleted when done)",
    )
    work.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="train on a Ray cluster (default: here)"
    )
    work.add_argument("--workers", type=whole, help="processes of Ray (default: one a processor)")


def _run(options: argparse.Namespace) -> Result | None:
    from fastshapley import FastSHAP
    from fastshapley.cli.model_files import load_model

    if options.output.is_dir():
        raise InputError(f"--output is {options.output}, which is a folder: name a file")
    if options.workers is not None and options.ray is None:
        raise InputError("--workers is for --ray: leave it out, or start several processes with torchrun")
    start = time.monotonic()
    explainer = FastSHAP(
        load_model(options.model, trust=options.trust),
        value_function=options.value_function,
        players=_players(options.groups),
        link=options.link,
        logits=options.logits,
        recipe=options.recipe,
        time_budget=options.time_budget,
        evaluation_budget=options.evaluation_budget,
        device=options.device,
        random_state=options.seed,
        progress=not options.quiet,
    )
    folder = options.checkpoint or options.output.with_name(f"{options.output.name}.unfinished")
    resumed = _is_begun(folder)
    if not _fit(explainer, options, folder):
        return None
    explainer.save(options.output)
    if options.checkpoint is None:
        shutil.rmtree(folder, ignore_errors=True)  # the explainer is saved, whatever happens here
    found = report.described(options.output)
    seconds = time.monotonic() - start
    text = f"{found.text}\nexplainer: {options.output.resolve()}"
    return Result(text, {**found.data, "seconds": seconds, "resumed": resumed})


def _is_begun(folder: Path) -> bool:
    """Whether there is unfinished work in a folder, which may be empty; a cluster's is in a folder in it."""
    return any(folder.rglob("run.json"))


def _fit(explainer: FastSHAP, options: argparse.Namespace, folder: Path) -> bool:
    """Fit to the rows of files; whether it is for this process, of those that train together, to save it."""
    from fastshapley.cli.model_files import feature_names
    from fastshapley.support.optional import require

    require("pyarrow", "bulk")
    from fastshapley.bulk.file_search import find_files
    from fastshapley.bulk.training_rows import joined, model_columns, read_share

    files = find_files(options.source)
    columns = model_columns(files, feature_names(explainer.model), options.drop)
    others = None if options.validation is None else find_files(options.validation)
    check_output(options.output, options.model, *(path for some in (files, others) if some for path in some.paths))
    if _is_begun(folder) and not options.quiet:
        print(f"going on with the unfinished work in {folder}", file=sys.stderr)
    if options.ray is not None:
        from fastshapley.bulk import ray_cluster, ray_fit

        ray_cluster.connect(options.ray or None)
        rows, held_out = (None if some is None else ray_fit.read_files(some, columns) for some in (files, others))
        explainer.fit(rows, X_val=held_out, scaling=options.workers, checkpoint=folder)
        return True
    with joined() as (rank, size):
        rows, held_out = (
            None if some is None else read_share(some, columns, rank, size) for some in (files, others)
        )
        together = "torchrun" if size > 1 else None
        explainer.fit(rows, X_val=held_out, scaling=together, checkpoint=folder)
        return rank == 0


def _groups(text: str) -> dict[str, list[str]]:
    """``name=column,column``, or groups as JSON."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
        if not all(isinstance(c, list) and all(isinstance(name, str) for name in c) for c in found.values()):
            raise argparse.ArgumentTypeError(f'{text!r} must give each player its columns: {{"job": ["a", "b"]}}')
        return found
    name, equals, columns = text.partition("=")
    if not (name and equals and all(columns.split(","))):
        raise argparse.ArgumentTypeError(f"must be NAME=COLUMN,COLUMN or JSON, and is {text!r}")
    return {name: columns.split(",")}


def _players(given: list[dict[str, list[str]]]) -> Groups | None:
    from fastshapley import Groups

    groups: dict[str, list[str]] = {}
    for some in given:
        if twice := groups.keys() & some.keys():
            raise InputError(f"--groups names {sorted(twice)} twice: give each group once")
        groups |= some
    return Groups(groups) if groups else None
