"""Explain a credit model: from a table to the reasons for one decision.

python examples/credit.py          (about 20 seconds; writes credit.fastshap and waterfall.png)
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import shap
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from fastshapley import FastSHAP

COLUMNS = ["income", "debt", "late_payments", "years_at_job", "home", "purpose"]


def applicants(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a simulated table with numbers, categories and missing values, and who defaulted."""
    rng = np.random.default_rng(seed)
    income = rng.lognormal(10.4, 0.5, n).round(-2)
    X = pd.DataFrame(
        {
            "income": income,
            "debt": (income * rng.lognormal(-1.5, 0.9, n)).round(-2),
            "late_payments": rng.poisson(0.6, n),
            "years_at_job": rng.exponential(6, n).round(1),
            "home": rng.choice(["rent", "own", "mortgage"], n),
            "purpose": rng.choice(["car", "business", "repairs"], n),
        }
    )
    risk = -2.0 + 0.9 * X["late_payments"] + 2 * X["debt"] / X["income"] + 0.9 * (X["purpose"] == "business")
    defaulted = rng.random(n) < 1 / (1 + np.exp(-risk))
    X.loc[rng.random(n) < 0.1, "years_at_job"] = np.nan
    return X, defaulted.to_numpy().astype(int)


def main() -> None:
    X_train, y_train = applicants(4000, seed=0)
    X_test, _ = applicants(200, seed=1)
    booster = HistGradientBoostingClassifier(max_leaf_nodes=6, min_samples_leaf=50, random_state=0)
    codes = make_column_transformer((OrdinalEncoder(), ["home", "purpose"]), remainder="passthrough")
    model = make_pipeline(codes, booster).fit(X_train, y_train)

    explainer = FastSHAP(model, link="logit", time_budget=15, random_state=0, progress=False).fit(X_train)
    print(explainer.report_)

    explanation = explainer(X_test)[..., 1]  # the second class: a default
    riskiest = int(np.argmax(explanation.values.sum(1)))
    for column in np.argsort(-explanation.values[riskiest])[:3]:
        given, value = X_test.iloc[riskiest, column], explanation.values[riskiest, column]
        print(f"{COLUMNS[column]} = {given}: {value:+.2f} to the log-odds of a default")
    shap.plots.waterfall(explanation[riskiest], show=False)
    plt.savefig("waterfall.png", dpi=120, bbox_inches="tight")
    explainer.save("credit.fastshap")


if __name__ == "__main__":
    main()
