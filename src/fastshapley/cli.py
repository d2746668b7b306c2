"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import fastshapley


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fastshapley`` with the given arguments, by default those of the process."""
    parser = argparse.ArgumentParser(prog="fastshapley", description=fastshapley.__doc__)
    parser.add_argument("--version", action="version", version=f"fastshapley {fastshapley.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="explain a model of scikit-learn's breast cancer table")
    demo.add_argument("--output", type=Path, default=Path("demo"), help="folder for the pictures (default: demo)")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")
    demo.set_defaults(run=_demo)

    options = parser.parse_args(arguments)
    result: int = options.run(options)
    return result


def _demo(options: argparse.Namespace) -> int:
    from fastshapley import demo

    found = demo.run(options.output, progress=not options.quiet)
    print(found.report)
    print(
        f"trained in {found.seconds_to_train:.0f} s; {found.microseconds_a_row:.0f} microseconds a row from then on"
    )
    print(f"pictures: {found.page.resolve()}")
    return 0
