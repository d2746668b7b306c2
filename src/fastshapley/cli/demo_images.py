"""The demonstration on images: explain a network of digits, draw maps of all classes, and measure their error."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.cli.demo_table import Demo, quickest, write_page
from fastshapley.data.players import Superpixels
from fastshapley.data.stream import batches
from fastshapley.explainer import FastSHAP
from fastshapley.support.shap_import import shap
from fastshapley.training.loop import Task, Training, train
from fastshapley.training.recipes import default_images, scaled
from fastshapley.training.run import Run, one_thread
from fastshapley.trust.report import measure

_SHOWN = 6  # images in the pictures


@dataclass(frozen=True)
class Size:
    """How much the demonstration computes.

    grid: the number of patches along each side of an image; the patches are the players.
    work: the share of the default recipe's training steps and evaluations.
    truth: the number of images whose exact values are computed.
    """

    grid: int = 4
    work: float = 1.0
    truth: int = 16


FULL = Size()
QUICK = Size(grid=2, work=0.1)  # the same steps in a tenth of the time, on coarser patches


def run(output: Path, *, size: Size = FULL, random_state: int = 0, progress: bool = True) -> Demo:
    """Explain a convolutional network of scikit-learn's digits, and write pictures.

    Parameters
    ----------
    output : Path
        The folder for the page and its pictures.
    size : Size, default=FULL
        How much to compute.
    random_state : int, default=0
        The seed.
    progress : bool, default=True
        Whether to show progress bars.

    Returns
    -------
    Demo
        The accuracy, the timings and the path of the page.
    """
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    images, labels = load_digits(return_X_y=True)
    X = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    X_train, X_test, y_train, y_test = train_test_split(X, torch.tensor(labels), random_state=random_state)
    with one_thread():
        network = _trained(X_train, y_train, Run(random_state))
        with torch.no_grad():
            accuracy = float((network(X_test).argmax(1) == y_test).float().mean())

        start = time.perf_counter()
        explainer = FastSHAP(
            network,
            players=Superpixels(grid=size.grid),
            link="logit",
            logits=True,
            recipe="default" if size.work == 1 else scaled(default_images(len(X_train)), size.work),
            random_state=random_state,
            progress=progress,
        ).fit(X_train)
        seconds = time.perf_counter() - start
        microseconds = 1e6 * quickest(lambda: explainer.shap_values(X_test)) / len(X_test)

        some = X_test[: size.truth]
        truth = explainer.estimate(some, "exact", progress=progress)
        values = explainer.shap_values(some).reshape(truth.values.shape)
    coalitions = 1 << size.grid**2
    fidelity = None if explainer.report_ is None else explainer.report_.fidelity
    report = measure(values, truth, f"exact, all {coalitions} coalitions", fidelity=fidelity)

    output.mkdir(parents=True, exist_ok=True)
    _digits(plt, explainer(X_test[:_SHOWN]), output / "digits.png")
    _side_by_side(plt, some, values, truth.values, output / "exact.png")
    story = (
        f"A small convolutional network that reads scikit-learn's digits ({accuracy:.1%} of the held-out ones), "
        f"explained by fastshapley on {size.grid} x {size.grid} patches. Training took {seconds:.0f} seconds; an "
        f"image is then explained, for all ten classes, in {microseconds:.0f} microseconds, {len(X_test)} to a "
        f"batch. This is how far the values are from the exact ones on {len(some)} held-out images:"
    )
    pictures = {
        "digits.png": "Held-out digits, and what speaks for (red) and against (blue) each class.",
        "exact.png": f"The class that is predicted: from one forward pass, and from all {coalitions} coalitions.",
    }
    page = output / "index.html"
    write_page(page, "digits", story, report, pictures)
    return Demo(report, page, seconds, microseconds)


def _trained(x: Tensor, labels: Tensor, run: Run) -> nn.Module:
    """Train a network that classifies digits."""

    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    with run.isolated("network"):
        network = nn.Sequential(
            block(1, 16),
            block(16, 32),
            nn.MaxPool2d(2),
            block(32, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def loss(batch: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
        return functional.cross_entropy(network(batch[1]), labels[batch[0]])

    def validate() -> float:
        return float(functional.cross_entropy(network(x), labels))

    options = Training(epochs=20, learning_rate=3e-3, schedule="cosine")
    task = Task("network", network, len(x), loss, validate, fetch=lambda numbers: batches(x, numbers))
    train(task, options, run)
    return network


def _digits(plt: Any, explanation: shap.Explanation, path: Path) -> None:
    shap.image_plot(explanation, labels=[str(k) for k in range(10)], width=16, show=False)
    plt.savefig(path, dpi=110, bbox_inches="tight")
    plt.close("all")


def _side_by_side(plt: Any, x: Tensor, values: Any, truth: Any, path: Path) -> None:
    """Images, and the values of the class with the largest sum, by both ways on one scale."""
    grid = round(truth.shape[1] ** 0.5)
    _, axes = plt.subplots(3, _SHOWN, figsize=(1.6 * _SHOWN, 5))
    for column in range(_SHOWN):
        chosen = int(truth[column].sum(0).argmax())
        largest = np.abs(truth[column, :, chosen]).max()
        axes[0, column].imshow(x[column, 0].numpy(), cmap="gray_r")
        axes[0, column].set_title(f"for {chosen}")
        for row, found in ((1, values), (2, truth)):
            drawn = found[column, :, chosen].reshape(grid, grid)
            axes[row, column].imshow(drawn, cmap="RdBu_r", vmin=-largest, vmax=largest)
    for row, name in enumerate(("image", "one pass", "exact")):
        axes[row, 0].set_ylabel(name)
    for panel in axes.ravel():
        panel.set(xticks=[], yticks=[])
    plt.savefig(path, dpi=110, bbox_inches="tight")
    plt.close("all")
