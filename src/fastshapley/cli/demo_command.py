"""``fastshapley demo``: explain a small model, and draw the explanations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import Result, add_command, add_quiet
from fastshapley.cli.early_checks import check_output_folder


def add(commands: Any) -> None:
    """Add the command ``demo``."""
    parser = add_command(
        commands,
        "demo",
        _run,
        help="explain a model of scikit-learn's breast cancer table or digits",
        description="Train a model on data that comes with scikit-learn, explain it, compare the values with "
        "converged or exact ones, and draw figures. Nothing is downloaded.",
        examples="""
            fastshapley demo
            fastshapley demo --images --output pictures/
        """,
        keys="page (the path of its index.html), report, warnings, seconds_to_train, microseconds_a_row",
    )
    parser.add_argument(
        "--images", action="store_true", help="explain a network that classifies scikit-learn's digits"
    )
    parser.add_argument("--quick", action="store_true", help="train for less time, and explain less exactly")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("demo"),
        help="folder for the figures (default: demo)",
    )
    add_quiet(parser)


def _run(options: argparse.Namespace) -> Result:
    check_output_folder(options.output)
    from fastshapley.cli import demo_images as image_demo
    from fastshapley.cli import demo_table as demo

    settings: dict[str, Any] = {"progress": not options.quiet}
    if options.images:
        size = image_demo.QUICK if options.quick else image_demo.FULL
        found = image_demo.run(options.output, size=size, **settings)
    else:
        found = demo.run(options.output, size=demo.QUICK if options.quick else demo.FULL, **settings)
    seconds, microseconds, place = found.seconds_to_train, found.microseconds_a_row, str(found.page.resolve())
    lines = [
        str(found.report),
        f"trained in {seconds:.0f} s; each row then takes {microseconds:.0f} microseconds",
        f"figures: {place}",
    ]
    data = {"page": place, "report": found.report.to_dict(), "warnings": found.report.warnings()}
    return Result("\n".join(lines), {**data, "seconds_to_train": seconds, "microseconds_a_row": microseconds})
