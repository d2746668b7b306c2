"""Tests of FastSHAP.update, which continues training on new rows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from problems import assert_additive, numbers
from sklearn.exceptions import NotFittedError
from small_images import X as IMAGES
from small_images import explainer as image_explainer

from fastshapley import FastSHAP, Recipe, Targets, Training
from fastshapley.errors import InputError, ModelError, TrainingError
from fastshapley.value_functions import Baseline, grand_values
from fastshapley.value_functions.base_game import imitation_of

STEPS = Training(steps=300, batch_size=64, learning_rate=5e-3, schedule="cosine")
RECIPE = Recipe(
    surrogate=(STEPS,), explainer=STEPS, errors=STEPS, targets=Targets(coalitions=8, evaluations=100_000)
)
OLD = pd.DataFrame(numbers(1500, 5), columns=list("abcde"))


def shifted(rows: int, seed: int) -> pd.DataFrame:
    """Rows whose first column is shifted by five standard deviations."""
    frame = pd.DataFrame(numbers(rows, 5, seed=seed), columns=list("abcde"))
    return frame.assign(a=frame["a"] + 5)


NEW = shifted(1500, seed=1)


def model(X: Any) -> NDArray[np.float64]:
    """The output depends on column b in the new rows, and on column c in the old rows."""
    return np.asarray(np.where(X["a"] > 2.5, 3 * X["b"], X["c"]) + 0.3 * X["d"] * X["e"])


def explainer(**options: Any) -> FastSHAP:
    return FastSHAP(model, recipe=RECIPE, random_state=0, progress=False, **options)


def surrogate_error(fitted: FastSHAP, X: pd.DataFrame) -> float:
    surrogate = imitation_of(fitted.value_function_)
    assert surrogate is not None
    found = grand_values(surrogate, fitted.schema_.encode(X)[:])[:, 0].numpy()
    return float(np.square(found - model(X)).mean())


@pytest.fixture(scope="module")
def old() -> FastSHAP:
    return explainer().fit(OLD)


@pytest.fixture(scope="module")
def updated(old: FastSHAP, tmp_path_factory: pytest.TempPathFactory) -> FastSHAP:
    path = tmp_path_factory.mktemp("update") / "old.fastshap"
    old.save(path)
    loaded = FastSHAP.load(path, model=model)
    loaded.set_params(random_state=0, progress=False)
    return loaded.update(NEW)


def test_an_update_reduces_the_error_on_new_rows(old: FastSHAP, updated: FastSHAP) -> None:
    X = NEW[:300]
    assert surrogate_error(updated, X) < 0.3 * surrogate_error(old, X)
    truth = updated.estimate(X, "exact").values[..., 0]
    error = np.square(updated(X).values - truth).sum() / np.square(truth).sum()
    assert error < 0.05
    assert_additive(updated, X)


def test_the_report_and_the_drift_check_use_the_new_rows(old: FastSHAP, updated: FastSHAP) -> None:
    assert old.check(NEW[:500]).drifted
    assert not updated.check(shifted(500, seed=2)).drifted
    assert updated.report_ is not None
    assert updated.report_.held_out
    assert updated(NEW[:5], errors=True).error_std.shape == (5, 5)


def test_an_update_starts_from_the_fitted_networks(old: FastSHAP) -> None:
    """One step with a tiny learning rate changes fitted networks very little. New networks would differ."""
    step = Training(steps=1, learning_rate=1e-9)
    short = Recipe(surrogate=(step,), explainer=step, targets=Targets(coalitions=8, evaluations=10_000))
    again = FastSHAP(model, recipe=RECIPE, random_state=0, progress=False).fit(OLD)
    again.set_params(recipe=short)
    np.testing.assert_allclose(again.update(OLD)(OLD[:50]).values, old(OLD[:50]).values, atol=1e-3)


def test_an_interrupted_update_leaves_the_explainer_unchanged(old: FastSHAP) -> None:
    before, network, game = old(OLD[:10]).values, old.network_, old.value_function_
    calls = 0

    def stops(X: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyboardInterrupt
        return model(X)

    old.model = stops
    try:
        with pytest.raises(KeyboardInterrupt):
            old.update(NEW)
    finally:
        old.model = model
    assert (old.network_, old.value_function_) == (network, game)
    np.testing.assert_array_equal(old(OLD[:10]).values, before)


def test_an_update_without_the_model_keeps_the_game(tmp_path: Path) -> None:
    old = explainer(value_function="surrogate").fit(OLD)
    old.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file").set_params(random_state=0, progress=False)
    loaded.update(NEW)
    x = loaded.schema_.encode(NEW[:20])
    s = torch.ones(20, 1, 5, dtype=torch.bool)
    assert torch.equal(loaded.value_function_(x, s), old.value_function_(x, s))
    assert not np.allclose(loaded(NEW[:20]).values, old(NEW[:20]).values)


def test_an_update_of_a_game_that_calls_the_model_needs_it(old: FastSHAP, tmp_path: Path) -> None:
    old.save(tmp_path / "file")
    loaded = FastSHAP.load(tmp_path / "file").set_params(random_state=0, progress=False)
    with pytest.raises(ModelError, match=r"FastSHAP\.load\(path, model=model\)"):
        loaded.update(NEW)


def test_an_update_of_a_baseline_game_uses_the_current_model() -> None:
    fitted = explainer(value_function="baseline").fit(OLD)
    assert isinstance(fitted.value_function_, Baseline)
    rows = fitted.value_function_.rows_
    fitted.model = lambda X: 2 * model(X)
    fitted.update(NEW)
    assert isinstance(fitted.value_function_, Baseline)
    assert fitted.value_function_.rows_ is rows
    explanation = fitted(NEW[:20])
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, 2 * model(NEW[:20]), atol=1e-6)


def test_a_model_with_other_outputs_raises(old: FastSHAP) -> None:
    before = old(OLD[:10]).values
    for other, message in (
        (lambda X: np.stack([model(X)] * 2, axis=1), r"has 2 outputs \(real\), and the surrogate learnt 1"),
        (lambda X: np.stack([X["a"] > 0, X["a"] <= 0], axis=1).astype(float), "has 2 outputs"),
    ):
        changed = copy.copy(old)
        changed.model = other
        with pytest.raises(InputError, match=message):
            changed.update(NEW)
    np.testing.assert_array_equal(old(OLD[:10]).values, before)


def test_an_update_learns_a_model_that_is_no_longer_constant() -> None:
    fitted = FastSHAP(lambda X: np.full(len(X), 3.0), recipe=RECIPE, random_state=0, progress=False).fit(OLD)
    fitted.model = lambda X: 3 + np.asarray(X["b"])
    fitted.update(OLD)
    assert fitted.report_ is not None
    assert fitted.report_.fidelity is not None
    assert fitted.report_.fidelity > 0.9


def test_gaps_in_columns_that_had_none_are_logged(old: FastSHAP, caplog: pytest.LogCaptureFixture) -> None:
    gappy = NEW.assign(b=NEW["b"].where(NEW["b"] > -1), c=NEW["c"].where(NEW["c"] > -1))
    copy.copy(old).set_params(model=lambda X: model(X.fillna(0))).update(gappy)
    assert "Columns ['b', 'c'] have gaps and had none at fit" in caplog.text


def test_an_update_with_no_steps_keeps_the_network(old: FastSHAP) -> None:
    still = Recipe(surrogate=(STEPS,), explainer=Training(steps=0), targets=RECIPE.targets)
    changed = copy.copy(old).set_params(recipe=still).update(OLD)
    assert np.ptp(changed(OLD[:10]).values, axis=1).min() > 0.01


def test_an_update_resumes_after_the_file_is_loaded_again(old: FastSHAP, tmp_path: Path) -> None:
    old.save(tmp_path / "file")
    values = []
    for _ in range(2):
        loaded = FastSHAP.load(tmp_path / "file", model=model).set_params(random_state=0, progress=False)
        values.append(loaded.update(NEW, checkpoint=tmp_path / "work")(NEW[:20]).values)
    np.testing.assert_array_equal(*values)
    old_again = copy.copy(old).update(NEW, checkpoint=tmp_path / "work")
    np.testing.assert_array_equal(old_again(NEW[:20]).values, values[0])


def test_an_update_changes_values_of_images() -> None:
    fitted = image_explainer().fit(IMAGES)
    before = fitted.shap_values(IMAGES[:3])
    after = fitted.update(IMAGES).shap_values(IMAGES[:3])
    assert after.shape == before.shape
    assert not np.array_equal(after, before)


def test_an_update_from_a_checkpoint_of_a_fit_raises(tmp_path: Path) -> None:
    fitted = explainer().fit(OLD, checkpoint=tmp_path / "fit")
    with pytest.raises(TrainingError, match="belongs to a run with other data"):
        fitted.update(OLD, checkpoint=tmp_path / "fit")
    fitted.update(OLD, checkpoint=tmp_path / "update")


def test_an_update_with_bad_input_raises(old: FastSHAP) -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        explainer().update(NEW)
    with pytest.raises(InputError, match="'e'"):
        old.update(NEW.drop(columns="e"))
    with pytest.raises(InputError, match="X has no rows"):
        old.update(NEW[:0])
