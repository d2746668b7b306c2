"""The results page of the tabular experiments, from the numbers in ``tabular.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_NORMALIZE = {"always": "training", "inference": "inference", "never": "none"}


def page(found: dict[str, Any], figures: Sequence[tuple[str, str]], notes: str | None = None) -> str:
    """Return the page in Markdown: ours, the paper's recipe and the paper's printed figures side by side.

    ``notes`` is what there is to be said about the numbers, by whoever looked at them.
    """
    scale = found["scale"]
    parts = [
        "# The paper's experiments on tables",
        f"`{found['command']}` (fastshapley {found['version']}) writes this page; every number is in "
        "[tabular.json](tabular.json). The notes are in `tabular-notes.md`.",
        "Distances are measured to exact Shapley values if a game has at most 16 players and is cheap, otherwise "
        f"to converged estimates. They are means over {scale['test_rows']} test rows, over features and classes "
        "together. ± is half the width of a 95 % interval over rows. All results are from one seed. Both recipes "
        "and every estimator use the same game. Surrogates are trained with the paper's schedule.",
    ]
    if scale["train_rows"] is not None:
        parts.append(
            f"**A quick run**: {scale['train_rows']} training rows, {scale['epochs']} epochs and a share of "
            f"{scale['share']} of the default recipe. These results are not comparable with the paper's."
        )
    if scale["train_rows"] is None and any(game["game"] == "marginal" for game in found["games"]):
        parts.append(
            f'On the marginal game, `recipe="paper"` ran for at most {scale["marginal_epochs"]} epochs, because '
            "each epoch "
            f"calls the model 150 million times. The truth of this game comes from {scale['marginal_truth']} "
            "evaluations per row."
        )
    if notes is not None:
        parts += ["## What agrees with the paper, and what does not", notes.strip()]
    parts += [
        "## Distance to the Shapley values",
        _distances(found["games"]),
        "## Evaluations that an estimator needs for the same distance",
        "One row per explainer. A dash means that more evaluations were needed than were tried, or that no number "
        "is printed. The factor is the smallest number over all estimators, including ours with leverage sampling: "
        "the number of evaluations that one forward pass is worth, compared with the best estimator.",
        _evaluations(found["games"]),
    ]
    for name, title in figures:
        parts += [f"## {title}", f"![{title}]({name}.png)"]
    parts += [
        "## Coalitions per row in training",
        'The l2 distance of `recipe="paper"`:',
        _samples(found["samples"]),
        "## Normalisation and penalty",
        _ablation(found["ablation"]),
    ]
    return "\n\n".join(parts) + "\n"


def _distances(games: Iterable[dict[str, Any]]) -> str:
    rows = []
    for game in games:
        paper, ours = game["explainers"]["paper"], game["explainers"]["default"]
        surrogate = game.get("surrogate")
        rows.append(
            [
                _name(game),
                str(game["players"]),
                f"{_number(surrogate['loss'])} ({_number(surrogate['printed'])})" if surrogate else "",
                f"{_number(game['printed'][0])} ± {_number(game['printed'][1])}",
                f"{_number(paper['l2'])} ± {_number(paper['l2_interval'])}",
                f"**{_number(ours['l2'])}** ± {_number(ours['l2_interval'])}",
                f"{paper['sign_agreement']:.1%} / {ours['sign_agreement']:.1%}",
                _number(game["truth_error"]) if game["truth_error"] else "0",
            ]
        )
    head = ["", "players", "surrogate loss (printed)", "l2, printed", 'l2, `recipe="paper"`', "l2, default recipe"]
    return table([*head, "correct signs, paper / default", "error of the truth"], rows)


def _evaluations(games: Sequence[dict[str, Any]]) -> str:
    rows = []
    for game in games:
        for label, needed in (
            ("printed", game["printed_evaluations"]),
            ('`recipe="paper"`', {name: arms["paper"] for name, arms in game["evaluations_to_match"].items()}),
            ("default recipe", {name: arms["default"] for name, arms in game["evaluations_to_match"].items()}),
        ):
            cells = {}  # by number of evaluations
            row = []
            for name, curve in game["estimators"].items():
                count = needed.get(name)
                fewest = label != "printed" and count == curve["evaluations"][0]  # that were tried: an upper bound
                row.append("-" if count is None else f"≤ {count:.0f}" if fewest else f"{count:.0f}")
                if count is not None:
                    cells[count] = row[-1]
            rows.append([f"{_name(game)}, {label}", *row, cells[min(cells)] if cells else "-"])
    return table(["", *games[0]["estimators"], "factor"], rows)


def _samples(samples: dict[str, list[dict[str, Any]]]) -> str:
    counts = sorted({point["samples"] for points in samples.values() for point in points})
    rows = []
    for name, points in samples.items():
        for paired in (True, False):
            by_count = {point["samples"]: point for point in points if point["paired"] == paired}
            cells = [_number(by_count[count]["l2"]) if count in by_count else "" for count in counts]
            rows.append([f"{name}, {'with pairs' if paired else 'without pairs'}", *cells])
    return table(["", *map(str, counts)], rows)


def _ablation(ablation: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for name, points in ablation.items():
        ours = {(p["normalize"], p["penalty"]): p for p in points if p["recipe"] == "default"}
        for point in points:
            if point["recipe"] == "default":
                continue
            other = ours[point["normalize"], point["penalty"]]
            printed = point["printed"] or (None, None)
            rows.append(
                [
                    name,
                    _NORMALIZE[point["normalize"]],
                    f"{point['penalty']:g}",
                    *("" if value is None else _number(value) for value in printed),
                    *(f"{_number(point[key])} ± {_number(point[f'{key}_interval'])}" for key in ("l2", "l1")),
                    *(f"{_number(other[key])} ± {_number(other[f'{key}_interval'])}" for key in ("l2", "l1")),
                ]
            )
    head = ["", "normalisation", "penalty", "l2, printed", "l1, printed", 'l2, `recipe="paper"`', "l1"]
    return table([*head, "l2, default recipe", "l1"], rows)


def _name(game: dict[str, Any]) -> str:
    return str(game["table"]) if game["game"] == "surrogate" else f"{game['table']}, {game['game']}"


def _number(value: float) -> str:
    """Four digits after the point, no zero before it.

    >>> _number(0.02294)
    '.0229'
    """
    return f"{value:.4f}".lstrip("0")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
