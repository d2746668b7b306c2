"""The results page of the image experiments, from the numbers in ``images-<dataset>.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastshapley.paper import printed
from fastshapley.paper.table_page import table

_SCORES = {"agreement": "Top-1 agreement (table 1)", "log_odds": "Log-odds (table 4)"}
_EVALUATORS = {
    "paper": "the paper's evaluator: trained on all subsets with equal probability, from the classifier's own "
    "weights",
    "uniform": "an evaluator trained on subsets of every size, from another network",
}
_FIGURES = {
    "curves": "Inclusion and exclusion curves",
    "robustness": "Robustness to limited data",
    "errors": "Relative squared error to the converged Shapley values, against evaluations",
    "methods": "Explanations of the predicted class",
    "classes": "FastSHAP for every class",
}


def page(every: Sequence[dict[str, Any]], notes: str | None = None) -> str:
    """Return the page in Markdown: ours and the paper's printed figures side by side."""
    parts = [
        "# The paper's experiments on images",
        "The command of each image set writes this page; the notes are in `images-notes.md`. For exclusion, lower "
        "is better; for inclusion, higher is better. Brackets contain 95 % bootstrap intervals. The printed "
        "numbers are for ResNet-50 at 224 x 224 with 14 x 14 superpixels. Ours are for the networks and sizes "
        "named below, so they are not the same quantity. Slow methods are measured on fewer images, as given in "
        "the tables.",
    ]
    if notes is not None:
        parts += ["## What agrees with the paper, and what does not", notes.strip()]
    for found in every:
        parts += _set(found)
    return "\n\n".join(parts) + "\n"


def _set(found: dict[str, Any]) -> list[str]:
    name, chosen, error = found["set"]["name"], found["set"], found["error"]
    title = {"cifar10": "CIFAR-10", "imagenette": "Imagenette"}[name]
    parts = [
        f"## {title}",
        f"`{found['command']}` (fastshapley {found['version']}) writes this part: {chosen['classifier']} at "
        f"{chosen['size']} x {chosen['size']}, {chosen['grid']} x {chosen['grid']} superpixels, "
        f"{found['training_images']} training images, half of them mirrored. Every number is in "
        f"[images-{name}.json](images-{name}.json).",
    ]
    for evaluator, described in found["evaluators"].items():
        parts.append(
            f"### Judged by {_EVALUATORS[evaluator]} (agreement on full images "
            f"{described['full_image_agreement']:.3f})"
        )
        for score, heading in _SCORES.items():
            parts += [f"**{heading}**", _areas(name, score, described["methods"])]
    matched = error["evaluations_to_match"]
    parts += [
        "### Distance to the Shapley values",
        f"The truth is converged values of the surrogate's game, for {error['images']} test images and all "
        f"classes. Its own relative squared error is about {error['error_of_the_truth']:.3f}. FastSHAP has a "
        f"relative squared error of **{error['relative_squared_error']:.3f}** and a cosine of "
        f"{error['cosine']:.3f}; of the large values, {error['sign_agreement']:.1%} have the correct sign. For the "
        "same error, KernelSHAP-S needs "
        + (f"**{matched:.0f}** evaluations per image." if matched else "more evaluations than were tried."),
        *_training(found["robustness"]),
        "### Time (table 2)",
        _times(name, found),
    ]
    for suffix, caption in _FIGURES.items():
        parts += [f"### {caption}", f"![{caption}](images-{name}-{suffix}.png)"]
    return parts


def _training(shares: Sequence[dict[str, Any]]) -> list[str]:
    """Return the error by what FastSHAP was trained on, where that was measured."""
    if not all("relative_squared_error" in row for row in shares):
        return []
    rows = [
        [f"{row['evaluations']:,}", f"{row['images']:,}", f"{row['relative_squared_error']:.3f}"] for row in shares
    ]
    heads = ["evaluations in total", "images", "relative squared error"]
    return ["The error of FastSHAP by the amount of training data:", table(heads, rows)]


def _areas(name: str, score: str, methods: dict[str, Any]) -> str:
    rows = []
    for method, result in methods.items():
        row = [method, str(result["images"])]
        for way in ("exclusion", "inclusion"):
            here = result[way][score]
            low, high = here["interval"]
            row.append(f"{here['auc']:.3f} ({low:.3f}, {high:.3f})")
            shown = printed.AUC.get((method, name, way, score))
            row.append("" if shown is None else f"{shown:.2f}")
            low, high = here["interval_of_the_difference"]
            sure = "**" if low > 0 or high < 0 else ""
            difference = f"{sure}{here['fastshap_less_this']:+.3f}{sure} ({low:+.3f}, {high:+.3f})"
            row.append("" if method == "FastSHAP" else difference)
        rows.append(row)
    return table(
        [
            "",
            "images",
            "exclusion",
            "printed",
            "FastSHAP minus this",
            "inclusion",
            "printed",
            "FastSHAP minus this",
        ],
        rows,
    )


def _times(name: str, found: dict[str, Any]) -> str:
    column = ("cifar10", "imagenette").index(name)
    seconds, fast = found["seconds_an_image"], found["seconds_an_image"]["FastSHAP"]
    rows = []
    for method, value in seconds.items():
        shown = printed.MINUTES_TO_EXPLAIN.get(method)
        ratio = "" if shown is None else f"{shown[column] / printed.MINUTES_TO_EXPLAIN['FastSHAP'][column]:.0f}"
        rows.append([method, f"{1000 * value / 60:.3f}", f"{value / fast:.1f}", ratio])
    for method, value in found["seconds_to_train"].items():
        rows.append([f"training: {method}", f"{value / 60:.1f}", "", ""])
    head = [
        "",
        "processor minutes for 1000 images, or for training",
        "relative to FastSHAP (all classes)",
        "printed, relative to FastSHAP",
    ]
    return table(head, rows)
