"""Draw the paper's figures for images: curves, robustness, errors, and explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fastshapley.paper.image_experiments import ImageExperiments
from fastshapley.paper.image_settings import METHODS
from fastshapley.paper.table_figures import save

_SHOWN_IMAGES = 6  # images in the figures of explanations
_IMAGE_DPI = 100  # dots per inch of figures with images, which are not finer themselves
_COLOURS = {
    "FastSHAP": "#2a7f3f",
    "KernelSHAP": "#eeca3b",
    "KernelSHAP-S": "#e45756",
    "GradCAM": "#4c78a8",
    "Integrated Gradients": "#72b7b2",
    "SmoothGrad": "#b279a2",
    "DeepSHAP": "#f58518",
    "CXPlain": "#9d755d",
    "Random": "#8c8c8c",
}


def draw(found: dict[str, Any], experiments: ImageExperiments, output: Path) -> None:
    """Write each figure as PNG and SVG. Figures with images are written as PNG only.

    Parameters
    ----------
    found : dict
        The numbers.
    experiments : ImageExperiments
        The experiments, whose pieces are in the store.
    output : Path
        The folder for the figures.
    """
    name = f"images-{found['set']['name']}"
    save(_curves(found), output / f"{name}-curves")
    save(_robustness(found), output / f"{name}-robustness")
    save(_errors(found), output / f"{name}-errors")
    save(_methods(experiments), output / f"{name}-methods", ("png",), _IMAGE_DPI)
    save(_classes(experiments), output / f"{name}-classes", ("png",), _IMAGE_DPI)


def _curves(found: dict[str, Any]) -> Any:
    figure, axes = _panels(2, 4, (13, 6.4))
    for row, (evaluator, described) in zip(axes, found["evaluators"].items(), strict=True):
        columns = [(way, score) for score in ("agreement", "log_odds") for way in ("exclusion", "inclusion")]
        for panel, (way, score) in zip(row, columns, strict=True):
            for method, result in described["methods"].items():
                curve = result[way][score]
                wide = 2.4 if method == "FastSHAP" else 1.2
                panel.plot(curve["shares"], curve["mean"], color=_COLOURS[method], linewidth=wide, label=method)
            panel.set_title(f"{way}, {score.replace('_', '-')}, evaluator: {evaluator}", fontsize=8)
            panel.grid(alpha=0.25)
    for panel in axes[-1]:
        panel.set_xlabel("share of the superpixels")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def _robustness(found: dict[str, Any]) -> Any:
    figure, axes = _panels(1, 2, (8, 3.4))
    methods = found["evaluators"]["paper"]["methods"]
    for panel, way in zip(axes[0], ("exclusion", "inclusion"), strict=True):
        points = found["robustness"]
        means = np.array([point[way]["auc"] for point in points])
        ends = np.array([point[way]["interval"] for point in points]).T
        share = [100 * point["share"] for point in points]
        panel.errorbar(
            share,
            means,
            yerr=np.abs(ends - means),
            color=_COLOURS["FastSHAP"],
            marker="o",
            capsize=2,
            label="FastSHAP",
        )
        for method in METHODS[1:]:
            panel.axhline(
                methods[method][way]["agreement"]["auc"], color=_COLOURS[method], linewidth=1, label=method
            )
        panel.set(xlabel="share of the training images, %", title=f"{way} AUC")
        panel.grid(alpha=0.25)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def _errors(found: dict[str, Any]) -> Any:
    figure, axes = _panels(1, 1, (5, 3.6))
    panel, error = axes[0][0], found["error"]
    panel.plot(
        error["evaluations"], error["kernel_shap_s"], color=_COLOURS["KernelSHAP-S"], label="KernelSHAP-S, paired"
    )
    panel.axhline(
        error["relative_squared_error"], color=_COLOURS["FastSHAP"], linewidth=2, label="FastSHAP, one pass"
    )
    panel.set(xscale="log", yscale="log", xlabel="evaluations per image", ylabel="relative squared error")
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8, frameon=False)
    return figure


def _methods(experiments: ImageExperiments) -> Any:
    """Draw each method's explanation of the predicted class, side by side."""
    shown = range(min(_SHOWN_IMAGES, experiments.scale.slow))
    figure, axes = _panels(len(shown), len(METHODS), (1.25 * (len(METHODS)), 1.35 * len(shown)))
    images, classes = experiments.images.x_test, experiments.images.classes
    for row, number in zip(axes, shown, strict=True):
        picture = images[number].permute(1, 2, 0).numpy()
        row[0].imshow(picture)
        row[0].set_ylabel(classes[experiments.labels[number]], fontsize=7)
        for panel, method in zip(row[1:], METHODS[:-1], strict=True):
            _heat(panel, picture, experiments.values(method)[number], experiments)
    for panel, title in zip(axes[0], ("image", *METHODS[:-1]), strict=True):
        panel.set_title(title, fontsize=6.5)
    return _bare(figure, axes)


def _classes(experiments: ImageExperiments) -> Any:
    """Draw FastSHAP's explanation of every class, with one colour scale per image."""
    shown = range(min(_SHOWN_IMAGES, len(experiments.images.x_test)))
    classes, values = experiments.images.classes, experiments.all_values()
    figure, axes = _panels(len(shown), len(classes) + 1, (1.15 * (len(classes) + 1), 1.3 * len(shown)))
    for row, number in zip(axes, shown, strict=True):
        picture = experiments.images.x_test[number].permute(1, 2, 0).numpy()
        row[0].imshow(picture)
        row[0].set_ylabel(classes[experiments.labels[number]], fontsize=7)
        largest = float(np.abs(values[number]).max())
        for k, panel in enumerate(row[1:]):
            _heat(panel, picture, values[number, :, k], experiments, largest)
    for panel, title in zip(axes[0], ("image", *classes), strict=True):
        panel.set_title(title, fontsize=6.5)
    return _bare(figure, axes)


def _heat(
    panel: Any,
    picture: NDArray[np.float32],
    values: NDArray[np.float64],
    experiments: ImageExperiments,
    largest: float | None = None,
) -> None:
    """Draw values over the image in grey: red is positive, blue is negative."""
    size = (-0.5, picture.shape[1] - 0.5, picture.shape[0] - 0.5, -0.5)
    largest = float(np.abs(values).max()) or 1.0 if largest is None else largest
    panel.imshow(picture.mean(2), cmap="gray", extent=size, alpha=0.5, vmin=0, vmax=1)
    drawn = values.reshape(experiments.players.grid)
    panel.imshow(
        drawn, cmap="RdBu_r", vmin=-largest, vmax=largest, extent=size, alpha=0.65, interpolation="nearest"
    )


def _panels(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _bare(figure: Any, axes: Any) -> Any:
    for panel in axes.ravel():
        panel.set(xticks=[], yticks=[])
        for spine in panel.spines.values():
            spine.set_visible(False)
    return figure
