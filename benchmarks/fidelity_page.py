"""docs/results/fidelity.md, from the numbers in fidelity.json."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fidelity_designs import DESIGNS
from fidelity_known import RHOS
from scipy import stats

from fastshapley.paper.table_page import table
from fastshapley.support.atomic_files import write_text

# Means over all runs of Aas, Jullum and Løland (2021), from their raw results; mean absolute error, for each rho.
PUBLISHED = {
    "A": {
        "normal": (0.039, 0.043, 0.046, 0.043, 0.037, 0.024),
        "copula": (0.039, 0.044, 0.049, 0.049, 0.047, 0.038),
        "empirical and normal": (0.034, 0.054, 0.067, 0.065, 0.057, 0.040),
        "independence (marginal)": (0.019, 0.264, 0.549, 0.663, 0.652, 0.468),
    },
    "B": {
        "normal": (0.029, 0.033, 0.035, 0.034, 0.030, 0.020),
        "empirical and normal": (0.028, 0.041, 0.052, 0.053, 0.050, 0.045),
        "independence (marginal)": (0.017, 0.202, 0.431, 0.538, 0.550, 0.447),
        "TreeSHAP": (0.020, 0.168, 0.358, 0.459, 0.494, 0.499),
    },
}
COMPARED = ("normal", "empirical and normal")  # the better of these is the published figure to compare with
GAME_LIMIT, NETWORK_LIMIT = 1.5, 2.5  # times the better published figure
DESIGN_LIMIT, MEAN_LIMIT = 0.5, 0.2  # of the first version's relative squared error: each design, geometric mean
LARGE_LIMIT = 0.6  # of the surrogate's MSEv, from three quarters of the players on
PARITY_LIMIT = 0.01
COST_LIMIT = 2.0  # times the seconds of the surrogate's fit
SINGLE_GAMES = ("surrogate", "marginal", "copula")
SHOWN = (  # competitor, part, name on the page
    ("default", "game", "default: exact values of its game"),
    ("default", "network", "default: network"),
    ("today", "game", "first version: exact values of its game"),
    ("today", "network", "first version: network"),
    ("surrogate", "game", "surrogate: exact values of its game"),
    ("surrogate", "network", "surrogate: network"),
    ("marginal", "game", "marginal, 128 background rows"),
    ("normal", "game", "conditional normal samples through the model"),
    ("copula", "game", "normal copula samples through the model"),
    ("TreeSHAP", "game", "TreeSHAP, path-dependent"),
)
Runs = dict[tuple[str, ...], list[dict[str, Any]]]  # design, rho, model, rows -> the runs


def write(inputs: Sequence[Path], page: Path) -> None:
    """Merge result files, where later ones count more, and write the page."""
    merged: dict[str, Any] = {}
    for path in inputs:
        for part, entries in json.loads(path.read_text()).items():
            for key, entry in entries.items():
                merged.setdefault(part, {}).setdefault(key, {}).update(entry)
    notes = page.with_name("fidelity-notes.md")
    write_text(page, render(merged) + ("\n" + notes.read_text() if notes.exists() else ""))
    print(page)


def render(found: dict[str, Any]) -> str:
    parts = [
        "# Distance to the user's model",
        "How far are the values from the Shapley values of the model itself? The game, the network and sampling "
        "all add to this distance. `benchmarks/fidelity.py` measures it in several ways:",
        "```\npython benchmarks/fidelity.py known     # designs with known truth\n"
        "python benchmarks/fidelity.py tables    # held-out scores on real tables, which need no truth\n"
        "python benchmarks/fidelity.py parity    # the marginal game, compared with interventional TreeSHAP\n"
        "python benchmarks/fidelity.py cost      # seconds of a default fit, the paper's tables\n"
        "python benchmarks/fidelity.py check     # self-checks of the truths\n"
        "python benchmarks/fidelity.py report    # this page\n```",
        "Options select designs, models, rows and runs. Every number is in [fidelity.json](fidelity.json). A "
        "measure of a game uses the exact Shapley values of that game, from all coalitions. A measure of a "
        "network uses what `explainer(X)` returns. *First version* is the surrogate of version 0.1, with its "
        "default settings.",
    ]
    if found.get("known"):
        runs = grouped(found["known"])
        parts += [*known_normal(runs), *known_others(runs), *stated(runs)]
    if found.get("tables"):
        parts += real_tables(found["tables"])
    if found.get("parity"):
        parts += parity(found["parity"])
    if found.get("cost"):
        parts += cost(found["cost"])
    return "\n\n".join(parts) + "\n"


def grouped(known: dict[str, Any]) -> Runs:
    runs: Runs = defaultdict(list)
    for key, entry in known.items():
        runs[tuple(key.split("|")[:4])].append(entry)
    return runs


def measured(runs: Iterable[dict[str, Any]], competitor: str, part: str, measure: str) -> list[float]:
    """Return a measure of each run that has it."""
    results = (run.get(competitor) for run in runs)
    return [result[part][measure] for result in results if result and part in result]


def number(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean and half the width of its 95 % interval (Student's t), or a dash."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.{digits}f} ± {half:.{digits}f}"


def verdict(ratios: Sequence[float], limit: float) -> str:
    if not ratios:
        return "not measured"
    kept = sum(ratio <= limit for ratio in ratios)
    return f"{kept} of {len(ratios)} (largest {max(ratios):.2f})"


def known_normal(runs: Runs) -> list[str]:
    """The sections of designs A and B."""
    parts = [
        "## Known truth: normal columns (designs A and B)",
        "The design is that of Aas, Jullum and Løland (2021): ten normal columns with equal correlation rho, "
        "2000 training rows, noise .1, 100 test rows. A is a sum of nine columns with a linear model. B is a "
        "sum of signs, floors and parities with XGBoost (learning rate .3, 50 rounds). The truth of A is a "
        "closed form. The truth of B enumerates all 1024 coalitions with quasi-random draws of the true "
        "conditional distribution. The tables show the mean absolute error of a value and its 95 % interval "
        "over runs. A number without an interval is a single run. *Published* rows are the means of their runs.",
    ]
    for design in ("A", "B"):
        cells = [runs.get((design, str(rho), "linear" if design == "A" else "boosted", "2000"), []) for rho in RHOS]
        if not any(cells):
            continue
        rows = [[label, *columns] for label, columns in known_rows(cells)]
        rows += [[f"published: {n}", *(f"{v:.3f}" for v in values)] for n, values in PUBLISHED[design].items()]
        better = np.min([PUBLISHED[design][name] for name in COMPARED], axis=0)
        for part, limit in (("game", GAME_LIMIT), ("network", NETWORK_LIMIT)):
            means = [np.mean(m) if (m := absolute(cell, "default", part)) else None for cell in cells]
            ratios = [None if m is None else float(m / b) for m, b in zip(means, better, strict=True)]
            if any(r is not None for r in ratios):
                name = f"default {part} / better published (at most {limit})"
                rows.append([name, *("-" if r is None else f"{r:.2f}" for r in ratios)])
        parts += [f"### {design}", table(["", *(f"rho {rho:g}" for rho in RHOS)], rows)]
    return parts


def absolute(cell: list[dict[str, Any]], competitor: str, part: str) -> list[float]:
    return measured(cell, competitor, part, "mean_absolute_error")


def known_rows(cells: list[list[dict[str, Any]]]) -> Iterable[tuple[str, list[str]]]:
    """Yield a line of a table for each competitor that was measured in some cell, then lines about the truth."""
    for competitor, part, label in SHOWN:
        columns = [number(absolute(cell, competitor, part)) for cell in cells]
        if set(columns) != {"-"}:
            yield label, columns
    for key, label in (("mean_absolute_value", "size of a true value"), ("standard_error", "error of the truth")):
        yield label, [number([run["truth"][key] for run in cell], 3 if "size" in label else 4) for cell in cells]
    yield "runs", [str(len(cell)) for cell in cells]


def known_others(runs: Runs) -> list[str]:
    """The section of the designs that are not normal."""
    names = [name for name in DESIGNS if name not in "AB"]
    cells = {key: cell for key, cell in runs.items() if key[0] in names}
    if not cells:
        return []
    shown = [s for s in SHOWN if any(relative(cell, *s[:2]) for cell in cells.values())]
    rows, ratios = [], defaultdict(list)
    for key in sorted(cells, key=lambda k: (names.index(k[0]), int(k[3]), k[2])):
        cell = cells[key]
        before = relative(cell, "today", "network") or relative(cell, "surrogate", "network")
        now = relative(cell, "default", "network")
        ratio = float(np.mean(now) / np.mean(before)) if now and before else None
        if ratio is not None:
            ratios[key[0]].append(ratio)
        line = [key[0], key[2], key[3], *(number(relative(cell, *s[:2])) for s in shown)]
        rows.append([*line, "-" if ratio is None else f"{ratio:.2f}"])
    parts = [
        "## Known truth: columns that are not normal",
        "Six columns, 100 test rows. *mixture*: three normal clusters. *skewed*: a normal copula with "
        "exponential, lognormal and cubed normal margins. *categories*: four categories and two counts that "
        "depend on each other. *curved*: functions of two latent numbers, with noise. The truth enumerates the "
        "64 coalitions with draws of the true conditional distribution; for *categories* it is exact. Boosted "
        "trees are XGBoost, or LightGBM for *categories*. The table shows the total relative squared error: the "
        "sum of squared errors over the sum of squared true values. The last column divides the default's "
        "network by the first version's.",
        table(["design", "model", "rows", *(label for _, _, label in shown), "ratio"], rows),
        f"The truth's own relative squared error is at most {truth_error(cells.values()):.1e}.",
    ]
    if ratios:
        means = {name: float(np.exp(np.mean(np.log(values)))) for name, values in ratios.items()}
        everything = [ratio for values in ratios.values() for ratio in values]
        by_design = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
        parts.append(
            f"Ratio to the first version, geometric mean: {np.exp(np.mean(np.log(everything))):.2f} (asked: at "
            f"most {MEAN_LIMIT}); by design: {by_design}. Cells with at most {DESIGN_LIMIT}: "
            f"{verdict(everything, DESIGN_LIMIT)}."
        )
    return parts


def stated(runs: Runs) -> list[str]:
    """The section that compares what reports state with the truth."""
    answers = [run["default"] for cell in runs.values() for run in cell if "stated" in run.get("default", {})]
    answers = [answer for answer in answers if None not in answer["stated"].values()]
    if not answers:
        return []
    ratios = {
        "total": [sum(a["stated"].values()) / a["network"]["relative_squared_error"] for a in answers],
        "game": [a["stated"]["game"] / a["game"]["relative_squared_error"] for a in answers],
    }
    rows = [
        [name, *(f"{q:.2f}" for q in np.quantile(found, [0, 0.1, 0.5, 0.9, 1]))] for name, found in ratios.items()
    ]
    return [
        "## What the report states",
        "The relative squared error that the report of the default states, divided by the true one, over "
        f"{len(answers)} fits. The report uses rows that are held out from the training rows, and the truth is for "
        "the test rows.",
        table(["", "smallest", "10 %", "median", "90 %", "largest"], rows),
        *covered(answers),
    ]


def covered(answers: Sequence[dict[str, Any]]) -> list[str]:
    """The line about error bars."""
    shares = [answer["covered"] for answer in answers if "covered" in answer]
    if not shares:
        return []
    return [
        "The 90 % intervals of `explainer(X, errors=True)` contain the true value in "
        f"{100 * np.median(shares):.0f} % of all values (median of {len(shares)} fits; "
        f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %)."
    ]


def relative(cell: list[dict[str, Any]], competitor: str, part: str) -> list[float]:
    return measured(cell, competitor, part, "relative_squared_error")


def truth_error(cells: Iterable[list[dict[str, Any]]]) -> float:
    return max(run["truth"]["relative_squared_error"] for cell in cells for run in cell)


def real_tables(found: dict[str, Any]) -> list[str]:
    """The section of held-out scores."""
    parts = [
        "## Real tables: held-out MSEv by coalition size",
        "MSEv is the mean of (f(x) - v(x, s))² over held-out rows and random coalitions of one size, here "
        "divided by the variance of f. It equals the squared distance of the game to the true conditional "
        "expectation, plus a constant that all games share. Lower is better, and only differences count. "
        "Sampling noise of games that sample is subtracted. Intervals are 95 %, from resampled rows.",
    ]
    for key, entry in found.items():
        games = [game for game in ("default", *SINGLE_GAMES) if game in entry]
        about = [f"{entry['players']} players", f"{entry['train_rows']} training rows"]
        about += [f"{entry['test_rows']} held-out rows"]
        lines = []
        for game in games:
            pairs = zip(entry[game]["mean"], entry[game]["interval"], strict=True)
            lines.append([game, *(f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, (low, high) in pairs)])
        head = ["size", *map(str, entry["sizes"])]
        parts += [f"### {key.replace('|', ', ')}", ", ".join(about), table(head, lines)]
    return parts + real_summary({key: entry for key, entry in found.items() if "default" in entry})


def real_summary(found: dict[str, Any]) -> list[str]:
    """How the default compares with the best single game, and with the surrogate for large coalitions."""
    worse, compared, large = [], 0, []
    for key, entry in found.items():
        default = entry["default"]["mean"]
        for i, size in enumerate(entry["sizes"]):
            singles = {game: entry[game]["mean"][i] for game in SINGLE_GAMES if game in entry}
            best = min(singles, key=lambda game: singles[game])
            compared += 1
            if beyond_interval(entry, best, i):
                name = key.replace("|", ", ")
                worse.append(f"{name}, size {size}: {default[i]:.3f}, {best} {singles[best]:.3f}")
            if size >= round(0.75 * entry["players"]) and singles.get("surrogate", 0) > 0:
                large.append(default[i] / singles["surrogate"])
    if not compared:
        return []
    return [
        "### Summary",
        "The default is worse than the best single game, beyond the interval of their difference row by row, in "
        f"{len(worse)} of {compared} comparisons" + ("." if not worse else ": " + "; ".join(worse) + "."),
        f"From three quarters of the players on, the default has at most {LARGE_LIMIT} of the surrogate's MSEv in "
        f"{verdict(large, LARGE_LIMIT)} comparisons.",
    ]


def cost(found: dict[str, Any]) -> list[str]:
    """The section of seconds."""
    rows, ratios = [], []
    for name, entry in found.items():
        now, before = entry["default"], entry["surrogate"]
        ratios.append(now["fit_seconds"] / before["fit_seconds"])
        line = [name, str(entry["players"]), str(entry["rows"])]
        line += [f"{fit['fit_seconds']:.0f}" for fit in (before, now)] + [f"{ratios[-1]:.2f}"]
        line += [
            f"{1000 * s:.0f}" for s in (before["explain_seconds"], now["explain_seconds"], entry["model_seconds"])
        ]
        line += [f"{fit[part]:.4f}" for fit in (before, now) for part in ("network_error", "game_error")]
        rows.append([*line, f"{now['largest_sum_difference']:.0e}"])
    head = ["table", "players", "rows", "surrogate: fit, s", "default: fit, s", "ratio"]
    head += ["surrogate: explain, ms", "default: explain, ms", "model alone, ms"]
    head += ["surrogate: network", "surrogate: game", "default: network", "default: game", "largest error of a sum"]
    return [
        "## Cost on the paper's tables",
        "LightGBM, all training rows, two shared cores. The surrogate's fit is the default of the first version. "
        "Both are fitted in turn in one process. Explaining is for 1000 rows. Errors are those that the reports "
        "state: the network's is measured, the game's is estimated. The last column compares the sums of values "
        "with the model's own output.",
        table(head, rows),
        f"Fits that take at most {COST_LIMIT} times as long: {verdict(ratios, COST_LIMIT)}.",
    ]


def beyond_interval(entry: dict[str, Any], game: str, size: int) -> bool:
    """Whether the default is worse than a game: by paired differences, or if there are none by its interval."""
    if "default_less_this" in entry[game]:
        return bool(entry[game]["default_less_this"]["interval"][size][0] > 0)
    return bool(entry["default"]["mean"][size] > entry[game]["interval"][size][1])


def parity(found: dict[str, Any]) -> list[str]:
    """The section of the marginal game."""
    rows = []
    for key, entry in found.items():
        now, before = entry.get("marginal"), entry.get("today")
        some = now or before
        line = [*key.split("|"), str(some["columns"]), str(some["train_rows"])]
        for result in (now, before):
            if result is None:
                line += ["-", "-"]
            else:
                line += [f"{result['relative_squared_error']:.4f}", f"{result['fit_seconds']:.0f}"]
        rows.append([*line, f"{some['tree_seconds']:.1f}", f"{some['explain_seconds']:.3f}"])
    head = ["table", "model", "columns", "rows", "error", "fit, s", "first version: error", "first version: fit, s"]
    errors = [e["marginal"]["relative_squared_error"] for e in found.values() if "marginal" in e]
    return [
        "## Parity: the marginal game and interventional TreeSHAP",
        "`value_function=Marginal(background)` is compared with `shap.TreeExplainer(model, background, "
        'feature_perturbation="interventional")` on the same 100 background rows. TreeSHAP is exact here, for rows '
        "of float32 numbers. Where it is fast enough, it also gives the network's training targets. The "
        "error is the network's relative squared error to it. The last two columns are the seconds to explain all "
        "test rows.",
        table([*head, "TreeSHAP, s", "network, s"], rows),
        f"Cells with an error of at most {PARITY_LIMIT}: {verdict(errors, PARITY_LIMIT)}.",
    ]
