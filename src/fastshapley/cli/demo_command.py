"""``fastshapley demo``: from a fitted model to pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import Result, add_command, add_quiet


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "demo",
        _run,
        help="explain a model of scikit-learn's breast cancer table, or digits",
        description="Trains a model on data that scikit-learn brings along, explains it, holds the values against "
        "converged or exact ones, and draws pictures. Nothing is downloaded.",
        examples="""
            fastshapley demo
            fastshapley demo --images --output pictures/
        """,
        keys="page (the path of its index.html), report, warnings, seconds_to_train, microseconds_a_row",
    )
    parser.add_argument("--images", action="store_true", help="a network that reads scikit-learn's digits")
    parser.add_argument("--quick", action="store_true", help="train for less time, and explain less exactly")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("demo"),
        help="where to put the pictures (default: demo)",
    )
    add_quiet(parser)


def _run(options: argparse.Namespace) -> Result:
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
        f"trained in {seconds:.0f} s; {microseconds:.0f} microseconds a row from then on",
        f"pictures: {place}",
    ]
    data = {"page": place, "report": found.report.to_dict(), "warnings": found.report.warnings()}
    return Result("\n".join(lines), {**data, "seconds_to_train": seconds, "microseconds_a_row": microseconds})
