"""Census, both recipes: distance to exact Shapley values of their own surrogate games, and speed of explaining.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/census.py        (about ten minutes on one core)

writes docs/results/census.json. The model, the split and the figures to compare with are the paper's.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastshapley import FastSHAP, metrics
from fastshapley.datasets import Split, load_census
from fastshapley.paper.table_settings import boosted_trees
from fastshapley.value_functions import Surrogate

RESULT = Path(__file__).parent.parent / "docs" / "results" / "census.json"
PAPER = {"l2": 0.0229, "l2_interval": 0.0025, "l1": 0.0863, "surrogate_loss": 0.392}
TEST_ROWS = 256


def accuracy(data: Split, model: Any, recipe: Any, seed: int) -> tuple[FastSHAP, dict[str, Any]]:
    """Train both networks and measure on the first test rows."""
    start = time.perf_counter()
    explainer = FastSHAP(model, recipe=recipe, random_state=seed, progress=False).fit(
        data.X_train, X_val=data.X_val
    )
    seconds = time.perf_counter() - start
    rows = data.X_test[:TEST_ROWS]
    values, truth = explainer.shap_values(rows), explainer.estimate(rows, "exact").values
    l2 = metrics.l2(values, truth)
    return explainer, {
        "l2": float(l2.mean()),
        "l2_interval": metrics.interval(l2),
        "l1": float(metrics.l1(values, truth).mean()),
        "relative_squared_error": metrics.relative_squared_error(values, truth),
        "sign_agreement": metrics.sign_agreement(values, truth),
        "surrogate_loss": min(surrogate(explainer).losses_),
        "seconds": round(seconds, 1),
        "seed": seed,
    }


def surrogate(explainer: FastSHAP) -> Surrogate:
    game = explainer.value_function_
    assert isinstance(game, Surrogate)
    return game


def overhead(explainer: FastSHAP, data: Split, rows: int, repeats: int) -> dict[str, Any]:
    """Explaining many rows against the bare forward passes of the same networks, alternating."""
    X = data.X_test.sample(rows, replace=True, random_state=0)
    x = explainer.schema_.encode(X)
    network = surrogate(explainer).network_

    def bare() -> None:
        with torch.no_grad():
            for part in x.split(8192):
                explainer.network_(part)
            for part in x.split(4096):
                network(part, torch.ones(len(part), 1, x.shape[1], dtype=torch.bool))

    seconds: dict[str, list[float]] = {"explain": [], "bare": []}
    for _ in range(repeats):
        for name, run in (("explain", lambda: explainer(X)), ("bare", bare)):
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    ratios = np.array(seconds["explain"]) / np.array(seconds["bare"])
    return {"rows": rows, "ratio_to_bare_forward_passes": float(np.median(ratios)), "repeats": repeats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = load_census()
    model = boosted_trees(data)
    results: dict[str, Any] = {"command": "python benchmarks/census.py", "paper": PAPER, "test_rows": TEST_ROWS}
    for recipe in ("paper", "default"):
        name = f"recipe={recipe}"
        runs = []
        for seed in range(options.seeds):
            explainer, found = accuracy(data, model, recipe, seed)
            runs.append(found)
            print(name, found, flush=True)
        results[name] = runs
        results[f"speed, {name}"] = overhead(explainer, data, 100_000, 9)
        print(results[f"speed, {name}"], flush=True)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
