"""Rows and models that differ from what an explainer was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from small_images import X as IMAGES
from small_images import explainer as image_explainer

from fastshapley import FastSHAP, Recipe, Targets, Training
from fastshapley.errors import InputError
from fastshapley.trust.drift import Reference, compare

STEPS = Training(steps=200, batch_size=64, learning_rate=5e-3)
RECIPE = Recipe(
    surrogate=(STEPS,), explainer=STEPS, errors=STEPS, targets=Targets(coalitions=8, evaluations=50_000)
)


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    age = generator.integers(18, 80, rows).astype(float)
    age[generator.random(rows) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "age": age,
            "income": generator.lognormal(size=rows),
            "job": generator.choice(["clerk", "chef", "smith"], rows, p=[0.5, 0.3, 0.2]),
            "member": generator.random(rows) < 0.3,
        }
    )


def model(rows: pd.DataFrame) -> NDArray[np.float64]:
    income = np.log(rows["income"].to_numpy())
    return np.asarray(np.tanh(income) + (rows["job"] == "chef").to_numpy() + rows["member"].to_numpy())


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    return FastSHAP(model, recipe=RECIPE, random_state=0, progress=False).fit(table(2000))


def test_rows_of_the_same_distribution_are_rarely_called_drift() -> None:
    """At a level of 5 %, at most 10 of 200 samples are expected; 20 is 3.2 standard deviations more."""
    generator = torch.Generator().manual_seed(0)
    then = torch.randn(3000, 5, generator=generator).double()
    then[:, 4] = (then[:, 4] > 0).double()
    reference = Reference.of(then, torch.zeros(0), generator)
    names, discrete = list("abcde"), [False] * 4 + [True]
    p_values = []
    for _ in range(200):
        now = torch.randn(300, 5, generator=generator).double()
        now[:, 4] = (now[:, 4] > 0).double()
        p_values.append(compare(reference, now, names, discrete).p_value)
    assert sum(p < 0.05 for p in p_values) <= 20


def test_rows_of_the_same_distribution_and_the_same_model_have_not_drifted(fitted: FastSHAP) -> None:
    drift = fitted.check(table(400, seed=1))
    assert not drift.drifted
    assert drift.rows == 400
    assert "The 400 rows are like the training rows" in str(drift)
    assert "The model is as close to the explained game as it was" in str(drift)
    assert drift.error_ratio is not None
    assert 0.3 < drift.error_ratio < 3


@pytest.mark.parametrize("column", ["age", "income", "job", "member", "gaps"])
def test_the_column_that_has_changed_is_named(column: str, fitted: FastSHAP) -> None:
    rows = table(400, seed=1)
    if column == "gaps":
        rows.loc[::3, "age"] = np.nan
        column = "age"
    elif column == "job":
        rows["job"] = "smith"
    elif column == "member":
        rows["member"] = ~rows["member"]
    else:
        rows[column] = rows[column] * 3
    drift = fitted.check(rows)
    assert drift.p_value < 1e-4
    assert drift.columns["column"][0] == column
    assert f"look at {column}" in str(drift)


def test_a_replaced_model_is_noticed(fitted: FastSHAP) -> None:
    rows = table(400, seed=1)
    drift = fitted.check(rows, predictions=model(rows) + 0.5 * np.sin(3 * rows["income"].to_numpy()))
    assert drift.p_value > 0.01
    assert drift.model_p_value is not None
    assert drift.model_p_value < 1e-4
    assert "the model has changed, or the rows have" in str(drift)


def test_without_a_model_only_rows_are_checked(fitted: FastSHAP, tmp_path: Path) -> None:
    fitted.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file")
    rows = table(300, seed=2)
    drift = loaded.check(rows)
    assert drift.model_p_value is None
    pd.testing.assert_frame_equal(drift.columns, fitted.check(rows).columns)
    assert loaded.check(rows, predictions=model(rows)).model_p_value == fitted.check(rows).model_p_value


def test_drift_is_plotted_and_shown_in_notebooks(fitted: FastSHAP, tmp_path: Path) -> None:
    drift = fitted.check(table(50, seed=3))
    drift.plot().savefig(tmp_path / "drift.png")
    assert (tmp_path / "drift.png").stat().st_size > 1000
    assert "<table" in drift._repr_html_()


def test_no_rows_raise_and_one_row_is_checked(fitted: FastSHAP) -> None:
    with pytest.raises(InputError, match="X has no rows: pass at least one row to check"):
        fitted.check(table(10)[:0])
    assert 0 <= fitted.check(table(1, seed=4)).p_value <= 1


def test_faded_images_are_noticed() -> None:
    fitted = image_explainer().fit(IMAGES)
    assert not fitted.check(IMAGES[:40]).drifted
    faded: Any = 0.2 * IMAGES
    drift = fitted.check(faded)
    assert drift.p_value < 1e-4
    assert drift.columns["column"][0] in ("mean of channel 0", "spread of channel 0")
