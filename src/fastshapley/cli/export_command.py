"""``fastshapley export``: write a saved explainer as an ONNX graph."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import Result, add_command, add_model, load
from fastshapley.cli.early_checks import check_output_file
from fastshapley.support.atomic_files import check_output


def add(commands: Any) -> None:
    """Add the command ``export``."""
    parser = add_command(
        commands,
        "export",
        _run,
        help="write a saved explainer as an ONNX graph",
        description="Write an ONNX graph that computes Shapley values from rows. Its metadata holds the names, "
        "the schema and the report. For a marginal or baseline value function, the graph also needs the model's "
        "outputs; for a conditional one they are optional. The graph is checked against the explainer before "
        "it is written.",
        examples="""
            fastshapley export credit.fastshap
            fastshapley export digits.fastshap --model reading:network -o digits.onnx
        """,
        keys="graph (its path)",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="explainer, as written by fit or FastSHAP.save")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="file for the graph (default: FILE with the suffix .onnx)"
    )
    add_model(parser, "by an explainer of images that uses the layers of the model")


def _run(options: argparse.Namespace) -> Result:
    output = options.output or options.file.with_suffix(".onnx")
    check_output(output, options.file)
    check_output_file(output)
    load(options).export_onnx(output)
    place = str(output.resolve())
    return Result(f"graph: {place}", {"graph": place})
