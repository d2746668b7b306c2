"""Wide tables and many classes: seconds, peak memory and error of a fit within one minute.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/sizes.py [--first SRC]     (about 25 minutes on one core)

writes docs/results/sizes.json and sizes.md. Each fit is a process of its own. ``--first`` is the folder ``src`` of
an earlier version, which takes turns with this one.

Wide: 5,000 images of CIFAR-10 as a table of d pixels, and LightGBM that tells animals from vehicles.
Classes: 20,000 articles of the news table with 20 standardised columns, and a model of K classes, whose
probabilities fall with the distance to the K centres that k-means finds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent.parent / "docs" / "results"
SECONDS = 60.0  # time_budget of each fit
SIZES = {"wide": (30, 100, 500, 2000), "classes": (2, 10, 100, 1000)}
WIDE_ROWS, CLASS_ROWS, CLASS_COLUMNS = 5000, 20_000, 20
EXPLAINED = 256  # rows whose explanation is timed

PAGE = """# Wide tables and many classes

`python benchmarks/sizes.py --first SRC` (`FASTSHAPLEY_DATA=../shared/data`) writes this page; all numbers are in
[sizes.json](sizes.json). Each line is one fit in a process of its own with `time_budget=60`, on one core. *First
version* is the state of this repository before the conditional game was added, whose default game is a surrogate.

- Wide: 5,000 images of CIFAR-10 as a table of pixels, and LightGBM (100 trees) that tells animals from vehicles.
- Classes: 20,000 articles of the news table with 20 columns, and a model of K classes, whose probabilities fall
  with the distance to K centres.

The memory is what the fit takes beside the data, the model and the imported libraries. The error is the network's
relative squared error, of all outputs together. Correct signs are those of large values, as the report has them: of
the worst output now, of all outputs in the first version. The network's error does not contain the game's.

{table}

{notes}"""

Case = tuple[Any, np.ndarray]


def wide(columns: int) -> Case:
    import lightgbm

    from fastshapley.datasets import load_cifar10

    images = load_cifar10("train")
    pixels = np.asarray(images.images[:WIDE_ROWS], dtype=np.float32).reshape(WIDE_ROWS, -1)
    y = np.isin(np.asarray(images.labels[:WIDE_ROWS]), (2, 3, 4, 5, 6, 7)).astype(int)  # The others are vehicles.
    chosen = np.sort(np.random.default_rng(0).choice(pixels.shape[1], columns, replace=False))
    X = np.ascontiguousarray(pixels[:, chosen])
    return lightgbm.LGBMClassifier(n_estimators=100, n_jobs=1, verbose=-1).fit(X, y), X


def classes(count: int) -> Case:
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.preprocessing import QuantileTransformer

    from fastshapley.datasets import load_news

    X = np.asarray(load_news().X_train, dtype=np.float64)
    many = [j for j in range(X.shape[1]) if len(np.unique(X[:, j])) > 100][:CLASS_COLUMNS]
    scale = QuantileTransformer(output_distribution="normal", random_state=0)
    X = scale.fit_transform(X[:CLASS_ROWS, many]).clip(-3, 3)
    centres = MiniBatchKMeans(count, n_init=1, random_state=0).fit(X).cluster_centers_

    def model(rows: Any) -> np.ndarray:
        x = np.asarray(rows, dtype=np.float64)
        scores = x @ centres.T - 0.5 * np.square(centres).sum(1)
        powers = np.exp(0.5 * (scores - scores.max(1, keepdims=True)))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    return model, X


CASES: dict[str, Callable[[int], Case]] = {"wide": wide, "classes": classes}


def resident() -> float:
    """Return the memory of this process, in gibibytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / (1 << 20)


def cell(kind: str, size: int) -> dict[str, Any]:
    """Fit one explainer, and return what it took."""
    from fastshapley import FastSHAP

    logging.disable(logging.WARNING)
    model, X = CASES[kind](size)
    peak = [before := resident()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    threading.Thread(target=watch, daemon=True).start()
    start = time.perf_counter()
    explainer = FastSHAP(model, time_budget=SECONDS, random_state=0, progress=False).fit(X)
    seconds = time.perf_counter() - start
    explainer(X[:EXPLAINED])
    start = time.perf_counter()
    explainer(X[:EXPLAINED])
    explained = time.perf_counter() - start
    done.set()
    report = explainer.report_
    return {
        "seconds": seconds,
        "gib_before": before,
        "gib_more": peak[0] - before,
        "microseconds_per_row": 1e6 * explained / EXPLAINED,
        "report": None if report is None else report.to_dict(),
    }


def run(source: Path, kind: str, size: int) -> dict[str, Any]:
    """Measure one cell in a process of its own, with the package in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--cell", kind, str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(found: dict[str, Any]) -> str:
    rows = []
    for key, versions in found.items():
        for name in ("now", "first"):
            each = versions.get(name)
            if each is None:
                continue
            kind, size = key.split("|")
            label = f"{size} columns" if kind == "wide" else f"{size} classes"
            version = {"now": "now", "first": "first version"}[name]
            if "failed" in each:
                rows.append([label, version, each["failed"], *["-"] * 5])
                continue
            report = each["report"] or {}
            error, sign, squares = (
                report.get(name) for name in ("relative_squared_error", "sign_agreement", "mean_squared_value")
            )
            if squares:  # The first version had the error of all outputs together, and has no such entry.
                error = report["mean_squared_error"] / squares
            rows.append(
                [
                    label,
                    version,
                    f"{each['seconds']:.0f}",
                    f"{each['gib_more']:.2f}",
                    "-" if error is None else f"{error:.3f}",
                    "-" if sign is None else f"{100 * sign:.0f} %",
                    str(report.get("rows", "no report")),
                    f"{each['microseconds_per_row']:.0f}",
                ]
            )
    head = ["", "version", "seconds", "GiB beside the data", "network's error", "correct sign", "report rows"]
    head += ["us per row"]
    lines = [head, ["---"] * len(head), *rows]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return PAGE.format(table=body, notes=(RESULTS / "sizes-notes.md").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=Path, help="folder src of an earlier version")
    parser.add_argument("--kinds", nargs="+", choices=sorted(CASES), default=sorted(CASES), help="what to measure")
    parser.add_argument("--cell", nargs=2, metavar=("KIND", "SIZE"), help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write the page from the JSON file only")
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(options.cell[0], int(options.cell[1]))))
        return
    path = RESULTS / "sizes.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    here = Path(__file__).parent.parent / "src"
    for kind in [] if options.page else options.kinds:
        for size in SIZES[kind]:
            entry = found[f"{kind}|{size}"] = {"now": run(here, kind, size)}
            if options.first:
                entry["first"] = run(options.first, kind, size)
            path.write_text(json.dumps(found, indent=1) + "\n")
            short = {name: {k: v for k, v in each.items() if k != "report"} for name, each in entry.items()}
            print(kind, size, short, flush=True)
    (RESULTS / "sizes.md").write_text(page(found))


if __name__ == "__main__":
    main()
