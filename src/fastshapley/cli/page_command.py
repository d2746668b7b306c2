"""``fastshapley page``: write a page for a saved explainer that needs no server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import Result, add_command
from fastshapley.cli.early_checks import check_files, check_output_folder, check_served
from fastshapley.cli.serve_command import add_rows


def add(commands: Any) -> None:
    """Add the command ``page``."""
    parser = add_command(
        commands,
        "page",
        _run,
        help="write a page for a saved explainer that needs no server",
        description="Write a folder with an index.html that opens in any browser. The browser computes the "
        "Shapley values. The page has a slider for each column of a table, or a place to drop an image. Where "
        "the explainer has a surrogate, the predictions on the page are the surrogate's estimates.",
        examples="""
            fastshapley page credit.fastshap -o page/ --rows examples.csv
        """,
        keys="page (the path of its index.html)",
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="explainer, as written by fit, FastSHAP.save or export"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("page"),
        help="folder for the page (default: page)",
    )
    add_rows(parser)


def _run(options: argparse.Namespace) -> Result:
    check_files(options.rows, "--rows")
    check_output_folder(options.output)
    check_served([options.file])
    from fastshapley.serving.example_rows import example_rows_by_model
    from fastshapley.serving.model_loader import ModelLoader
    from fastshapley.serving.static_page import write_page

    model = ModelLoader().load(options.file.stem, options.file)
    rows = example_rows_by_model(options.rows, {model.name: model.graph})[model.name]
    place = str(write_page(model.name, model.data, options.output, rows).resolve())
    return Result(f"page: {place}", {"page": place})
