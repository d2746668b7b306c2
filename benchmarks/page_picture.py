"""The picture of the page in the README: the census, with the names of its categories.

FASTSHAPLEY_DATA=../shared/data python benchmarks/page_picture.py        (two minutes; needs Chromium)
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from fastshapley import FastSHAP
from fastshapley.datasets import load_census
from fastshapley.datasets.download import cache
from fastshapley.serving.static_page import write_page

PICTURE = Path(__file__).parent.parent / "docs" / "results" / "page.png"
FOLDER = cache() / "page"
ROW = "Row 5"


def main() -> None:
    data = load_census("names")
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    model = make_pipeline(encoder, HistGradientBoostingClassifier(random_state=0)).fit(data.X_train, data.y_train)
    explainer = FastSHAP(model, link="logit", random_state=0, progress=False).fit(data.X_train)
    print(explainer.report_)
    explainer.export_onnx(FOLDER / "census.onnx")
    rows = json.loads(data.X_test[:20].to_json(orient="records"))
    index = write_page("census", (FOLDER / "census.onnx").read_bytes(), FOLDER / "page", rows)
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.goto(index.as_uri())
        page.select_option("#row", label=ROW)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
