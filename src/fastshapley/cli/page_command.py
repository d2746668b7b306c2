"""``fastshapley page``: the page of a saved explainer as files that need no server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import Result, add_command
from fastshapley.cli.serve_command import add_rows


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "page",
        _run,
        help="write the page of a saved explainer as files that need no server",
        description="Writes a folder whose index.html opens in any browser, which computes the Shapley values "
        "itself: sliders for a table's columns, a place to drop a picture.",
        examples="""
            fastshapley page credit.fastshap -o page/ --rows examples.csv
        """,
        keys="page (the path of its index.html)",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="what fit, FastSHAP.save or export wrote")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, default=Path("page"), help="where to (default: page)"
    )
    add_rows(parser)


def _run(options: argparse.Namespace) -> Result:
    from fastshapley.serving.example_rows import example_rows_by_model
    from fastshapley.serving.model_loader import ModelLoader
    from fastshapley.serving.static_page import write_page

    model = ModelLoader().load(options.file.stem, options.file)
    rows = example_rows_by_model(options.rows, {model.name: model.graph})[model.name]
    place = str(write_page(model.name, model.data, options.output, rows).resolve())
    return Result(f"page: {place}", {"page": place})
