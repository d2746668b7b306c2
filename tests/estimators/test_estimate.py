"""Tests of the result of an estimator, and of the rule for convergence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fastshapley.errors import InputError
from fastshapley.estimators import Estimate
from fastshapley.estimators.estimate import check_tolerance, within_tolerance


def test_an_estimate_without_a_history_has_empty_budgets() -> None:
    values = np.zeros((2, 3, 1))
    estimate = Estimate(values, values, np.array([8, 8]), np.array([True, True]))
    assert estimate.budgets.shape == estimate.history.shape == (0,)


def test_the_largest_standard_error_is_compared_with_the_range_of_a_row() -> None:
    values = torch.tensor([[[1.0, -1.0], [3.0, 0.0]]]).repeat(3, 1, 1)  # The range of each row is 4.
    stderr = torch.tensor([0.39, 0.4, 0.41])[:, None, None] * torch.tensor([[0.1, 0.2], [1.0, 0.3]])
    assert within_tolerance(values.double(), stderr.double().round(decimals=6), 0.1).tolist() == [True, True, False]


def test_constant_rows_converge_only_without_error() -> None:
    values = torch.ones(2, 3, 1)
    stderr = torch.tensor([0.0, 1e-9])[:, None, None].expand(2, 3, 1)
    assert within_tolerance(values, stderr, 0.5).tolist() == [True, False]


@pytest.mark.parametrize("tol", [0.0, 1.0, -0.5, math.nan])
def test_a_tolerance_outside_zero_and_one_raises(tol: float) -> None:
    with pytest.raises(InputError, match=f"tol is {tol}: it must lie between 0 and 1"):
        check_tolerance(tol)


@pytest.mark.parametrize("tol", [None, 1e-9, 0.5])
def test_other_tolerances_are_accepted(tol: float | None) -> None:
    check_tolerance(tol)
