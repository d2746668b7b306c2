"""Convert a script from shap.KernelExplainer to FastSHAP, and compare errors and times on the same game.

python examples/from_kernel_explainer.py      (about half a minute)
"""

from __future__ import annotations

import time

import shap
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

from fastshapley import FastSHAP, metrics
from fastshapley.value_functions import Marginal


def main() -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    X_train, X_test, y_train, _ = train_test_split(X, y, random_state=0)
    model = HistGradientBoostingRegressor(max_leaf_nodes=8, max_iter=50, random_state=0).fit(X_train, y_train)
    background = X_train[:10]
    few = X_test[:10]

    kernel = shap.KernelExplainer(model.predict, background)
    start = time.perf_counter()
    before = kernel.shap_values(few, nsamples=200, silent=True)[..., None]
    seconds = time.perf_counter() - start

    explainer = FastSHAP(
        model, value_function=Marginal(background), time_budget=20, random_state=0, progress=False
    ).fit(X_train)
    start = time.perf_counter()
    after = explainer.shap_values(few)[..., None]
    faster = seconds / (time.perf_counter() - start)

    truth = explainer.estimate(few, "exact").values
    for name, values in (
        ("KernelExplainer, 200 evaluations per row", before),
        ("FastSHAP, one forward pass", after),
    ):
        print(f"{name:42s} relative squared error {metrics.relative_squared_error(values, truth):.4f}")
    print(f"after training, FastSHAP explains a row {faster:.0f} times as fast")


if __name__ == "__main__":
    main()
