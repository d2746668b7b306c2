"""The part of benchmarks/fidelity.py with known truth: cells of design, model and rows, several runs of each."""

from __future__ import annotations

import itertools
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fidelity_designs import DESIGNS, Array, Categories, Design, Values, true_values
from fidelity_games import COMPETITORS, Answer, Case, default_game, train

RHOS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
ROWS = (600, 2000, 8000)
TEST_ROWS, QUICK_TEST_ROWS = 100, 8
DRAWS, QUICK_DRAWS = 512, 64
NINETY = 1.645  # standard errors on both sides of a value: a 90 % interval
VERSION = 1  # of the designs: a truth that was kept by another version is not used


@dataclass(frozen=True)
class Cell:
    """One design, model and number of rows, and the number of the run, which seeds all that is random."""

    design: str
    rho: float | None
    model: str
    rows: int
    run: int

    @property
    def key(self) -> str:
        return f"{self.design}|{'-' if self.rho is None else self.rho}|{self.model}|{self.rows}|{self.run}"


def cells(options: Namespace) -> Iterator[Cell]:
    """Yield the cells of a selection: A is linear and B boosted, both with 2000 rows and each rho."""
    for run in options.runs:
        for design in options.designs:
            if design in "AB":
                model = {"A": "linear", "B": "boosted"}[design]
                yield from (Cell(design, rho, model, 2000, run) for rho in options.rhos if model in options.models)
            else:
                parts = itertools.product(options.rows, options.models)
                yield from (Cell(design, None, model, rows, run) for rows, model in parts)


def prepare(cell: Cell, test_rows: int) -> tuple[Design, Case]:
    """Draw the rows of a cell and train its model."""
    design = DESIGNS[cell.design](cell.rho or 0.0)
    seed = [zlib.crc32(cell.design.encode()), round(100 * (cell.rho or 0)), cell.rows, cell.run]
    rng = np.random.default_rng(seed)
    x, x_test = design.draw(cell.rows, rng), design.draw(TEST_ROWS, rng)[:test_rows]
    X = design.frame(x)
    model = train(cell.model, X, design.labels(x, rng), cell.run)

    def call(rows: Array) -> Array:
        return np.asarray(model.predict(design.frame(rows)), dtype=np.float64)

    predict = design.lookup(call) if isinstance(design, Categories) else call
    return design, Case(model, cell.model, X, design.frame(x_test), x, x_test, predict, cell.run)


def kept_truth(cell: Cell, design: Design, case: Case, folder: Path, draws: int) -> Values:
    """Return the truth of a cell, from the folder if it was computed there for the same rows and model."""
    path = folder / f"v{VERSION}-{draws}-{len(case.x_test)}-{cell.key.replace('|', '_')}.npz"
    output = case.predict(case.x_test)
    if path.exists():
        with np.load(path) as kept:
            if np.array_equal(kept["x"], case.x_test) and np.allclose(kept["output"], output, atol=1e-6):
                return Values(kept["values"], kept["stderr"])
    truth = true_values(design, case.predict, case.x_test, draws, linear=cell.model == "linear")
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, values=truth.values, stderr=truth.stderr, x=case.x_test, output=output)
    return truth


def scores(values: Array, truth: Array) -> dict[str, float]:
    error = values - truth
    return {
        "mean_absolute_error": float(np.abs(error).mean()),
        "relative_squared_error": float(np.square(error).sum() / np.square(truth).sum()),
    }


def assess(answer: Answer, truth: Array) -> dict[str, Any]:
    covered = {}
    if answer.bars is not None:
        inside = np.abs(answer.values["network"] - truth) <= NINETY * answer.bars
        covered["covered"] = round(float(inside.mean()), 4)
    return {
        **covered,
        **{part: scores(values, truth) for part, values in answer.values.items()},
        **({"stated": answer.stated} if answer.stated else {}),
        "fit_seconds": round(answer.fit_seconds, 2),
        "explain_seconds": round(answer.explain_seconds, 3),
    }


def run(options: Namespace, found: dict[str, Any], keep: Callable[[], None]) -> None:
    """Fill in what is missing in found, cell by cell and competitor by competitor."""
    test_rows, draws = (QUICK_TEST_ROWS, QUICK_DRAWS) if options.quick else (TEST_ROWS, DRAWS)
    asked = [c for c in options.competitors if c != "default" or default_game() != "surrogate"]

    def stored_name(competitor: str) -> str:
        return options.label if options.label and competitor == "surrogate" else competitor

    for cell in cells(options):
        entry = found.setdefault(cell.key, {})
        missing = [c for c in asked if options.again or stored_name(c) not in entry]
        if not missing:
            continue
        design, case = prepare(cell, test_rows)
        start = time.perf_counter()
        truth = kept_truth(cell, design, case, options.cache, draws)
        entry["truth"] = {
            "mean_absolute_value": float(np.abs(truth.values).mean()),
            "standard_error": float(np.sqrt(np.square(truth.stderr).mean())),
            "relative_squared_error": float(np.square(truth.stderr).sum() / np.square(truth.values).sum()),
        }
        print(f"{cell.key}  truth {time.perf_counter() - start:.0f} s  {entry['truth']}", flush=True)
        for name in missing:
            answer = COMPETITORS[name](case)
            result = entry[stored_name(name)] = None if answer is None else assess(answer, truth.values)
            keep()
            print(f"  {stored_name(name):10}", line(result), flush=True)


def line(result: dict[str, Any] | None) -> str:
    if result is None:
        return "-"
    parts = [
        f"{part}: mean absolute error {result[part]['mean_absolute_error']:.4f}, relative squared error "
        f"{result[part]['relative_squared_error']:.4f}"
        for part in ("game", "network")
        if part in result
    ]
    return "; ".join(parts) + f"  (fit {result['fit_seconds']} s)"
