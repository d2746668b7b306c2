"""The results page of the image experiments, from the numbers in ``images-<dataset>.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastshapley.paper import printed
from fastshapley.paper.table_page import table

_SCORES = {"agreement": "Top-1 agreement (table 1)", "log_odds": "Log-odds (table 4)"}
_EVALUATORS = {
    "paper": "the paper's evaluator: trained on all subsets alike, from the classifier's own weights",
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
    """The page in Markdown: ours and the paper's printed figures side by side."""
    parts = [
        "# The paper's experiments on images",
        "Each set of images by its own command, which writes this page; its notes are in `images-notes.md`. "
        "Exclusion: lower is better; inclusion: higher is better. In brackets 95 % bootstrap intervals; "
        "the printed figures are for ResNet-50 at 224 x 224 with 14 x 14 superpixels, ours for the networks and "
        "sizes named, and so not the same quantity. Slow methods are measured on fewer images, as given.",
    ]
    if notes is not None:
        parts += ["## What is as in the paper, and what is not", notes.strip()]
    for found in every:
        parts += _set(found)
    return "\n\n".join(parts) + "\n"


def _set(found: dict[str, Any]) -> list[str]:
    name, chosen, error = found["set"]["name"], found["set"], found["error"]
    title = {"cifar10": "CIFAR-10", "imagenette": "Imagenette"}[name]
    parts = [
        f"## {title}",
        f"Made by `{found['command']}` (fastshapley {found['version']}): {chosen['classifier']} at "
        f"{chosen['size']} x {chosen['size']}, {chosen['grid']} x {chosen['grid']} superpixels, "
        f"{found['training_images']} training images, half of them mirror images; every number is in "
        f"[images-{name}.json](images-{name}.json).",
    ]
    for evaluator, described in found["evaluators"].items():
        parts.append(
            f"### By {_EVALUATORS[evaluator]} (agreement on full images {described['full_image_agreement']:.3f})"
        )
        for score, heading in _SCORES.items():
            parts += [f"**{heading}**", _areas(name, score, described["methods"])]
    matched = error["evaluations_to_match"]
    parts += [
        "### How far from the Shapley values",
        f"On {error['images']} test images, all classes, against converged values of the surrogate's game (whose "
        f"own relative squared error is about {error['error_of_the_truth']:.3f}): relative squared error "
        f"**{error['relative_squared_error']:.3f}**, cosine {error['cosine']:.3f}, right signs among large values "
        f"{error['sign_agreement']:.1%}. KernelSHAP-S needs "
        + (
            f"**{matched:.0f}** evaluations an image to be as close." if matched else "more evaluations than tried."
        ),
        *_training(found["robustness"]),
        "### Time (table 2)",
        _times(name, found),
    ]
    for suffix, caption in _FIGURES.items():
        parts += [f"### {caption}", f"![{caption}](images-{name}-{suffix}.png)"]
    return parts


def _training(shares: Sequence[dict[str, Any]]) -> list[str]:
    """The error by what FastSHAP was trained on, where that was measured."""
    if not all("relative_squared_error" in row for row in shares):
        return []
    rows = [
        [f"{row['evaluations']:,}", f"{row['images']:,}", f"{row['relative_squared_error']:.3f}"] for row in shares
    ]
    heads = ["evaluations in all", "images", "relative squared error"]
    return ["By what FastSHAP is trained on:", table(heads, rows)]


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
        ["", "images", "exclusion", "printed", "FastSHAP less it", "inclusion", "printed", "FastSHAP less it"], rows
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
        rows.append([f"to train: {method}", f"{value / 60:.1f}", "", ""])
    head = [
        "",
        "minutes of one processor for 1000 images, or to train",
        "times FastSHAP's (all classes)",
        "printed, times FastSHAP's",
    ]
    return table(head, rows)
