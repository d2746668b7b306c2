"""``fastshapley export``: a saved explainer as an ONNX graph."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import Result, add_command, add_model, load
from fastshapley.support.atomic_files import check_output


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "export",
        _run,
        help="write a saved explainer as an ONNX graph",
        description="Writes an ONNX graph from rows to Shapley values, with the names, the schema and the report "
        "in its metadata. It is held against the explainer before it is written.",
        examples="""
            fastshapley export credit.fastshap
            fastshapley export digits.fastshap --model reading:network -o digits.onnx
        """,
        keys="graph (its path)",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="what fit, or FastSHAP.save, wrote")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the graph (default: the file's name, with .onnx)"
    )
    add_model(parser, "for an explainer of images that is made of its layers")


def _run(options: argparse.Namespace) -> Result:
    output = options.output or options.file.with_suffix(".onnx")
    check_output(output, options.file)
    load(options).export_onnx(output)
    place = str(output.resolve())
    return Result(f"graph: {place}", {"graph": place})
