from __future__ import annotations

import math

import numpy as np
import pytest

from fastshapley import metrics

# two rows, two players, two outputs
TRUTH = np.array([[[3.0, -3.0], [4.0, -4.0]], [[1.0, -1.0], [0.0, 0.0]]])
VALUES = np.array([[[3.0, -3.0], [1.0, -1.0]], [[-1.0, 1.0], [0.0, 0.0]]])


def test_distances_sum_over_players_and_outputs() -> None:
    np.testing.assert_allclose(metrics.l1(VALUES, TRUTH), [6, 4])
    np.testing.assert_allclose(metrics.l2(VALUES, TRUTH), [math.sqrt(18), math.sqrt(8)])


def test_relative_squared_error_pools_rows() -> None:
    assert metrics.relative_squared_error(VALUES, TRUTH) == pytest.approx((18 + 8) / (50 + 2))
    assert metrics.relative_squared_error(TRUTH, TRUTH) == 0
    assert math.isnan(metrics.relative_squared_error(VALUES, np.zeros_like(TRUTH)))


def test_cosine() -> None:
    np.testing.assert_allclose(metrics.cosine(VALUES, TRUTH), [26 / math.sqrt(20 * 50), -1])
    np.testing.assert_array_equal(metrics.cosine(0 * VALUES, TRUTH), [np.nan, np.nan])


def test_sign_agreement_counts_only_large_values() -> None:
    assert metrics.sign_agreement(VALUES, TRUTH) == pytest.approx(4 / 6)  # zeros are not large
    assert metrics.sign_agreement(VALUES, TRUTH, share=0.8) == pytest.approx(2 / 4)
    assert math.isnan(metrics.sign_agreement(VALUES, np.zeros_like(TRUTH)))


def test_large_is_relative_to_the_row() -> None:
    truth = np.array([[[100.0], [1.0]], [[1.0], [-0.5]]])
    values = np.array([[[100.0], [-1.0]], [[1.0], [0.5]]])
    assert metrics.sign_agreement(values, truth) == pytest.approx(2 / 3)


def test_interval_is_that_of_a_mean() -> None:
    assert metrics.interval(np.array([1.0, 3.0])) == pytest.approx(1.96)  # deviation sqrt(2), over sqrt(2)
    assert math.isnan(metrics.interval(np.array([1.0])))
