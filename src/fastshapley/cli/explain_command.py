"""``fastshapley explain``: explain files of any size."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastshapley.cli.command import GOES_ON, Result, add_command, add_model, add_quiet, load, whole


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "explain",
        _run,
        help="explain Parquet or CSV files of any size",
        description="Writes Parquet files: a column for each feature and output, the base value, the prediction "
        "and the key columns of the input. Memory stays flat. A run that was interrupted, or killed, goes on where "
        "it was when the same command is given again, and writes no row twice.",
        examples="""
            fastshapley explain credit.fastshap "rows/*.parquet" -o out/
            fastshapley explain credit.fastshap rows.csv -o out/ --keys customer --outputs yes
            fastshapley explain credit.fastshap s3://bucket/rows -o s3://bucket/out --ray auto
        """,
        keys="output (the folder), rows and parts (explained now), kept (parts that were there), seconds",
        interrupted=GOES_ON,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="what fit, or FastSHAP.save, wrote")
    parser.add_argument(
        "source", metavar="DATA", nargs="+", help="Parquet or CSV files, folders, globs, or URIs such as s3://..."
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", required=True, help="folder for the values, or its URI")
    parser.add_argument(
        "--keys",
        metavar="COLUMN",
        nargs="*",
        help="columns to copy, from CSV as text (default: all that are no features)",
    )
    parser.add_argument(
        "--outputs", metavar="NAME", nargs="+", help="the outputs to explain, by name (default: all)"
    )
    add_model(parser, "for a marginal or baseline value function, which calls it")
    parser.add_argument("--part-rows", type=whole, metavar="ROWS", help="rows of a part, about (default: 262,144)")
    parser.add_argument("--workers", type=whole, help="threads, or processes of Ray (default: one a processor)")
    parser.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="on a Ray cluster (default: one of its own, here)"
    )
    add_quiet(parser)


def _run(options: argparse.Namespace) -> Result:
    from fastshapley.support.optional import require

    require("pyarrow", "bulk")
    explainer = load(options)
    explainer.progress = not options.quiet
    settings = {"keys": options.keys, "outputs": options.outputs, "workers": options.workers}
    if options.part_rows is not None:
        settings["part_rows"] = options.part_rows
    if options.ray is None:
        found = explainer.explain_to(options.source, options.output, **settings)
    else:
        from fastshapley.bulk import ray_explain

        address = options.ray or None
        found = ray_explain.explain_to(explainer, options.source, options.output, address=address, **settings)
    return Result(str(found), asdict(found))
