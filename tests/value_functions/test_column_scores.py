"""Tests of the scales of columns: which values have which scores, and that values survive the way and back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nan

from fastshapley.value_functions.column_scores import LARGEST_SCORE, ColumnScores, StandardScores

SCALES = (ColumnScores, StandardScores)


def column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def scale(x: Tensor, discrete: bool = False, kind: Any = ColumnScores) -> Any:
    y = torch.linspace(0, 1, len(x), dtype=torch.float64)
    return kind.fitted(x, y, [discrete] * x.shape[1])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(finite, min_size=1, max_size=20), st.integers(2, 4), st.booleans())
def test_values_of_a_column_with_ties_survive(values: list[float], times: int, discrete: bool) -> None:
    x = column(values * (times + 1))  # Less than half of the entries are distinct.
    scores = scale(x, discrete)
    assert torch.equal(scores.decode(scores.encode(x)), x)
    assert torch.equal(scores.decode(scores.spread(x, seeded())), x)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(finite, min_size=2, max_size=20, unique=True), st.sampled_from(SCALES))
def test_distinct_numbers_survive_up_to_a_cell(values: list[float], kind: Any) -> None:
    x = column(values)
    scores = scale(x, kind=kind)
    back = scores.decode(scores.encode(x))
    size = x.abs().max()
    # The table has 1024 cells for scores from -4 to 4, and neighbours among 20 values are at least .1 apart.
    assert bool(((back / size - x / size).abs() <= 0.2).all())
    assert back.min() >= x.min()
    assert back.max() <= x.max()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30), st.sampled_from(SCALES), finite)
def test_whole_numbers_stay_whole_and_within_their_range(values: list[int], kind: Any, score: float) -> None:
    x = column([float(value) for value in values])
    drawn = scale(x, kind=kind).decode(torch.tensor([[score]], dtype=torch.float64))
    assert drawn == drawn.round()
    assert min(values) <= drawn <= max(values)


def test_scores_are_the_quantiles_of_the_ranks() -> None:
    scores = scale(column([3.0, 1.0, 2.0, 4.0])).encode(column([1.0, 2.0, 3.0, 4.0]))
    expected = torch.special.ndtri(torch.tensor([0.125, 0.375, 0.625, 0.875], dtype=torch.float64))
    torch.testing.assert_close(scores[:, 0], expected)


def test_numbers_between_two_values_are_interpolated_and_those_outside_take_the_end() -> None:
    scores = scale(column([1.0, 2.0, 3.0, 4.0]))
    low, middle, high, below, above = scores.encode(column([2.0, 2.25, 3.0, -9.0, 1e300]))[:, 0].tolist()
    assert middle == pytest.approx(0.75 * low + 0.25 * high)
    assert [below, above] == scores.encode(column([1.0, 4.0]))[:, 0].tolist()


def test_categories_are_ordered_by_the_mean_output() -> None:
    x, y = column([0.0, 1.0, 2.0] * 4), torch.tensor([2.0, 3.0, 1.0] * 4, dtype=torch.float64)
    scores = ColumnScores.fitted(x, y, [True]).encode(column([2.0, 0.0, 1.0]))[:, 0]
    assert scores.tolist() == sorted(scores.tolist())
    assert len(set(scores.tolist())) == 3


def test_a_short_column_of_distinct_numbers_keeps_its_order() -> None:
    # It has few values, but no ties: it must not be ordered by the output, which falls here.
    x = column([1.0, 2.0, 3.0, 4.0])
    scores = ColumnScores.fitted(x, -x[:, 0], [False])
    assert scores.encode(x)[:, 0].diff().min() > 0
    torch.testing.assert_close(scores.decode(scores.encode(x)), x, atol=0.02, rtol=0)


@pytest.mark.parametrize("kind", SCALES)
def test_gaps_unknown_categories_and_columns_of_gaps_have_no_score(kind: Any) -> None:
    x = torch.tensor([[0.0, nan, 1.0], [2.0, nan, nan], [0.0, nan, 4.0]], dtype=torch.float64)
    scores = kind.fitted(x, x[:, 0], [True, False, False])
    found = scores.encode(torch.tensor([[1.0, 5.0, nan], [2.0, nan, 3.0]], dtype=torch.float64))
    assert found.isnan().tolist() == [[True, True, True], [False, True, False]]
    assert scores.decode(torch.zeros(1, 3, dtype=torch.float64)).isnan().tolist() == [[False, True, False]]


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("rows", [1, 2, 50])
def test_a_constant_column_has_the_score_0_and_one_value(kind: Any, rows: int) -> None:
    scores = scale(column([7.5] * rows), kind=kind)
    assert scores.encode(column([7.5, 9.0, -1e300])).tolist() == [[0.0]] * 3
    assert scores.decode(column([-9.0, 0.0, math.inf])).tolist() == [[7.5]] * 3


@pytest.mark.parametrize("kind", SCALES)
def test_zeros_of_both_signs_are_one_value(kind: Any) -> None:
    scores = scale(column([0.0, -0.0, 1.0, 2.0]), kind=kind)
    a, b = scores.encode(column([0.0, -0.0]))[:, 0].tolist()
    assert a == b


@pytest.mark.parametrize("kind", SCALES)
def test_extreme_numbers_give_finite_scores_and_values(kind: Any) -> None:
    x = column([-1.7e308, -1.0, 0.0, 5e-324, 1e-300, 3.0, 1e300, 1.7e308])
    scores = scale(x, kind=kind)
    assert bool(scores.encode(torch.cat([x, column([math.inf, -math.inf])])).isfinite().all())
    drawn = scores.decode(column([-1e9, -4.0, -0.3, 0.1, 1.7, 4.0, 1e9, math.inf, nan]))
    assert bool(drawn.isfinite().all())
    assert (drawn[0], drawn[-2]) == (x[0], x[-1])


def test_float32_rows_have_the_same_scores() -> None:
    x = column([0.5, 1.5, 2.5, 3.5])
    assert torch.equal(scale(x).encode(x.float()), scale(x).encode(x))


def test_an_atom_among_numbers_keeps_its_share() -> None:
    # 30 % zeros, and 70 % distinct numbers from 1 to 2: draws must have as many zeros, and hardly anything between.
    numbers = torch.linspace(1, 2, 700, dtype=torch.float64).tolist()
    x = column([0.0] * 300 + numbers)
    scores = scale(x)
    drawn = scores.decode(scores.spread(x, seeded()))
    # Only the cell at the edge of the zeros is interpolated: 1/128 of a score, which is .27 % of the ranks there.
    assert int((drawn[:300] != 0).sum()) <= 6
    assert int((drawn[300:] < 1).sum()) <= 6
    uniform = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)[:, None]
    anywhere = scores.decode(torch.special.ndtri(uniform))
    assert 294 <= int((anywhere == 0).sum()) <= 301


def test_ranks_of_ties_are_spread_evenly_over_entries_that_are_not_gaps() -> None:
    x = column([0.0] * 3000 + [1.0] * 7000 + [nan] * 10_000)
    spread = scale(x).spread(x, seeded())[:, 0]
    assert bool(spread[10_000:].isnan().all())
    ranks = torch.special.ndtr(spread[:10_000])
    assert ranks[:3000].max() <= 0.3 <= ranks[3000:].min()
    # Uniform from 0 to 1: the mean of 10,000 has a standard error of .0029, here of less; 5 of them are allowed.
    assert abs(float(ranks.mean()) - 0.5) < 5 * 0.0029


def test_scores_stay_in_their_range_and_many_columns_are_encoded_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(100, 7, generator=seeded(), dtype=torch.float64)
    scores = scale(x)
    whole, index = scores.encode(x), scores.index(x)
    monkeypatch.setattr("fastshapley.value_functions.column_scores.BLOCK_ENTRIES", 20)
    assert torch.equal(scores.encode(x), whole)
    assert torch.equal(scores.index(x), index)
    assert whole.abs().max() <= LARGEST_SCORE


def test_standard_scores_are_in_standard_deviations_for_distinct_numbers_only() -> None:
    x = torch.cat(
        [torch.randn(400, 1, generator=seeded(), dtype=torch.float64) * 3 + 5, column([0.0, 1.0] * 200)], 1
    )
    standard, normal = scale(x, kind=StandardScores), scale(x)
    expected = (x[:, 0] - x[:, 0].mean()) / x[:, 0].std(correction=0)
    torch.testing.assert_close(standard.encode(x)[:, 0], expected)
    torch.testing.assert_close(standard.encode(x)[:, 1], normal.encode(x)[:, 1])
    torch.testing.assert_close(standard.decode(standard.encode(x)), x)
    far = torch.full((1, 2), 50.0, dtype=torch.float64)
    assert standard.decode(far)[0, 0] == x[:, 0].max()
    torch.testing.assert_close(standard.encode(far)[0, 0], expected.max())


def test_a_rare_category_is_drawn_as_often_as_it_occurs() -> None:
    # One row of 4096, with a rank in the middle: in the table of 1024 cells it would be lost.
    x = column([0.0] * 2048 + [1.0] + [2.0] * 2047)
    scores = scale(x, discrete=True)
    assert torch.equal(scores.decode(scores.encode(x)), x)
    assert torch.equal(scores.decode(scores.spread(x, seeded())), x)
    assert scores.decode(column([-1e-5, 3e-4, 1e-3])).flatten().tolist() == [0.0, 1.0, 2.0]
