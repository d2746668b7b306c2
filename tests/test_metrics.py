"""Tests of the metrics that compare estimated and true values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import r2_score

from fastshapley import metrics
from fastshapley.errors import InputError

# Two rows, two players and two outputs.
TRUTH = np.array([[[3.0, -3.0], [4.0, -4.0]], [[1.0, -1.0], [0.0, 0.0]]])
VALUES = np.array([[[3.0, -3.0], [1.0, -1.0]], [[-1.0, 1.0], [0.0, 0.0]]])


def test_distances_sum_over_players_and_outputs() -> None:
    np.testing.assert_allclose(metrics.l1(VALUES, TRUTH), [6, 4])
    np.testing.assert_allclose(metrics.l2(VALUES, TRUTH), [math.sqrt(18), math.sqrt(8)])


def test_relative_squared_error_pools_rows() -> None:
    assert metrics.relative_squared_error(VALUES, TRUTH) == pytest.approx((18 + 8) / (50 + 2))
    assert metrics.relative_squared_error(TRUTH, TRUTH) == 0
    assert math.isnan(metrics.relative_squared_error(VALUES, np.zeros_like(TRUTH)))


def test_cosine_equals_a_calculation_by_hand_and_is_nan_for_zeros() -> None:
    np.testing.assert_allclose(metrics.cosine(VALUES, TRUTH), [26 / math.sqrt(20 * 50), -1])
    np.testing.assert_array_equal(metrics.cosine(0 * VALUES, TRUTH), [np.nan, np.nan])


def test_sign_agreement_counts_only_large_values() -> None:
    assert metrics.sign_agreement(VALUES, TRUTH) == pytest.approx(4 / 6)  # Zeros are not large.
    assert metrics.sign_agreement(VALUES, TRUTH, share=0.8) == pytest.approx(2 / 4)
    assert math.isnan(metrics.sign_agreement(VALUES, np.zeros_like(TRUTH)))


def test_large_is_relative_to_the_row() -> None:
    truth = np.array([[[100.0], [1.0]], [[1.0], [-0.5]]])
    values = np.array([[[100.0], [-1.0]], [[1.0], [0.5]]])
    assert metrics.sign_agreement(values, truth) == pytest.approx(2 / 3)


def test_the_interval_is_1_96_standard_errors_of_a_mean() -> None:
    assert metrics.interval(np.array([1.0, 3.0])) == pytest.approx(
        1.96
    )  # The standard deviation is sqrt(2), over sqrt(2).
    assert math.isnan(metrics.interval(np.array([1.0])))


def random_values(rows: int = 6, players: int = 7, outputs: int = 2) -> tuple[metrics.Array, metrics.Array]:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(rows, players, outputs)).round(1)  # Rounding makes some ties.
    return (truth + generator.normal(size=truth.shape)).round(1), truth


def test_rank_correlations_are_those_of_scipy() -> None:
    values, truth = random_values()
    rows = [(a.ravel(), b.ravel()) for a, b in zip(values, truth, strict=True)]
    np.testing.assert_allclose(metrics.spearman(values, truth), [stats.spearmanr(*row).statistic for row in rows])
    np.testing.assert_allclose(metrics.kendall(values, truth), [stats.kendalltau(*row).statistic for row in rows])


@pytest.mark.parametrize("metric", [metrics.spearman, metrics.kendall])
def test_rank_correlations_of_known_orders(metric: Callable[[metrics.Array, metrics.Array], metrics.Array]) -> None:
    truth = np.array([[[1.0], [2.0], [4.0]]] * 3)
    values = np.array([[[0.0], [0.1], [9.0]], [[3.0], [2.0], [1.0]], [[1.0], [1.0], [1.0]]])
    np.testing.assert_allclose(metric(values, truth), [1, -1, np.nan], atol=1e-15)


def test_top_k_overlap_counts_players_of_each_output() -> None:
    truth = np.array([[[4.0, 1.0], [-3.0, 2.0], [2.0, 3.0], [1.0, -4.0]]])
    values = np.array([[[4.0, 4.0], [1.0, -3.0], [-3.0, 2.0], [2.0, 1.0]]])
    # For k = 1 the players agree for the first output only; for k = 2 one and none agree, for k = 3 two and two.
    for k, share in [(1, 1 / 2), (2, 1 / 4), (3, 2 / 3), (4, 1)]:
        np.testing.assert_allclose(metrics.top_k_overlap(values, truth, k), [share])
    assert metrics.top_k_overlap(*random_values(), 3).shape == (6,)
    for k in (0, 5):
        with pytest.raises(InputError, match=f"k is {k}"):
            metrics.top_k_overlap(values, truth, k)


@pytest.mark.parametrize("shape", [(24,), (6, 4), (6, 2, 2), (6, 2, 1, 2)])
def test_r2_accepts_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=shape)
    values = truth + 0.3 * generator.normal(size=shape)
    flat = [a.reshape(len(a), -1) for a in (truth, values)]
    expected = r2_score(*flat, multioutput="variance_weighted")
    assert metrics.r2(values, truth) == pytest.approx(expected)
    constant = np.ones(shape)
    assert metrics.r2(constant, constant) == 1
    assert metrics.r2(values, constant) == 0


def test_the_budget_that_reaches_an_error_is_interpolated_on_logarithmic_axes() -> None:
    budgets, errors = [100, 400, 1600], [1.0, 0.5, 0.1]
    assert metrics.evaluations_to_match(budgets, errors, 2.0) == 100
    assert metrics.evaluations_to_match(budgets, errors, 1.0) == 100
    assert metrics.evaluations_to_match(budgets, errors, 0.5) == pytest.approx(400)
    assert metrics.evaluations_to_match(budgets, errors, 0.5**0.5) == pytest.approx(200)
    assert metrics.evaluations_to_match(budgets, errors, 0.05**0.5) == pytest.approx(800)
    assert metrics.evaluations_to_match(budgets, errors, 0.09) == math.inf
    assert metrics.evaluations_to_match([100, 400], [1.0, 0.0], 0.5) == 400
    # This error falls with the square root of the budget.
    steps = np.geomspace(64, 4096, 5)
    assert metrics.evaluations_to_match(steps, steps**-0.5, 1000**-0.5) == pytest.approx(1000)
    for bad in ([400, 100], [100]):
        with pytest.raises(InputError, match="budgets must increase, with an error for each"):
            metrics.evaluations_to_match(bad, [1.0, 0.5], 0.7)


def test_the_bootstrap_interval_agrees_with_the_normal_one() -> None:
    sample = np.random.default_rng(0).exponential(size=400)
    low, high = metrics.bootstrap_interval(sample)
    assert (low, high) == metrics.bootstrap_interval(sample, random_state=0)
    assert (low, high) != metrics.bootstrap_interval(sample, random_state=1)
    # A percentile p of 2000 draws has a standard error of sqrt(p (1 - p) / 2000) over the density there, which is
    # .06 standard errors of the mean at 1.96. Skewness adds terms of order 1 / sqrt(400).
    error = sample.std() / 20
    assert low == pytest.approx(sample.mean() - 1.96 * error, abs=0.25 * error)
    assert high == pytest.approx(sample.mean() + 1.96 * error, abs=0.25 * error)
    narrow = metrics.bootstrap_interval(sample, level=0.5)
    assert narrow[1] - narrow[0] == pytest.approx(2 * 0.674 * error, rel=0.15)
    assert metrics.bootstrap_interval(np.full(5, 3.0)) == (3.0, 3.0)
    for level in (0.0, 1.0):
        with pytest.raises(InputError, match="level is"):
            metrics.bootstrap_interval(sample, level=level)


def test_bootstrap_intervals_cover_the_mean_at_the_nominal_rate() -> None:
    """The coverage of 300 intervals of 95 % is within 3 standard errors."""
    generator = np.random.default_rng(0)
    trials = 300
    intervals = [metrics.bootstrap_interval(generator.normal(size=100), resamples=400) for _ in range(trials)]
    covered = float(np.mean([low <= 0 <= high for low, high in intervals]))
    assert abs(covered - 0.95) < 3 * (0.95 * 0.05 / trials) ** 0.5
