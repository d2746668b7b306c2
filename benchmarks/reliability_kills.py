"""Fits and bulk runs that are killed and resumed, for `reliability`.

    python benchmarks/reliability_kills.py fit GAME FOLDER OUTPUT
    python benchmarks/reliability_kills.py bulk EXPLAINER ROWS OUTPUT

are the processes that are killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parent.parent / "tests"
GAMES = ("surrogate", "conditional")
CHAINS = 3  # runs that are killed ...
KILLS = 2  # ... so many times before they may end


def fit(game: str, folder: str, output: str) -> None:
    """Fit with a checkpoint, and write the bytes of the values."""
    from dataclasses import replace

    from problems import QUICK, explainer, numbers

    import fastshapley.training.checkpoint
    from fastshapley import Training

    fastshapley.training.checkpoint.SAVE_INTERVAL = -1.0  # after every epoch
    training = Training(epochs=60, batch_size=8, schedule="cosine")
    recipe = replace(QUICK, explainer=training, errors=Training(steps=200))
    fitting = explainer(lambda rows: np.sin(rows[:, 0]) * rows[:, 1], recipe=recipe, value_function=game)
    print("started", flush=True)
    start = time.perf_counter()
    fitted = fitting.fit(numbers(), checkpoint=folder)
    seconds = time.perf_counter() - start
    values = np.asarray(fitted.shap_values(numbers())).tobytes()
    Path(output).write_text(json.dumps({"seconds": seconds, "digest": hashlib.sha256(values).hexdigest()}))


def bulk(explainer: str, rows: str, output: str) -> None:
    """Explain the rows of a file into a folder of parts of 100 rows."""
    from fastshapley import FastSHAP

    loaded = FastSHAP.load(explainer)
    loaded.progress = False
    print("started", flush=True)
    start = time.perf_counter()
    loaded.explain_to(rows, output, part_rows=100, workers=1)
    Path(f"{output}.json").write_text(json.dumps({"seconds": time.perf_counter() - start}))


def run(*arguments: Any, kill_after: float | None = None) -> bool:
    """Run a process of this file, kill it after some seconds of its work, and return whether it was killed."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *map(str, arguments)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    code = process.wait()
    process.stdout.close()
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def kill_fits(folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    found = []
    for game in GAMES[: 1 if quick else None]:
        whole = folder / f"{game}.json"
        run("fit", game, folder / f"{game}-whole", whole)
        expected = json.loads(whole.read_text())
        rng = random.Random(f"fit {game}")
        results = []
        for chain in range(1 if quick else CHAINS):
            work, output = folder / f"{game}-{chain}", folder / f"{game}-{chain}.json"
            shares = [round(rng.uniform(0.05, 0.95), 3) for _ in range(1 if quick else KILLS)]
            killed = [
                run("fit", game, work, output, kill_after=share * expected["seconds"])
                for share in shares
                if not output.exists()
            ]
            before = names(work)
            if not output.exists():
                run("fit", game, work, output)
            results.append(
                {
                    "killed at": shares,
                    "killed": sum(killed),
                    "files after the last kill": before,
                    "same bytes": json.loads(output.read_text())["digest"] == expected["digest"],
                    "temporary files": sum(name.startswith(".") for name in names(work)),
                }
            )
        found.append({"game": game, "seconds": expected["seconds"], "runs": results})
    return found


def kill_bulks(folder: Path, *, quick: bool) -> dict[str, Any]:
    from bulks import chances, keyed
    from problems import explainer as quick_explainer
    from problems import people

    from fastshapley.bulk import output_folder

    saved, rows = folder / "people.fastshap", folder / "rows.parquet"
    quick_explainer(chances).fit(people()[0]).save(saved)
    keyed(2_000 if quick else 60_000).to_parquet(rows, row_group_size=100)
    run("bulk", saved, rows, folder / "whole")
    expected = digests(folder / "whole")
    seconds = json.loads((folder / "whole.json").read_text())["seconds"]
    rng = random.Random("bulk")
    results = []
    for chain in range(1 if quick else CHAINS):
        out = folder / f"out-{chain}"
        shares = [round(rng.uniform(0.05, 0.3), 3) for _ in range(1 if quick else KILLS)]
        killed, done = 0, []
        for share in shares:
            if not Path(f"{out}.json").exists():
                killed += run("bulk", saved, rows, out, kill_after=share * seconds)
                done.append(len(digests(out)) if out.exists() else 0)
        run("bulk", saved, rows, out)
        left = temporary(out)
        for path in left:
            os.utime(path, (0, 0))  # as if they were old
        run("bulk", saved, rows, out)
        results.append(
            {
                "killed at": shares,
                "killed": killed,
                "parts at the kills": done,
                "same bytes": digests(out) == expected,
                "temporary files after the next run": len(left),
                "temporary files after a run when these were old": len(temporary(out)),
            }
        )
    hours = output_folder._ABANDONED_AFTER / 3.6e12
    return {"parts": len(expected), "seconds": seconds, "hours until old": hours, "runs": results}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("part-*.parquet")}


def temporary(folder: Path) -> list[Path]:
    """Return the files of a folder that are neither parts nor the manifest nor the mark of success."""
    known = ("_fastshapley.json", "_SUCCESS")
    return [path for path in folder.iterdir() if path.name not in known and not path.name.startswith("part-")]


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    {"fit": fit, "bulk": bulk}[sys.argv[1]](*sys.argv[2:])
