"""The pictures of the documentation: those that its guides write, run in full, and more of the same explainers.

python benchmarks/gallery.py [credit] [start] [images] [demo]        (ten minutes for all; needs Chromium)
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import shap
from playwright.sync_api import sync_playwright

from fastshapley import FastSHAP
from fastshapley.cli import demo_images as image_demo
from fastshapley.cli import demo_table as demo
from fastshapley.trust.report import Report

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from pages import DOCS, run  # noqa: E402

PICTURES = DOCS / "pictures"
matplotlib.use("Agg")
plt: Any = __import__("matplotlib.pyplot").pyplot


def main(chosen: list[str]) -> None:
    makers = {"credit": credit, "start": start, "images": images, "demo": demonstrations}
    PICTURES.mkdir(exist_ok=True)
    for name in chosen or list(makers):
        with tempfile.TemporaryDirectory() as folder:
            makers[name](Path(folder))


def credit(folder: Path) -> None:
    """The credit guide, more pictures of its explainer, and then the guide on checking it."""
    print(run([DOCS / "guides" / "credit.md"], folder, work=1))
    take(folder / "applicant.png", "credit-waterfall.png")
    take(folder / "everyone.png", "credit-beeswarm.png")
    explainer = FastSHAP.load(folder / "credit.fastshap")
    explainer.progress = False
    X = pd.read_parquet(folder / "applicants.parquet")
    explanation = explainer(X)[..., 1]
    shap.plots.bar(explanation, show=False)
    finish("credit-bars.png")
    shap.plots.heatmap(explanation[:150], show=False)
    finish("credit-heatmap.png")
    if explainer.report_ is not None:
        photograph(explainer.report_)
    error_bars(explainer, X)
    print(run([DOCS / "guides" / name for name in ("check.md", "many-rows.md")], folder, work=1))
    take(folder / "drift.png", "drift.png")


def start(folder: Path) -> None:
    pages = [DOCS / "start.md", DOCS / "when-not.md", DOCS / "guides" / "from-kernel-explainer.md"]
    print(run(pages, folder, work=1))
    take(folder / "first.png", "start-waterfall.png")


def images(folder: Path) -> None:
    print(run([DOCS / "guides" / "images.md"], folder, work=1))
    take(folder / "digits.png", "digits.png")


def demonstrations(folder: Path) -> None:
    """What `make demo` draws, on a table and on images."""
    print(demo.run(folder, progress=False).report)
    results = DOCS / "results" / "demo"
    results.mkdir(exist_ok=True)
    shutil.copy(folder / "accuracy.png", results / "accuracy.png")  # the README's picture
    print(image_demo.run(folder, progress=False).report)
    take(folder / "exact.png", "digits-exact.png")


def error_bars(explainer: FastSHAP, X: pd.DataFrame) -> None:
    """One row's values with 90 % intervals: from the network alone, and with a budget; and the exact ones."""
    row = X.head(1)
    exact = explainer.estimate(row, "exact").values[0, :, 1]
    order = np.argsort(np.abs(exact))
    figure, axes = plt.subplots(figsize=(7, 4.2))
    places = np.arange(len(order))
    ways = ((explainer(row, errors=True), "one pass", 0.15), (explainer(row, budget=32), "budget=32", -0.15))
    for found, label, shift in ways:
        bars = 1.645 * found.error_std[0, order, 1]
        values = found.values[0, order, 1] - exact[order]
        axes.errorbar(values, places + shift, xerr=bars, fmt="o", markersize=4, capsize=3, label=label)
    axes.axvline(0, color="0.5", linewidth=1, zorder=0)
    axes.set_yticks(places, [str(X.columns[i]) for i in order])
    axes.set_xlabel("value less the exact one, with 90 % intervals (log-odds)")
    axes.legend(frameon=False)
    figure.tight_layout()
    finish("error-bars.png")


def photograph(report: Report) -> None:
    """The report as a notebook shows it."""
    style = "div{font:15px system-ui,sans-serif;padding:12px;width:max-content}"
    style += "th{padding-right:2em;font-weight:500}"
    style += "caption{text-align:left;font-weight:600;padding-bottom:.5em}"
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(device_scale_factor=1.5)
        page.set_content(f"<style>{style}</style><div>{report._repr_html_()}</div>")
        page.locator("div").screenshot(path=PICTURES / "report.png")
        browser.close()


def take(path: Path, name: str) -> None:
    shutil.copy(path, PICTURES / name)


def finish(name: str) -> None:
    plt.savefig(PICTURES / name, dpi=110, bbox_inches="tight")
    plt.close("all")


if __name__ == "__main__":
    main(sys.argv[1:])
