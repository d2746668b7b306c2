"""Distance to the Shapley values of the user's own model: known truth, held-out scores of games, and parity.

    python benchmarks/fidelity.py known                  designs with known truth (many hours on one core)
    python benchmarks/fidelity.py tables                 held-out MSEv on real tables (about an hour)
    python benchmarks/fidelity.py parity                 the marginal game next to interventional TreeSHAP
    python benchmarks/fidelity.py cost                   seconds of a default fit, the paper's tables
    python benchmarks/fidelity.py check                  self-checks of the truths (a minute)
    python benchmarks/fidelity.py report                 docs/results/fidelity.md from the JSON file

Each part writes docs/results/fidelity.json after every step, and goes on from there when it is started again.
Options select designs, models, rows, runs and competitors, so that parts can be run on their own. `--again`
measures the selected competitors again. `--quick` is a smoke run, whose numbers go to a temporary file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import fidelity_checks
import fidelity_cost
import fidelity_known
import fidelity_page
import fidelity_parity
import fidelity_tables
import torch
from fidelity_designs import DESIGNS
from fidelity_games import COMPETITORS, MODELS

from fastshapley.support.atomic_files import write_text

RESULT = Path(__file__).parent.parent / "docs" / "results" / "fidelity.json"
CACHE = Path(tempfile.gettempdir()) / "fastshapley-fidelity"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--output", type=Path, default=RESULT)
    common.add_argument("--quick", action="store_true", help="a smoke run: few rows")
    common.add_argument("--again", action="store_true", help="measure again what is in the file already")

    known = commands.add_parser("known", parents=[common])
    known.add_argument("--designs", nargs="+", default=list(DESIGNS), choices=list(DESIGNS))
    known.add_argument("--rhos", nargs="+", type=float, default=list(fidelity_known.RHOS))
    known.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    known.add_argument("--rows", nargs="+", type=int, default=list(fidelity_known.ROWS))
    known.add_argument("--runs", nargs="+", type=int, default=[0, 1, 2])
    known.add_argument("--competitors", nargs="+", default=list(COMPETITORS), choices=list(COMPETITORS))
    known.add_argument("--cache", type=Path, default=CACHE, help="a folder for truths, which take longest")
    known.add_argument("--label", help="store the surrogate's results under this name, such as today")
    known.set_defaults(run=fidelity_known.run)

    tables = commands.add_parser("tables", parents=[common])
    tables.add_argument("--tables", nargs="+", default=list(fidelity_tables.TABLES), choices=fidelity_tables.TABLES)
    tables.add_argument("--games", nargs="+", default=list(fidelity_tables.GAMES), choices=fidelity_tables.GAMES)
    tables.add_argument("--cache", type=Path, default=CACHE, help="a folder for the scores of each row")
    tables.set_defaults(run=fidelity_tables.run)

    parity = commands.add_parser("parity", parents=[common])
    parity.add_argument("--tables", nargs="+", default=list(fidelity_parity.TABLES), choices=fidelity_parity.TABLES)
    parity.add_argument("--label", default="marginal", help="store results under this name, such as today")
    parity.set_defaults(run=fidelity_parity.run)

    cost = commands.add_parser("cost", parents=[common])
    cost.add_argument("--tables", nargs="+", default=list(fidelity_cost.TABLES), choices=fidelity_cost.TABLES)
    cost.set_defaults(run=fidelity_cost.run)

    report = commands.add_parser("report")
    report.add_argument("inputs", nargs="*", type=Path, default=[RESULT])
    report.add_argument("--page", type=Path, default=RESULT.with_suffix(".md"))
    commands.add_parser("check")
    return top


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    if options.command == "check":
        return fidelity_checks.run()
    if options.command == "report":
        return fidelity_page.write(options.inputs, options.page)
    if options.quick and options.output == RESULT:
        options.output = CACHE / "quick.json"
        CACHE.mkdir(parents=True, exist_ok=True)
    everything: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}

    def keep() -> None:
        write_text(options.output, json.dumps(everything, indent=1) + "\n")

    options.run(options, everything.setdefault(options.command, {}), keep)


if __name__ == "__main__":
    main()
