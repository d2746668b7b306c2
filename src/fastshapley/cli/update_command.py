"""``fastshapley update``: train a saved explainer further on new rows."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from fastshapley.cli import report_command as report
from fastshapley.cli.check_command import add_source
from fastshapley.cli.command import RESUMES, Result, add_command, add_model, add_quiet, load
from fastshapley.cli.early_checks import check_output_file, feature_files
from fastshapley.cli.fit_command import add_limits, is_begun, save, unfinished_folder
from fastshapley.support.atomic_files import check_output


def add(commands: Any) -> None:
    """Add the command ``update``."""
    parser = add_command(
        commands,
        "update",
        _run,
        help="train a saved explainer further on new rows, and save it as a new file",
        description="Train an explainer further on new rows, from its current weights: for rows or a model that "
        "have drifted. The report, the error bars and the reference of check are then those of the new rows, so "
        "pass old rows too if such rows are still to be explained. An update takes about half the time of a fit. "
        "The old file stays as it is. If an update is interrupted or killed, run the same command again to resume "
        "it.",
        examples="""
            fastshapley update credit.fastshap "rows/*.parquet" --model model.joblib --trust -o new.fastshap
            fastshapley update credit.fastshap rows.csv -o new.fastshap --validation held_out.csv
        """,
        keys=f"{report.KEYS}; seconds, resumed (whether the update resumed an earlier run)",
        interrupted=RESUMES,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="explainer, as written by fit or FastSHAP.save")
    add_source(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="file for the updated explainer"
    )
    parser.add_argument(
        "--validation",
        metavar="DATA",
        nargs="+",
        help="rows that select the best epoch and measure the report (default: a fifth of DATA)",
    )
    add_model(parser, "by every game that calls it; without it, a surrogate stays as it is")
    add_limits(parser)
    add_quiet(parser)


def _run(options: argparse.Namespace) -> Result:
    start = time.monotonic()
    check_output_file(options.output)
    files, features = feature_files(options)  # An error is reported before torch is imported.
    others = None if options.validation is None else feature_files(options, options.validation)
    paths = [*files.paths, *(() if others is None else others[0].paths)]
    check_output(options.output, options.file, *([] if options.model is None else [options.model]), *paths)
    explainer = load(options)
    from fastshapley.bulk.table_rows import read_table

    explainer.progress = not options.quiet
    explainer.time_budget, explainer.evaluation_budget = options.time_budget, options.evaluation_budget
    if options.seed is not None:
        explainer.random_state = options.seed
    folder = unfinished_folder(options)
    resumed = is_begun(folder)
    if resumed and not options.quiet:
        print(f"resuming from the unfinished work in {folder}", file=sys.stderr)
    rows = read_table(explainer.schema_, files, features)
    held_out = None if others is None else read_table(explainer.schema_, *others)
    explainer.update(rows, X_val=held_out, checkpoint=folder)
    found = save(explainer, options)
    return Result(found.text, {**found.data, "seconds": time.monotonic() - start, "resumed": resumed})
