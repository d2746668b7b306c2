"""``fastshapley fit``: train an explainer on files of rows, and save it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshapley.cli import report_command as report
from fastshapley.cli.command import RESUMES, Result, add_command, add_quiet, add_trust, positive, whole
from fastshapley.cli.early_checks import check_output_file
from fastshapley.errors import InputError
from fastshapley.support.atomic_files import check_output
from fastshapley.support.optional import require

if TYPE_CHECKING:
    from fastshapley import FastSHAP, Groups
    from fastshapley.bulk.file_search import Files


def add(commands: Any) -> None:
    """Add the command ``fit``."""
    parser = _add_command(commands)
    add_data_options(parser).add_argument(
        "--validation",
        metavar="DATA",
        nargs="+",
        help="rows that select the best epoch and measure the report (default: a fifth of DATA)",
    )
    add_game_options(parser)
    _add_training_options(parser)


def _add_command(commands: Any) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "fit",
        _run,
        help="train an explainer of a model, and save it",
        description="Train an explainer on rows like those the model was trained on, measure its error against "
        "exact Shapley values on held-out rows, and save it to one file. If the model knows the names of its "
        "columns, these are used; otherwise all columns except those of --drop. If a fit is interrupted or killed, "
        "run the same command again to resume it. Under torchrun, or with --ray, several processes train together, "
        "each on a share of the rows.",
        examples="""
            fastshapley fit model.joblib --trust train.parquet -o credit.fastshap
            fastshapley fit booster.json "rows/*.csv" -o credit.fastshap --drop id label
            fastshapley fit scoring:predict train.csv -o credit.fastshap --groups job=title,salary
            torchrun --nproc-per-node 4 -m fastshapley fit model.onnx rows/ -o credit.fastshap
        """,
        keys=f"{report.KEYS}; seconds, resumed (whether the fit resumed an earlier run)",
        interrupted=RESUMES,
    )
    add_model_and_rows(parser, "Parquet or CSV files, folders or globs with rows for the model")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="file for the explainer")
    add_quiet(parser)
    return parser


def add_model_and_rows(parser: argparse.ArgumentParser, rows: str) -> None:
    """Add the model and the files of rows; ``rows`` is the help of the latter."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="file: .joblib, .json or .ubj (XGBoost), .txt (LightGBM), .cbm (CatBoost), .onnx; or module:function",
    )
    parser.add_argument("source", metavar="DATA", nargs="+", help=rows)


def add_data_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add what says how the model and the rows are read, and return the group of these options."""
    given = parser.add_argument_group("model and data")
    add_trust(given)
    given.add_argument("--logits", action="store_true", help="the model is a classifier that returns logits")
    given.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns that are not features")
    return given


def add_game_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which game is explained."""
    game = parser.add_argument_group("value function and players")
    game.add_argument(
        "--groups",
        metavar="NAME=COLUMN,...",
        nargs="+",
        action="extend",
        type=_groups,
        default=[],
        help='columns that form one player, or all groups as JSON: {"job": ["title", "salary"]}',
    )
    game.add_argument(
        "--value-function",
        choices=["auto", "conditional", "surrogate", "marginal", "baseline"],
        default="auto",
        help="model output when only some players are known (default: auto, which is conditional for tables)",
    )
    game.add_argument(
        "--link",
        choices=["identity", "logit", "log"],
        default="identity",
        help="scale on which the model's output is explained (default: identity)",
    )


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("training")
    work.add_argument(
        "--recipe",
        choices=["default", "paper", "sampling"],
        default="default",
        help="our default, the algorithm of the paper, or sampling without a network (default: default)",
    )
    add_limits(work)
    add_device(work)
    work.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="train on a Ray cluster (default: start one on this machine)",
    )
    work.add_argument("--workers", type=whole, help="Ray processes (default: one per processor)")


def add_device(work: argparse._ActionsContainer) -> None:
    """Add ``--device``."""
    work.add_argument("--device", help="device of the networks (default: a GPU if there is one)")


def add_seed(work: argparse._ActionsContainer) -> None:
    """Add ``--seed``."""
    work.add_argument("--seed", type=int, help="random seed, for reproducible results")


def add_limits(work: argparse._ActionsContainer) -> None:
    """Add the limits of a training, its seed, and the folder for unfinished work."""
    work.add_argument("--time-budget", metavar="SECONDS", type=positive, help="approximate time limit for the fit")
    work.add_argument(
        "--evaluation-budget", metavar="ROWS", type=whole, help="maximum number of rows to call the model with"
    )
    add_seed(work)
    work.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        type=Path,
        help="folder for unfinished work, which is kept (default: FILE.unfinished, which is deleted at the end)",
    )


def _run(options: argparse.Namespace) -> Result | None:
    start = time.monotonic()
    data = _checked(options)  # An error is reported before torch is imported.
    from fastshapley import FastSHAP
    from fastshapley.cli.model_files import load_model

    explainer = FastSHAP(
        load_model(options.model, trust=options.trust),
        recipe=options.recipe,
        time_budget=options.time_budget,
        evaluation_budget=options.evaluation_budget,
        progress=not options.quiet,
        **explainer_settings(options, data),
    )
    folder = unfinished_folder(options)
    resumed = is_begun(folder)
    if not _fit(explainer, options, data, folder):
        return None
    found = save(explainer, options)
    return Result(found.text, {**found.data, "seconds": time.monotonic() - start, "resumed": resumed})


def explainer_settings(options: argparse.Namespace, data: FitFiles) -> dict[str, Any]:
    """Return the parameters of `FastSHAP` that say what is explained, where, and with which seed."""
    return {
        "value_function": options.value_function,
        "players": _players(data.groups),
        "link": options.link,
        "logits": options.logits,
        "device": options.device,
        "random_state": options.seed,
    }


def unfinished_folder(options: argparse.Namespace) -> Path:
    """Return the folder for unfinished work."""
    folder: Path = options.checkpoint or options.output.with_name(f"{options.output.name}.unfinished")
    return folder


def save(explainer: FastSHAP, options: argparse.Namespace) -> Result:
    """Save an explainer, delete the unfinished work unless its folder was named, and describe the file."""
    explainer.save(options.output)
    if options.checkpoint is None:
        # The explainer is saved, so errors here do not matter.
        shutil.rmtree(unfinished_folder(options), ignore_errors=True)
    found = report.describe(options.output)
    return Result(f"{found.text}\nexplainer: {options.output.resolve()}", found.data)


def is_begun(folder: Path) -> bool:
    """Return whether a folder holds unfinished work. That of a cluster is in a subfolder."""
    return any(folder.rglob("run.json"))


@dataclass(frozen=True)
class FitFiles:
    """The files and the groups of columns that a fit starts from.

    Parameters
    ----------
    rows : Files
        The files of training rows.
    validation : Files or None
        The files of validation rows.
    groups : dict
        The columns of each group.
    """

    rows: Files
    validation: Files | None
    groups: dict[str, list[str]]


def _checked(options: argparse.Namespace) -> FitFiles:
    """Find the files, and check the options as far as that is possible without torch."""
    check_output_file(options.output)
    if options.workers is not None and options.ray is None:
        raise InputError("--workers needs --ray: leave it out, or start several processes with torchrun")
    data = checked_files(options, options.validation)
    files = [data.rows, *([] if data.validation is None else [data.validation])]
    check_output(options.output, options.model, *(path for some in files for path in some.paths))
    return data


def checked_files(options: argparse.Namespace, validation: list[str] | None = None) -> FitFiles:
    """Check the model, find the files of rows, and join the groups of columns, without torch.

    Parameters
    ----------
    options : argparse.Namespace
        The options that `add_model_and_rows`, `add_data_options` and `add_game_options` add.
    validation : list of str, optional
        The files of validation rows.

    Returns
    -------
    FitFiles
        The files and the groups.

    Raises
    ------
    InputError
        If there is no such model, file or column, or a group is named twice.
    """
    groups = _joined_groups(options.groups)
    require("pyarrow", "bulk")
    from fastshapley.bulk.feature_names import check_dropped
    from fastshapley.bulk.file_search import find_files
    from fastshapley.cli.model_files import check_model

    check_model(options.model, trust=options.trust)
    rows = find_files(options.source)
    check_dropped(rows, options.drop)
    return FitFiles(rows, None if validation is None else find_files(validation), groups)


def _fit(explainer: FastSHAP, options: argparse.Namespace, data: FitFiles, folder: Path) -> bool:
    """Fit to the rows of files, and return whether this process is the one that saves the explainer."""
    from fastshapley.bulk.training_rows import joined, model_columns, read_share
    from fastshapley.cli.model_files import feature_names

    files, others = data.rows, data.validation
    columns = model_columns(files, feature_names(explainer.model), options.drop)
    if is_begun(folder) and not options.quiet:
        print(f"resuming from the unfinished work in {folder}", file=sys.stderr)
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
    """Parse ``name=column,column``, or groups as JSON."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not valid JSON: {error}") from None
        if not all(isinstance(c, list) and all(isinstance(name, str) for name in c) for c in found.values()):
            raise argparse.ArgumentTypeError(
                f'{text!r} must list the columns of each group, as in {{"job": ["a", "b"]}}'
            )
        return found
    name, equals, columns = text.partition("=")
    if not (name and equals and all(columns.split(","))):
        raise argparse.ArgumentTypeError(f"must be NAME=COLUMN,COLUMN or JSON, got {text!r}")
    return {name: columns.split(",")}


def _joined_groups(given: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for some in given:
        if twice := groups.keys() & some.keys():
            raise InputError(f"--groups has {sorted(twice)} twice: pass each group once")
        groups |= some
    return groups


def _players(groups: dict[str, list[str]]) -> Groups | None:
    from fastshapley import Groups

    return Groups(groups) if groups else None
