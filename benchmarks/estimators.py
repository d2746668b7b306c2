"""Estimators without training: error against evaluations and seconds, next to shapiq and shap on the same games.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/estimators.py        (about four minutes on two cores)

writes docs/results/estimators.json and .png. Both games are surrogates of the paper's models. Census (12 players)
is compared with exact values, bankruptcy (94) with those of a far larger budget. Peers explain row by row, one
class of two (the other mirrors it); each gets a row's game as a function of many coalitions. Both take turns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import shap
import shapiq
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from fastshapley import metrics
from fastshapley.data.model_adapter import ModelFunction
from fastshapley.data.table_schema import TableSchema
from fastshapley.datasets import Split, load_bankruptcy, load_census
from fastshapley.estimators import exact, kernel
from fastshapley.metrics import evaluations_to_match as match
from fastshapley.paper.table_experiments import ESTIMATORS
from fastshapley.paper.table_settings import boosted_trees, deep_trees
from fastshapley.training.run import Run, one_thread
from fastshapley.value_functions import Problem, Surrogate

RESULTS = Path(__file__).parent.parent / "docs" / "results"
ROWS, BUDGETS, TURNS = 256, (64, 128, 256, 512, 1024, 2048), 4
LARGE_ROWS, LARGE_BUDGETS, LARGE_TRUTH, SEEDS = 64, (378, 512, 768, 1024, 1536, 2048, 4096), 400_000, 3
Array = NDArray[np.float64]
Game = Callable[[NDArray[Any]], Array]
Peer = Callable[[Game, int, int, int], Array]  # game, players, budget, seed -> values


def by_shap(game: Game, players: int, budget: int, seed: int) -> Array:
    """shap sees a model of 0/1 rows with a background of zeros: a coalition is such a row."""
    np.random.seed(seed)  # noqa: NPY002  (shap draws from the global generator)
    explainer = shap.KernelExplainer(game, np.zeros((1, players)))
    return explainer.shap_values(np.ones(players), nsamples=budget - 2, l1_reg=0, silent=True)


def by_shapiq(game: Game, players: int, budget: int, seed: int, cls: Any, **options: Any) -> Array:
    return cls(players, random_state=seed).approximate(budget, game, **options).get_n_order_values(1)


# Defaults, and where an option makes a peer better or faster, that too.
PEERS: dict[str, Peer] = {
    "shapiq KernelSHAP": partial(by_shapiq, cls=shapiq.KernelSHAP),
    "shapiq KernelSHAP, pairs": partial(by_shapiq, cls=partial(shapiq.KernelSHAP, pairing_trick=True)),
    "shapiq PermutationSamplingSV": partial(by_shapiq, cls=shapiq.PermutationSamplingSV),
    "shapiq PermutationSamplingSV, one batch": partial(
        by_shapiq, cls=shapiq.PermutationSamplingSV, batch_size=1000
    ),
    "shapiq SVARM": partial(by_shapiq, cls=shapiq.SVARM),
    "shap KernelExplainer": by_shap,
}


class Timed:
    """A game that counts its evaluations and seconds."""

    def __init__(self, game: Surrogate) -> None:
        self.game, self.players, self.outputs = game, game.players, game.outputs
        self.evaluations, self.seconds = 0, 0.0

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        start = time.perf_counter()
        v = self.game(x, s)
        self.seconds += time.perf_counter() - start
        self.evaluations += len(x) * s.shape[1]
        return v

    def of_row(self, row: Tensor, coalitions: NDArray[Any]) -> Array:
        """Null-centred values of the second class for coalitions (m, players), or one (players,)."""
        s = torch.from_numpy(np.atleast_2d(coalitions).astype(bool))
        return self(row[None], s[None])[0, :, 1].double().numpy() - float(self.game.null[1])


def surrogate(data: Split, model: Any, rows: int) -> tuple[Surrogate, Tensor]:
    """The default recipe's surrogate of a model, and the first test rows."""
    schema = TableSchema.of(data.X_train)
    x, x_val = schema.encode(data.X_train), schema.encode(data.X_val)
    problem = Problem(ModelFunction(model, schema, x), x, x_val, data.players.bind(schema.names))
    with one_thread():
        game = Surrogate().fit(problem, Run(seed=0))
    assert isinstance(game, Surrogate)
    return game, schema.encode(data.X_test[:rows])


def census() -> dict[str, Any]:
    data = load_census()
    surrogate_game, x = surrogate(data, boosted_trees(data), ROWS)
    start = time.perf_counter()
    truth = exact(surrogate_game, x).values
    exact_seconds = time.perf_counter() - start
    game = Timed(surrogate_game)
    curves: dict[str, Any] = {name: [] for name in (*ESTIMATORS, *PEERS)}
    run_all(game, x[:2], truth[:2], BUDGETS[0], 1)  # everything once, untimed: imports, caches
    for budget in BUDGETS:
        for name, found in run_all(game, x, truth, budget, TURNS).items():
            curves[name].append(found)
            print(name, found, flush=True)
    return {
        "players": game.players,
        "rows": ROWS,
        "surrogate_loss": min(surrogate_game.losses_),
        "exact_seconds": exact_seconds,
        "turns": f"ours: means of {TURNS} runs on all rows; peers: each row once, in {TURNS} parts",
        "curves": curves,
        f"at budget {BUDGETS[-1]}": {p: {n: compare(curves[p][-1], curves[n]) for n in ESTIMATORS} for p in PEERS},
    }


def run_all(game: Timed, x: Tensor, truth: Array, budget: int, turns: int) -> dict[str, Any]:
    """Every estimator at one budget: l2 over the rows, evaluations a row, seconds, and those outside the game."""
    errors: dict[str, list[Array]] = {name: [] for name in (*ESTIMATORS, *PEERS)}
    costs = {name: np.zeros(3) for name in errors}  # evaluations, seconds, seconds in the game

    def timed(name: str, explain: Callable[[], Array], truth: Array) -> None:
        game.evaluations, game.seconds, start = 0, 0.0, time.perf_counter()
        values = explain()
        costs[name] += game.evaluations, time.perf_counter() - start, game.seconds
        errors[name].append(metrics.l2(values, truth))

    def row_by_row(peer: Peer, rows: list[int]) -> Array:
        values = np.array([peer(partial(game.of_row, x[i]), game.players, budget, i) for i in rows])
        return np.stack([-values, values], axis=2)

    for turn, part in enumerate(np.array_split(np.arange(len(x)), turns)):
        for name, ours in ESTIMATORS.items():
            run = partial(ours, game, x, budget=budget, random_state=turn)
            timed(name, lambda run=run: run().values, truth)  # type: ignore[misc]
        for name, peer in PEERS.items():
            timed(name, partial(row_by_row, peer, part.tolist()), truth[part])
    results = {}
    for name, (evaluations, seconds, inside) in costs.items():
        runs = turns if name in ESTIMATORS else 1
        l2 = np.mean(errors[name], axis=0) if name in ESTIMATORS else np.concatenate(errors[name])
        results[name] = {
            "budget": budget,
            "evaluations": float(evaluations) / runs / len(x),
            **distance(l2),
            "seconds": float(seconds) / runs,
            "seconds_outside_game": float(seconds - inside) / runs,
        }
    return results


def compare(theirs: dict[str, float], curve: list[dict[str, float]]) -> dict[str, float]:
    """A curve of ours against a peer at the same budget, and where ours has the peer's error (if it gets there)."""
    keys = {"l2": "error", "seconds": "seconds", "seconds_outside_game": "seconds_outside_game"}
    found = {f"their_{label}_over_ours": theirs[key] / curve[-1][key] for key, label in keys.items()}
    if curve[-1]["l2"] <= theirs["l2"]:
        same = match([c["seconds"] for c in curve], [c["l2"] for c in curve], theirs["l2"])
        found["their_seconds_over_ours_at_their_error"] = theirs["seconds"] / same
    return found


def distance(l2: Array) -> dict[str, float]:
    return {"l2": float(l2.mean()), "l2_interval": metrics.interval(l2)}


def bankruptcy() -> dict[str, Any]:
    data = load_bankruptcy()
    game, x = surrogate(data, deep_trees(data), LARGE_ROWS)
    truth = kernel(game, x, budget=LARGE_TRUTH, sampling="leverage", random_state=SEEDS)
    doubt = float(np.sqrt(np.square(truth.stderr).sum((1, 2))).mean())
    errors, curves = {}, {}
    for name in ("kernel, paired", "kernel, leverage"):
        run = partial(ESTIMATORS[name], game, x, budget=LARGE_BUDGETS[-1], history=LARGE_BUDGETS)
        runs = [run(random_state=seed).history for seed in range(SEEDS)]
        errors[name] = np.mean([[metrics.l2(v, truth.values) for v in history] for history in runs], axis=0)
        curves[name] = [{"budget": b, **distance(l2)} for b, l2 in zip(LARGE_BUDGETS, errors[name], strict=True)]
    leverage = [c["l2"] for c in curves["kernel, leverage"]]
    return {
        "players": game.players,
        "rows": LARGE_ROWS,
        f"paired less leverage, {SEEDS} seeds": [distance(p - q) for p, q in zip(*errors.values(), strict=True)],
        "surrogate_loss": min(game.losses_),
        "truth": {"budget": LARGE_TRUTH, "l2_of_stderr": doubt, "share_of_smallest_error": doubt / min(leverage)},
        "curves": curves,
        "evaluations leverage needs for the paired form's error": {
            c["budget"]: match(LARGE_BUDGETS, leverage, c["l2"]) for c in curves["kernel, paired"]
        },
    }


def draw(results: dict[str, Any]) -> None:
    figure = Figure(figsize=(15, 6.4))
    axes = figure.subplots(1, 3)
    colours = dict(zip((*ESTIMATORS, *PEERS), [*colormaps["tab10"](range(10)), "black"], strict=True))
    panels = [("census", "budget", BUDGETS), ("census", "seconds", None), ("bankruptcy", "budget", LARGE_BUDGETS)]
    for axis, (game, cost, ticks) in zip(axes, panels, strict=True):
        for name, curve in results[game]["curves"].items():
            label, style, width = (f"ours: {name}", "o-", 2.0) if name in ESTIMATORS else (name, "s--", 1.2)
            points = [[c[key] for c in curve] for key in (cost, "l2", "l2_interval")]
            axis.errorbar(*points, fmt=style, color=colours[name], label=label, ms=4, capsize=2, lw=width)
        axis.set(xscale="log", yscale="log", title=f"{game}, {results[game]['players']} players")
        axis.set_xlabel(
            "evaluations a row" if ticks else f"seconds for {ROWS} rows, {torch.get_num_threads()} threads"
        )
        if ticks:
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
        low, high = axis.get_ylim()
        axis.set_yticks([y for y in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if low < y < high])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("l2 distance to the true values, mean over rows")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncol=4, frameon=False)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(RESULTS / "estimators.png", dpi=110)


def main() -> None:
    start = time.perf_counter()
    results: dict[str, Any] = {
        "command": "python benchmarks/estimators.py",
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("shapiq", "shap", "torch")},
        "census": census(),
        "bankruptcy": bankruptcy(),
    }
    results["seconds"] = round(time.perf_counter() - start)
    (RESULTS / "estimators.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results)


if __name__ == "__main__":
    main()
