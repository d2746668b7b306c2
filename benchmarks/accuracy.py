"""Accuracy per second of training: the default recipe next to the paper's, on the paper's four tables.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/accuracy.py        (about an hour on two cores)

writes docs/results/accuracy.json after every step, and goes on from there when it is started again. Both recipes
explain the same surrogate game; distances are to exact values, or to converged ones where there are too many
players, on the first 256 test rows. Seconds are those of the explainer alone. The
paper's arm is `recipe="paper"` on every table; its authors took a third layer on marketing and news, and a rate of
.001 on bankruptcy.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fastshapley import FastSHAP, metrics
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.datasets import Split
from fastshapley.estimators import exact, kernel
from fastshapley.fit.network import NetworkProblem, build_network, fit_network
from fastshapley.fit.targets import TrainingRows
from fastshapley.objective import normalize
from fastshapley.paper import printed
from fastshapley.paper.table_experiments import ESTIMATORS
from fastshapley.paper.table_settings import TABLES, baseline
from fastshapley.support.atomic_files import write_text
from fastshapley.training import recipes
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Clock, Run, one_thread
from fastshapley.value_functions import Problem, Surrogate
from fastshapley.value_functions.protocol import total_values

RESULT = Path(__file__).parent.parent / "docs" / "results" / "accuracy.json"
ROWS, EXACT = 256, 16
BUDGETS = (0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16)  # seconds
LESS_TIME = "default with a time budget"
Array = NDArray[np.float64]


@dataclass
class Table:
    """One table of the paper: its game, and the Shapley values of the test rows."""

    name: str
    data: Split
    model: Any
    x: Tensor
    x_val: Tensor
    x_test: Tensor
    game: Surrogate
    truth: Array


def prepare(name: str, results: dict[str, Any]) -> Table:
    """Train the model and the surrogate, also by the paper's schedule, and find the true values."""
    experiment = TABLES[name]
    data = experiment.load()
    model = experiment.train(data)
    schema = TableSchema.of(data.X_train)
    x, x_val, x_test = (schema.encode(X) for X in (data.X_train, data.X_val, data.X_test[:ROWS]))
    players = data.players.bind(schema.names)

    def surrogate(recipe: Recipe) -> tuple[Surrogate, float]:
        problem = Problem(ModelFunction(model, schema, x[:256]), x, x_val, players, "identity", recipe)
        start = time.perf_counter()
        with one_thread():
            game = Surrogate().fit(problem, Run(0))
        assert isinstance(game, Surrogate)
        return game, time.perf_counter() - start

    game, seconds = surrogate(recipes.default(len(x), len(players)))
    if "surrogate" not in results:
        other, other_seconds = surrogate(experiment.recipe)
        results["surrogate"] = {
            "default": {"loss": min(game.losses_), "seconds": seconds},
            "paper recipe": {"loss": min(other.losses_), "seconds": other_seconds},
            "printed": printed.SURROGATE_LOSS[name],
        }
    if game.players <= EXACT:
        truth = exact(game, x_test)
    else:
        truth = kernel(game, x_test, budget=1024 * game.players, sampling="leverage", random_state=1)
    results["truth_error"] = float(np.sqrt(np.square(truth.stderr).sum((1, 2))).mean())
    return Table(name, data, model, x, x_val, x_test, game, truth.values)


def train(table: Table, recipe: Recipe, seed: int, budget: float | None = None) -> dict[str, float]:
    """Train an explainer on the table's game and measure it."""
    run = Run(seed, clock=Clock() if budget is None else Clock(budget))
    game = table.game
    start = time.perf_counter()
    with one_thread():
        network = build_network(table.x, game.schema_, game, game.partition_, None, None, recipe, run)
        rows = TrainingRows(table.x, table.x_val, game.schema_.discrete, game.partition_.owner)
        fit_network(network, NetworkProblem(game, rows, recipe, run))
    seconds = time.perf_counter() - start
    with torch.no_grad():
        phi = network(table.x_test).double()
    values = normalize(phi, total_values(game, table.x_test)).numpy()
    l2 = metrics.l2(values, table.truth)
    return {
        "l2": float(l2.mean()),
        "l2_interval": metrics.interval(l2),
        "relative_squared_error": metrics.relative_squared_error(values, table.truth),
        "sign_agreement": metrics.sign_agreement(values, table.truth),
        "seconds": seconds,
    }


def with_less_time(table: Table, recipe: Recipe, seed: int, l2: float) -> list[dict[str, float]]:
    """The recipe with more and more time, until it is as close as ``l2``."""
    found: list[dict[str, float]] = []
    for budget in BUDGETS:
        found.append({"budget": budget, **train(table, recipe, seed, budget)})
        if found[-1]["l2"] <= l2:
            break
    return found


def sampling(table: Table, l2: float) -> dict[str, float | None]:
    """How many evaluations each estimator needs to be as close as the explainer; None if more than were tried."""
    players = table.game.players
    budget = min(256 * players, 1 << players)
    found: dict[str, float | None] = {}
    for name, estimator in ESTIMATORS.items():
        estimate = estimator(table.game, table.x_test, budget=budget, history=True, random_state=0)
        errors = [float(metrics.l2(values, table.truth).mean()) for values in estimate.history]
        needed = metrics.evaluations_to_match(estimate.budgets, np.array(errors), l2)
        found[name] = float(needed) if np.isfinite(needed) else None
    return {"tried": float(budget), **found}


def other_games(table: Table) -> dict[str, Any]:
    """The same table with the games that call the model itself."""
    found = {}
    X = table.data.X_test[:ROWS]
    for kind in ("baseline", "marginal"):
        start = time.perf_counter()
        game: Any = baseline(table.data) if kind == "baseline" else kind
        explainer = FastSHAP(
            table.model, value_function=game, players=table.data.players, random_state=0, progress=False
        ).fit(table.data.X_train, X_val=table.data.X_val)
        seconds = time.perf_counter() - start
        if kind == "baseline":
            truth = explainer.estimate(X, "exact")
        else:
            truth = explainer.estimate(X, "kernel", budget=1026, sampling="leverage", random_state=1)
        l2 = metrics.l2(explainer.shap_values(X).reshape(truth.values.shape), truth.values)
        found[kind] = {
            "l2": float(l2.mean()),
            "l2_interval": metrics.interval(l2),
            "truth_error": float(np.sqrt(np.square(truth.stderr).sum((1, 2))).mean()),
            "printed": printed.L2[table.name, kind][0],
            "seconds": seconds,
        }
    return found


def summary(results: dict[str, Any]) -> dict[str, Any]:
    """The default recipe's figures as shares of the paper's, by table and as a geometric mean over tables."""
    ratios: dict[str, dict[str, float]] = {"final l2": {}, "seconds to match": {}, "total seconds": {}}
    for name, table in results.items():
        runs = [run for run in table.get("seeds", {}).values() if LESS_TIME in run]
        if not runs:
            continue
        ours, papers = ([run[recipe] for run in runs] for recipe in ("default", "paper"))
        seconds = [run["seconds"] for run in papers]
        ratios["final l2"][name] = _share([run["l2"] for run in ours], [run["l2"] for run in papers])
        ratios["seconds to match"][name] = _share([_seconds_to_match(run) for run in runs], seconds)
        ratios["total seconds"][name] = _share([run["seconds"] for run in ours], seconds)
    for shares in filter(None, ratios.values()):
        shares["geometric mean"] = _share(list(shares.values()), [1.0] * len(shares))
    return ratios


def _seconds_to_match(run: dict[str, Any]) -> float:
    last = run[LESS_TIME][-1]
    return float(last["seconds"]) if last["l2"] <= run["paper"]["l2"] else np.inf


def _share(ours: list[float], theirs: list[float]) -> float:
    """The geometric mean of the ratios."""
    return float(np.exp(np.mean(np.log(ours) - np.log(theirs))))


def draw(results: dict[str, Any], path: Path) -> None:
    """Error against seconds of training, a panel a table: the default recipe by time budget, and the paper's."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, (name, table) in zip(panels, results.items(), strict=True):
        for run in table["seeds"].values():
            curve = [*run[LESS_TIME], run["default"]]
            seconds, errors = ([point[key] for point in curve] for key in ("seconds", "l2"))
            panel.plot(seconds, errors, ".-", color="tab:blue", alpha=0.7)
            panel.plot(run["paper"]["seconds"], run["paper"]["l2"], "s", color="tab:red", alpha=0.7)
        panel.set(xscale="log", yscale="log", title=name, xlabel="seconds of training")
        panel.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("l2 to the true values")
    panels[0].plot([], [], ".-", color="tab:blue", label="default recipe")
    panels[0].plot([], [], "s", color="tab:red", label='recipe="paper"')
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    everything: dict[str, Any] = {"command": "python benchmarks/accuracy.py", "tables": {}}
    if options.output.exists():
        everything = json.loads(options.output.read_text())
    tables: dict[str, Any] = everything["tables"]

    def keep() -> None:
        everything["summary"] = summary(tables)
        write_text(options.output, json.dumps(everything, indent=1) + "\n")

    prepared = {name: prepare(name, tables.setdefault(name, {})) for name in options.tables}
    for seed in range(options.seeds):
        for name, table in prepared.items():
            found = tables[name].setdefault("seeds", {}).setdefault(str(seed), {})
            default = recipes.default(len(table.x), table.game.players)
            for arm, recipe in (("paper", recipes.paper()), ("default", default)):
                if arm not in found:
                    found[arm] = train(table, recipe, seed)
                    keep()
            if LESS_TIME not in found:
                found[LESS_TIME] = with_less_time(table, default, seed, found["paper"]["l2"])
                keep()
            print(name, seed, found, flush=True)
    for name, table in prepared.items():
        l2 = float(np.mean([run["default"]["l2"] for run in tables[name]["seeds"].values()]))
        tables[name]["printed_l2"] = printed.L2[name, "surrogate"][0]
        tables[name]["evaluations_to_match"] = sampling(table, l2)
        if name == "marketing" and "other_games" not in tables[name]:
            tables[name]["other_games"] = other_games(table)
        keep()
    draw(tables, options.output.with_suffix(".png"))
    print(json.dumps(everything["summary"], indent=1))


if __name__ == "__main__":
    main()
