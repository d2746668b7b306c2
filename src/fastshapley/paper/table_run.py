"""``fastshapley paper tabular``: the paper's experiments on tables, with both recipes side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastshapley import metrics
from fastshapley.paper import printed
from fastshapley.paper import table_figures as figures
from fastshapley.paper import table_page as page
from fastshapley.paper.pool import compute_all
from fastshapley.paper.store import Store
from fastshapley.paper.table_experiments import (
    ESTIMATORS,
    FULL,
    QUICK,
    Arm,
    CurvePiece,
    ExplainerPiece,
    GamePiece,
    Normalize,
    TableExperiments,
    TablePiece,
    revision,
)
from fastshapley.paper.table_settings import TABLES
from fastshapley.support.atomic_files import write_text
from fastshapley.version import __version__

ARMS: tuple[Arm, ...] = ("paper", "default")
NORMALIZE: tuple[Normalize, ...] = ("always", "inference", "never")
PENALTIES = (0.0, 0.1)


def run(
    output: Path,
    *,
    tables: Sequence[str] = tuple(TABLES),
    quick: bool = False,
    store: Path,
    workers: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Run the experiments, and write ``tabular.json``, figures and ``tabular.md``.

    Parameters
    ----------
    output : Path
        The folder for the results. A file ``tabular-notes.md`` in it becomes part of the page.
    tables : sequence of str, optional
        The tables. The default is all four.
    quick : bool, default=False
        Whether to run at a small scale.
    store : Path
        The folder for intermediate results. What it holds is not computed again.
    workers : int, optional
        The number of processes. The default is one per processor.
    progress : bool, default=True
        Whether to show a progress bar.

    Returns
    -------
    dict
        The content of ``tabular.json``.
    """
    experiments = TableExperiments(Store(store), QUICK if quick else FULL)
    command = " ".join(["fastshapley paper tabular", *(["--only", *tables] if set(tables) != set(TABLES) else [])])
    command += " --quick" * quick
    return write_results(experiments, output, tables, command, workers=workers, progress=progress)


def write_results(
    experiments: TableExperiments,
    output: Path,
    tables: Sequence[str],
    command: str,
    *,
    workers: int | None,
    progress: bool,
) -> dict[str, Any]:
    """Compute the missing pieces of the experiments, and write the numbers, the figures and the page.

    Parameters
    ----------
    experiments : TableExperiments
        The scale and the store.
    output : Path
        The folder for the results.
    tables : sequence of str
        The tables.
    command : str
        The command line that the results name as their origin.
    workers : int or None
        The number of processes. None starts one per processor, and 0 computes in this process.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    dict
        The content of ``tabular.json``.
    """
    stages = pieces(tables, experiments.scale.samples)
    compute_all(experiments, stages, "tabular", workers, progress=progress)
    found = results(experiments, tables)
    found = {"command": command, "version": __version__, "made_by": revision(), **found}
    text = json.dumps(found, indent=1) + "\n"
    write_text(output / "tabular.json", text)
    drawn = figures.draw(found, output)
    notes = output / "tabular-notes.md"
    write_text(output / "tabular.md", page.page(found, drawn, notes.read_text() if notes.exists() else None))
    return found


def pieces(tables: Sequence[str], samples: Sequence[int]) -> tuple[list[GamePiece], list[TablePiece]]:
    """Return all pieces of the experiments: the games with their true values, then what depends on them."""
    games = [GamePiece(table) for table in tables]
    if "marketing" in tables:
        games += [GamePiece("marketing", "marginal"), GamePiece("marketing", "baseline")]
    rest: list[TablePiece] = [ExplainerPiece(game, arm) for game in games for arm in ARMS]
    rest += [CurvePiece(game, name) for game in games for name in ESTIMATORS]
    rest += [explainer for table in tables for _, explainer in by_samples(table, samples)]
    rest += [explainer for table in tables for arm in ARMS for explainer in ablation(table, arm)]
    # Without normalisation, the network is the one that is normalised only at inference.
    rest = [
        replace(p, normalize="inference") if isinstance(p, ExplainerPiece) and p.normalize == "never" else p
        for p in rest
    ]
    return games, list(dict.fromkeys(rest))


def by_samples(table: str, samples: Sequence[int]) -> Iterator[tuple[int, ExplainerPiece]]:
    """Yield explainers of the paper's recipe by coalitions per row, with and without pairs. A pair has two."""
    for paired in (True, False):
        for count in samples:
            count = max(2, count) if paired else count
            yield count, ExplainerPiece(GamePiece(table), "paper", samples=count, paired=paired)


def ablation(table: str, arm: Arm) -> Iterator[ExplainerPiece]:
    """Yield explainers of a recipe by normalisation and penalty."""
    for normalize in NORMALIZE:
        for penalty in PENALTIES:
            yield ExplainerPiece(GamePiece(table), arm, normalize=normalize, penalty=penalty)


def results(experiments: TableExperiments, tables: Sequence[str]) -> dict[str, Any]:
    """Return all numbers, with half the width of their 95 % intervals over test rows.

    Parameters
    ----------
    experiments : TableExperiments
        The experiments, whose pieces are in the store.
    tables : sequence of str
        The tables.

    Returns
    -------
    dict
        The scale, the games, and the explainers by coalitions and by ablation.
    """
    games, _ = pieces(tables, experiments.scale.samples)
    return {
        "scale": asdict(experiments.scale),
        "games": [_game(experiments, game) for game in games],
        "samples": {
            table: [
                {"samples": count, "paired": explainer.paired, **_explainer(experiments, explainer)}
                for count, explainer in by_samples(table, experiments.scale.samples)
            ]
            for table in tables
        },
        "ablation": {
            table: [
                {
                    "recipe": arm,
                    "normalize": explainer.normalize,
                    "penalty": explainer.penalty,
                    **_explainer(experiments, explainer),
                    "printed": printed.ABLATION.get((table, explainer.normalize, explainer.penalty)),
                }
                for arm in ARMS
                for explainer in ablation(table, arm)
            ]
            for table in tables
        },
    }


def _game(experiments: TableExperiments, game: GamePiece) -> dict[str, Any]:
    """Return the errors of both recipes and all estimators, and the evaluations needed to match."""
    truth = experiments.truth(game)
    explainers = {arm: _explainer(experiments, ExplainerPiece(game, arm)) for arm in ARMS}
    curves, needed = {}, {}
    for name in ESTIMATORS:
        curve = experiments.curve(CurvePiece(game, name))
        budgets, means = curve["budgets"].tolist(), curve["l2"].mean(1).tolist()
        intervals = [metrics.interval(row) for row in curve["l2"]]
        curves[name] = {"evaluations": budgets, "l2": means, "l2_interval": intervals}
        needed[name] = {arm: _needed(budgets, means, found["l2"]) for arm, found in explainers.items()}
    found = {
        "table": game.table,
        "game": game.kind,
        "players": int(truth["values"].shape[1]),
        "rows": len(truth["values"]),
        "truth_error": float(np.sqrt(np.square(truth["stderr"]).sum((1, 2))).mean()),
        "printed": printed.L2[game.table, game.kind],
        "explainers": explainers,
        "estimators": curves,
        "evaluations_to_match": needed,
        "printed_evaluations": printed.EVALUATIONS[game.table, game.kind],
    }
    if game.kind == "surrogate":
        surrogate = experiments.surrogate(game.table)
        found["surrogate"] = {"loss": float(surrogate["loss"]), "printed": printed.SURROGATE_LOSS[game.table]}
    return found


def _explainer(experiments: TableExperiments, explainer: ExplainerPiece) -> dict[str, Any]:
    found, truth = experiments.explainer(explainer), experiments.truth(explainer.game)["values"]
    values: NDArray[np.float64] = found["values"]
    l1, l2 = metrics.l1(values, truth), metrics.l2(values, truth)
    return {
        "l2": float(l2.mean()),
        "l2_interval": metrics.interval(l2),
        "l1": float(l1.mean()),
        "l1_interval": metrics.interval(l1),
        "relative_squared_error": metrics.relative_squared_error(values, truth),
        "sign_agreement": metrics.sign_agreement(values, truth),
        "epochs": len(found["losses"]) - 1,
    }


def _needed(budgets: Sequence[float], errors: Sequence[float], target: float) -> float | None:
    """Return the evaluations to reach an error of ``target``, or None if more than the largest budget is needed."""
    needed = metrics.evaluations_to_match(budgets, errors, target)
    return needed if np.isfinite(needed) else None
