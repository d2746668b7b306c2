"""``fastshapley explain``: explain files of any size."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshapley.cli.command import RESUMES, Result, add_command, add_model, add_quiet, load, positive, whole
from fastshapley.cli.early_checks import check_columns, rows_of_table, saved_explainer
from fastshapley.errors import InputError
from fastshapley.support.optional import require

if TYPE_CHECKING:
    from fastshapley.bulk.file_search import Files


def add(commands: Any) -> None:
    """Add the command ``explain``."""
    parser = add_command(
        commands,
        "explain",
        _run,
        help="explain Parquet or CSV files of any size",
        description="Explain files in constant memory, and write Parquet files with one column per player and "
        "output, the base value, the prediction, and the key columns of the input. If a run is interrupted or "
        "killed, run the same command again: it resumes, and no row is written twice.",
        examples="""
            fastshapley explain credit.fastshap "rows/*.parquet" -o out/
            fastshapley explain credit.fastshap rows.csv -o out/ --keys customer --outputs yes
            fastshapley explain credit.fastshap rows.csv -o out/ --errors --model model.joblib --trust
            fastshapley explain credit.fastshap s3://bucket/rows -o s3://bucket/out --ray auto
        """,
        keys="output (the folder), rows and parts (explained by this run), kept (parts of earlier runs), seconds, "
        "sums_to (whose output the values sum to: model, surrogate or game)",
        interrupted=RESUMES,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="explainer, as written by fit or FastSHAP.save")
    parser.add_argument(
        "source", metavar="DATA", nargs="+", help="Parquet or CSV files, folders, globs, or URIs such as s3://..."
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder or URI for the values")
    parser.add_argument(
        "--keys",
        metavar="COLUMN",
        nargs="*",
        help="columns to copy, from CSV as text (default: all columns that are not features)",
    )
    parser.add_argument(
        "--outputs", metavar="NAME", nargs="+", help="names of the outputs to explain (default: all)"
    )
    add_model(
        parser,
        "by a marginal or baseline value function, and by a conditional one for values that sum "
        "to the model's output instead of the surrogate's",
    )
    _add_precision(parser)
    parser.add_argument(
        "--part-rows", type=whole, metavar="ROWS", help="approximate rows per part (default: 262,144)"
    )
    parser.add_argument("--workers", type=whole, help="threads, or Ray processes (default: one per processor)")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="use a Ray cluster (default: start one on this machine)",
    )
    add_quiet(parser)


def _add_precision(parser: argparse.ArgumentParser) -> None:
    precise = parser.add_argument_group("standard errors and corrections (columns error_std_<player>)")
    precise.add_argument("--errors", action="store_true", help="also write the standard error of each value")
    precise.add_argument(
        "--errors-about",
        choices=["model", "game"],
        default="model",
        help="whose Shapley values the errors are about (default: model)",
    )
    precise.add_argument(
        "--budget", type=whole, metavar="EVALUATIONS", help="evaluations per row, on average, to correct the values"
    )
    precise.add_argument(
        "--tol",
        type=positive,
        help="correct each row until its largest standard error is below TOL times the range of its values",
    )
    precise.add_argument(
        "--anchor",
        choices=["game", "model"],
        default="game",
        help="model: make the values of a surrogate's game sum to the model's output (default: game)",
    )


def _run(options: argparse.Namespace) -> Result:
    files = _checked(options)
    explainer = load(options)
    explainer.progress = not options.quiet
    settings: dict[str, Any] = {"keys": options.keys, "outputs": options.outputs, "workers": options.workers}
    errors: bool | str = options.errors and (options.errors_about == "model" or "game")
    precision = {"errors": errors, "budget": options.budget, "tol": options.tol, "anchor": options.anchor}
    if options.part_rows is not None:
        settings["part_rows"] = options.part_rows
    if options.ray is None:
        found = explainer.explain_to(files, options.output, **settings, **precision)
    else:
        from fastshapley.bulk import ray_explain
        from fastshapley.bulk.precise_explainer import precise_explainer
        from fastshapley.explain.precision import Precision

        explainer = precise_explainer(explainer, Precision(**precision))
        address = options.ray or None
        found = ray_explain.explain_to(explainer, files, options.output, address=address, **settings)
    return Result(str(found), asdict(found))


def _checked(options: argparse.Namespace) -> Files:
    """Find the files, and check the options as far as that is possible without torch."""
    require("pyarrow", "bulk")
    from fastshapley.bulk.feature_names import check_keys
    from fastshapley.bulk.file_search import locate
    from fastshapley.support.names import chosen_outputs

    system, folder = locate(options.output)
    if system.get_file_info(folder).is_file:
        raise InputError(f"output is {options.output}, which is a file: choose a folder")
    config = saved_explainer(options)
    chosen_outputs(config["output_names"], options.outputs)
    files = rows_of_table(config, options.source, folder)
    check_columns(config, files, options.keys)
    check_keys(files, options.keys or ())
    return files
