"""The demonstration on a table: explain a model, draw the explanations, and measure their error."""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split

from fastshapley.estimators import Estimate
from fastshapley.explainer import FastSHAP
from fastshapley.support.atomic_files import write_text
from fastshapley.support.shap_import import shap
from fastshapley.training.recipes import default, scaled
from fastshapley.training.run import one_thread
from fastshapley.trust.report import Report, measure

_CLASS = 1  # benign


@dataclass(frozen=True)
class Size:
    """How much the demonstration computes.

    work: the share of the default recipe's training steps and evaluations.
    tolerance: the largest standard error of the converged values, as a share of the range of a row's values.
    """

    work: float = 1.0
    tolerance: float = 0.03


FULL = Size()
QUICK = Size(work=0.25)  # the same steps in a fraction of the time


@dataclass(frozen=True)
class Demo:
    """What the demonstration found, and where its pictures are."""

    report: Report
    page: Path
    seconds_to_train: float
    microseconds_a_row: float


def run(output: Path, *, size: Size = FULL, random_state: int = 0, progress: bool = True) -> Demo:
    """Explain a gradient-boosted model of scikit-learn's breast cancer table, and write pictures.

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
    with one_thread():  # as quick on a machine that is busy as on one that is not
        return _run(plt, output, size, random_state, progress)


def _run(plt: Any, output: Path, size: Size, random_state: int, progress: bool) -> Demo:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X_train, X_test, y_train, _ = train_test_split(X, y, test_size=0.2, random_state=random_state)
    model = GradientBoostingClassifier(random_state=random_state).fit(X_train, y_train)

    start = time.perf_counter()
    explainer = FastSHAP(
        model,
        recipe="default" if size.work == 1 else scaled(default(*X_train.shape), size.work),
        random_state=random_state,
        progress=progress,
    ).fit(X_train)
    seconds = time.perf_counter() - start
    explanation = explainer(X_test)
    microseconds = 1e6 * quickest(lambda: explainer.shap_values(X_test)) / len(X_test)

    truth = explainer.estimate(
        X_test,
        "kernel",
        budget=1 << 12,
        tol=size.tolerance,
        sampling="leverage",
        random_state=random_state,
        progress=progress,
    )
    how = f"kernel estimator to a tolerance of {size.tolerance}, {truth.evaluations.mean():.0f} evaluations a row"
    fidelity = None if explainer.report_ is None else explainer.report_.fidelity
    report = measure(explanation.values, truth, how, fidelity=fidelity)

    row = int(np.argmin(np.abs(explanation.base_values[:, _CLASS] + explanation.values[..., _CLASS].sum(1) - 0.5)))
    output.mkdir(parents=True, exist_ok=True)
    pictures = {
        "beeswarm.png": "All held-out rows: which measurements push towards benign, and for which values.",
        "waterfall.png": "One row near the decision boundary, from the base value to the prediction.",
        "accuracy.png": "Values from one forward pass against converged values.",
    }
    _beeswarm(plt, explanation, output / "beeswarm.png")
    _waterfall(plt, explanation, row, output / "waterfall.png")
    _accuracy(plt, explanation.values, truth, output / "accuracy.png")
    page = output / "index.html"
    story = (
        "A gradient-boosted model of scikit-learn's breast cancer table (30 measurements of 569 tumours), "
        f"explained by fastshapley. Training took {seconds:.0f} seconds. Each held-out row is then explained in "
        f"{microseconds:.0f} microseconds, in a batch of {report.rows} rows. The table shows the error of the "
        "values against converged values on these rows, which were not used for training:"
    )
    write_page(page, "breast cancer", story, report, pictures)
    return Demo(report, page, seconds, microseconds)


def quickest(run: Callable[[], Any], repeats: int = 5) -> float:
    """Return the shortest time of several runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _beeswarm(plt: Any, explanation: shap.Explanation, path: Path) -> None:
    shap.plots.beeswarm(explanation[..., _CLASS], max_display=12, show=False)
    _finish(plt, path)


def _waterfall(plt: Any, explanation: shap.Explanation, row: int, path: Path) -> None:
    shap.plots.waterfall(explanation[row, :, _CLASS], max_display=12, show=False)
    _finish(plt, path)


def _accuracy(plt: Any, values: np.ndarray, truth: Estimate, path: Path) -> None:
    _, axes = plt.subplots(figsize=(6, 6))
    exact, fast = truth.values[..., _CLASS].ravel(), values[..., _CLASS].ravel()
    lowest, highest = min(exact.min(), fast.min()), max(exact.max(), fast.max())
    axes.plot([lowest, highest], [lowest, highest], color="0.6", linewidth=1, zorder=0)
    axes.scatter(exact, fast, s=7, alpha=0.4, color="#1E88E5", linewidths=0)
    axes.set_xlabel("converged Shapley value")
    axes.set_ylabel("FastSHAP, one forward pass")
    axes.set_aspect("equal")
    _finish(plt, path)


def _finish(plt: Any, path: Path) -> None:
    plt.savefig(path, dpi=130, bbox_inches="tight")
    plt.close("all")


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fastshapley: {title}</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
  h1 {{ font-size: 1.5rem; }}
  table {{ border-collapse: collapse; margin: 1rem 0; }}
  td {{ padding: .25rem 1.5rem .25rem 0; border-bottom: 1px solid #8886; }}
  td + td {{ font-variant-numeric: tabular-nums; }}
  figure {{ margin: 2rem 0; }}
  img {{ max-width: 100%; height: auto; background: #fff; border-radius: 6px; }}
  figcaption {{ opacity: .75; }}
</style>
<h1>Shapley values in one forward pass</h1>
<p>{story}</p>
<table>{table}</table>
{figures}
</html>
"""


def write_page(path: Path, title: str, story: str, report: Report, pictures: dict[str, str]) -> None:
    """Write a page with a report and figures.

    Parameters
    ----------
    path : Path
        The file of the page. The figures are in the same folder.
    title : str
        The title of the page.
    story : str
        The text above the report.
    report : Report
        The report.
    pictures : dict of str to str
        The file names of the figures, and their captions.
    """
    table = "".join(
        f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in report.lines().items()
    )
    figures = "\n".join(_figure(path.parent / name, text) for name, text in pictures.items())
    write_text(path, _PAGE.format(title=title, story=html.escape(story), table=table, figures=figures))


def _figure(picture: Path, text: str) -> str:
    data, caption = base64.b64encode(picture.read_bytes()).decode(), html.escape(text)
    image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
