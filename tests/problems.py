"""Small tables, models and explainers that several test modules share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from fastshapley import FastSHAP, Layers, Recipe, Targets, Training
from fastshapley.value_functions import grand_values

QUICK = Recipe(
    surrogate=(Training(steps=150, batch_size=64, learning_rate=3e-3, schedule="cosine"),),
    explainer=Training(steps=150, batch_size=32, learning_rate=3e-3, schedule="cosine"),
    surrogate_layers=Layers(1, 32, "silu"),
    explainer_layers=Layers(1, 32, "silu"),
    targets=Targets(coalitions=8, evaluations=50_000, rows=256),
    tied_classes=True,
    validation_coalitions=16,
)


def numbers(rows: int = 200, columns: int = 4, seed: int = 0) -> NDArray[np.float64]:
    """Independent standard normal columns."""
    return np.random.default_rng(seed).normal(size=(rows, columns))


def people(rows: int = 300, seed: int = 0) -> tuple[pd.DataFrame, NDArray[Any]]:
    """A table with every kind of column, with gaps, and a label that depends on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, rows),
            "income": rng.normal(30, 8, rows),
            "job": rng.choice(["clerk", "chef", "nurse"], rows),
            "city": pd.Categorical(rng.choice(["Bern", "Basel"], rows)),
            "member": rng.random(rows) < 0.4,
        }
    )
    score = 0.05 * (frame["age"] - 50) + 0.1 * (frame["income"] - 30) + (frame["job"] == "chef") + frame["member"]
    label = (score + rng.normal(size=rows) > 0.5).to_numpy().astype(int)
    frame.loc[rng.random(rows) < 0.1, "income"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "job"] = None
    return frame, label


def people_model(X: pd.DataFrame, y: NDArray[Any]) -> Any:
    """A model of the people table that accepts the table without preprocessing."""
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_pipeline(encoder, HistGradientBoostingClassifier()).fit(X, y)


def people_chances(X: pd.DataFrame) -> NDArray[np.float64]:
    """A quick model of the people table: the probabilities of two classes, with a jump that networks miss."""
    score = (X["job"] == "chef").to_numpy() + 2.0 * (X["age"].to_numpy() > 47) - 1.0
    chance = 1 / (1 + np.exp(-score))
    return np.stack([1 - chance, chance], axis=1)


def records(X: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON decodes them."""
    found: list[dict[str, Any]] = json.loads(X.to_json(orient="records"))
    return found


def explainer(model: Any, **options: Any) -> FastSHAP:
    """An explainer that trains quickly. Its game is a surrogate's, which files hold and which calls no model."""
    settings = {"value_function": "surrogate", "recipe": QUICK, "random_state": 0, "progress": False}
    return FastSHAP(model, **{**settings, **options})


def assert_additive(fitted: FastSHAP, X: Any) -> None:
    """Assert that values plus base value equal the grand coalition's value, within 1e-5 of the largest output."""
    explanation = fitted(X)
    outputs = fitted.value_function_.outputs
    values = np.asarray(explanation.values).reshape(len(X), -1, outputs)
    base = np.asarray(explanation.base_values).reshape(len(X), outputs)
    grand = grand_values(fitted.value_function_, fitted.schema_.encode(X)[:]).numpy()
    assert np.abs(values.sum(1) + base - grand).max() <= 1e-5 * max(1, np.abs(grand).max())
