"""What breaks, and what does not: damaged files, kills, malicious clients, full disks, and reports next to truth.

    python benchmarks/reliability.py                       everything (about eight minutes on one quiet core)
    python benchmarks/reliability.py files reports         some parts again
    python benchmarks/reliability.py page                  the page again, from the JSON file
    python benchmarks/reliability.py --quick               a smoke run of a minute; its numbers are not kept

writes docs/results/reliability.json after every part, and then reliability.md. Needs the extras onnx, serve and
bulk, and Linux, whose /proc tells the memory of the server. All random choices are seeded.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fastshapley import __version__
from fastshapley.support.atomic_files import write_text

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import reliability_files  # noqa: E402
import reliability_kills  # noqa: E402
import reliability_reports  # noqa: E402
import reliability_server  # noqa: E402
from reliability_page import page  # noqa: E402

RESULT = ROOT / "docs" / "results" / "reliability.json"
PARTS: dict[str, Callable[[Path, bool], Any]] = {
    "files": lambda folder, quick: reliability_files.damage(folder, quick=quick),
    "disk": lambda folder, quick: reliability_files.disk(folder),
    "fits": lambda folder, quick: reliability_kills.kill_fits(folder, quick=quick),
    "bulk": lambda folder, quick: reliability_kills.kill_bulks(folder, quick=quick),
    "server": lambda folder, quick: reliability_server.attacks(folder, quick=quick),
    "graphs": lambda folder, quick: reliability_server.endless_graphs(folder, quick=quick),
    "reports": lambda folder, quick: reliability_reports.reports(quick=quick),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="try everything a few times only, and keep no numbers")
    options = parser.parse_args()
    if unknown := set(options.parts) - {*PARTS, "page"}:
        parser.error(f"there is no part {sorted(unknown)}")
    torch.set_num_threads(1)
    logging.getLogger("fastshapley").setLevel(logging.ERROR)  # Warnings of reports are results here.
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / RESULT.name if options.quick else RESULT
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        for name in [name for name in options.parts or PARTS if name != "page"]:
            start = time.perf_counter()
            folder = Path(scratch) / name
            folder.mkdir()
            found[name] = PARTS[name](folder, options.quick)
            found["version"] = __version__
            found.setdefault("seconds", {})[name] = round(time.perf_counter() - start, 1)
            write_text(result, json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(found[name], indent=1), flush=True)
        if set(PARTS) <= set(found):
            write_text(result.with_suffix(".md"), page(found))


if __name__ == "__main__":
    main()
