"""Peak memory of a fit: a million rows of 30 columns, held against the 4 GiB that it may take.

    python benchmarks/memory.py        (about two minutes)

writes docs/results/memory.json. The peak is that of the whole process: the table, a copy in numpy, LightGBM, and
the fit with its report.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd

from fastshapley import FastSHAP

RESULT = Path(__file__).parent.parent / "docs" / "results" / "memory.json"
ROWS, COLUMNS = 1_000_000, 30


def peak() -> float:
    """Gibibytes, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def main() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((ROWS, COLUMNS)), columns=[f"c{j}" for j in range(COLUMNS)])
    score = X.to_numpy() @ rng.standard_normal(COLUMNS) + X["c0"] * X["c1"]
    y = score + rng.standard_normal(ROWS) > 0
    model = lightgbm.LGBMClassifier(n_estimators=50, n_jobs=1, verbose=-1).fit(X[:100_000], y[:100_000])
    before, start = peak(), time.perf_counter()
    explainer = FastSHAP(model, random_state=0, progress=False).fit(X)
    found = {
        "command": "python benchmarks/memory.py",
        "rows": ROWS,
        "columns": COLUMNS,
        "gib_before_fit": before,
        "gib_peak": peak(),
        "gib_allowed": 4,
        "seconds": time.perf_counter() - start,
        "report": explainer.report_ and explainer.report_.to_dict(),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
