"""Tests of corrected values: a budget brings them closer to the exact values. Without one they are unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from problems import QUICK, explainer, numbers
from torch import Tensor

from fastshapley import Training
from fastshapley.errors import InputError
from fastshapley.estimators import exact
from fastshapley.explain.correction import Correction, correct
from fastshapley.fit.fitted import Fitted

ROWS = numbers(40, 6, seed=1)


def model(rows: Any) -> Any:
    return np.sin(2 * rows[:, 0]) * rows[:, 1] + rows[:, 2:].sum(1)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    recipe = replace(QUICK, errors=Training(steps=50))
    return explainer(model, recipe=recipe).fit(numbers(400, 6)).fitted_


def values_of(fitted: Fitted) -> tuple[Tensor, Tensor]:
    x = fitted.schema.encode(ROWS)[:]
    return x, fitted.forward(x)[0]


def test_values_without_a_budget_are_unchanged_and_have_standard_errors_inside_of_the_range(fitted: Fitted) -> None:
    x, values = values_of(fitted)
    same, stderr = correct(fitted, x, values, Correction())
    assert torch.equal(same, values)
    assert fitted.errors is not None
    outside = fitted.errors.outside(x)
    assert 0 < int(outside.sum()) < len(x) / 2
    assert bool((stderr[~outside] > 0).all())
    assert bool(stderr[outside].isnan().all())


def test_a_budget_of_all_coalitions_gives_the_exact_values(fitted: Fitted) -> None:
    x, values = values_of(fitted)
    found, stderr = correct(fitted, x, values, Correction(budget=1 << 6, random_state=0))
    np.testing.assert_allclose(found.numpy(), exact(fitted.game, x).values, atol=1e-8)
    assert not stderr.any()


def test_a_budget_brings_values_closer(fitted: Fitted) -> None:
    x, values = values_of(fitted)
    truth = torch.from_numpy(exact(fitted.game, x).values)
    found, _ = correct(fitted, x, values, Correction(budget=32, random_state=0))
    assert float((found - truth).square().mean()) < float((values - truth).square().mean())
    torch.testing.assert_close(found.sum(1), values.sum(1))


def test_explainers_without_normalisation_or_error_bars_raise(fitted: Fitted) -> None:
    x, values = values_of(fitted)
    with pytest.raises(InputError, match="need values that sum to grand minus null"):
        correct(replace(fitted, normalize="never"), x, values, Correction())
    with pytest.raises(InputError, match="need error bars, which this explainer did not learn"):
        correct(replace(fitted, errors=None), x, values, Correction())
