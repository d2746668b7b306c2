"""Tests of Fitted: forward passes, normalisation, and warnings about new gaps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from problems import explainer, numbers

from fastshapley.errors import InputError
from fastshapley.fit.fitted import Fitted
from fastshapley.value_functions import grand_values


def model(rows: Any) -> Any:
    return np.asarray(rows)[:, 0] * 2.0 - np.asarray(rows)[:, 1]


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return explainer(model).fit(numbers()).fitted_


def test_normalised_values_sum_to_grand_minus_null(fitted: Fitted) -> None:
    x = fitted.schema.encode(numbers(30, seed=1))[:]
    values, base, predictions = fitted.explain_encoded(x)
    torch.testing.assert_close(base + values.sum(1), grand_values(fitted.game, x))
    torch.testing.assert_close(predictions, base + values.sum(1))


def test_without_normalisation_values_are_the_outputs_of_the_network(fitted: Fitted) -> None:
    x = fitted.schema.encode(numbers(30, seed=1))[:]
    raw = replace(fitted, normalize="never")
    assert not raw.normalized
    values, _, predictions = raw.explain_encoded(x)
    with torch.no_grad():
        torch.testing.assert_close(values, fitted.network(x).double())
    torch.testing.assert_close(predictions, grand_values(fitted.game, x))


def test_sums_are_checked_where_values_are_not_normalised(fitted: Fitted) -> None:
    x = fitted.schema.encode(numbers(30, seed=1))
    fitted.check_sums(x, *fitted.forward(x))
    raw = replace(fitted, normalize="never")
    values, base = fitted.forward(x)
    raw.check_sums(x, values, base)
    with pytest.raises(InputError, match="check_additivity is True, and values miss the sum by up to 0"):
        raw.check_sums(x, 0.9 * values, base)


@pytest.mark.parametrize("outputs", [[3], [2, 0], [0, 1, 2, 3], range(6)])
@pytest.mark.parametrize("normalize", ["always", "never"])
def test_some_outputs_are_those_of_all(outputs: Any, normalize: Any) -> None:
    """Whether only they are computed, or all."""

    def six(rows: Any) -> Any:
        x = np.asarray(rows)
        return np.stack([model(x) * (k + 1) + x[:, k % 4] ** 2 for k in range(6)], axis=1)

    fitted = replace(explainer(six).fit(numbers()).fitted_, normalize=normalize)
    x = fitted.schema.encode(numbers(30, seed=1))
    for part, whole in zip(fitted.explain_encoded(x, outputs), fitted.explain_encoded(x), strict=True):
        torch.testing.assert_close(part, whole[..., list(outputs)], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_batch_size_does_not_change_values(batch_size: int, fitted: Fitted) -> None:
    x = fitted.schema.encode(numbers(30, seed=1))
    torch.testing.assert_close(fitted.forward(x, batch_size)[0], fitted.forward(x)[0], rtol=1e-5, atol=1e-6)


def test_a_batch_size_of_zero_is_refused(fitted: Fitted) -> None:
    with pytest.raises(InputError, match="batch_size is 0: use a positive number"):
        fitted.forward(fitted.schema.encode(numbers(3)), 0)


def test_gaps_in_columns_that_had_none_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame(numbers(), columns=list("abcd"))
    learnt = explainer(lambda rows: model(rows.fillna(0.0))).fit(frame).fitted_
    learnt.warn_of_new_gaps(learnt.schema.encode(frame))
    assert not caplog.records
    gappy = frame.assign(b=frame["b"].where(frame["b"] > 0))
    learnt.warn_of_new_gaps(learnt.schema.encode(gappy))
    assert "Columns ['b'] have gaps and had none at fit" in caplog.text
