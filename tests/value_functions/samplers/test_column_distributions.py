"""Tests of the distributions that a network's outputs describe."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nan

from fastshapley.value_functions.column_scores import ColumnScores
from fastshapley.value_functions.samplers.column_distributions import ColumnDistributions

# Two categories, a number, three values, a column of gaps; the output falls with the third column.
ROWS = torch.tensor([[float(i % 2), i / 7, float(i % 3 * 10), nan] for i in range(60)], dtype=torch.float64)
SCORES = ColumnScores.fitted(ROWS, -ROWS[:, 2], [True, False, False, False])
LAYOUT = ColumnDistributions(SCORES)


def outputs(logits: list[list[float]], mean: float = 0.0, deviation: float = 0.0) -> Tensor:
    """Outputs for columns 1 and 3 (means, then deviations), and logits of columns 0 and 2."""
    return torch.tensor([mean, 0.0, deviation, 0.0, *(each for row in logits for each in row)])[None, None]


def test_columns_of_few_values_have_levels_in_the_order_of_the_output() -> None:
    assert LAYOUT.few.tolist() == [0, 2]
    assert LAYOUT.others.tolist() == [1, 3]
    assert LAYOUT.levels[1].tolist() == [20.0, 10.0, 0.0]
    assert LAYOUT.levels[0].isnan().tolist() == [False, False, True]
    assert LAYOUT.outputs == 2 * 2 + 2 * 3
    back = LAYOUT.levels.gather(1, LAYOUT.place(ROWS).T).T
    assert torch.equal(back, ROWS[:, [0, 2]])


def test_a_table_without_columns_of_few_values_has_no_levels() -> None:
    x = torch.arange(50, dtype=torch.float64)[:, None]
    layout = ColumnDistributions(ColumnScores.fitted(x, x[:, 0], [False]))
    assert (len(layout.few), layout.outputs, layout.place(x).shape) == (0, 2, (50, 0))


def test_the_loss_is_minus_the_log_likelihood_of_hidden_entries_with_scores() -> None:
    scores = torch.tensor([[0.3, 1.0, -0.2, nan]], dtype=torch.float64)
    place = torch.tensor([[1, 2]])
    made = outputs([[0.0, math.log(3), 9.0], [0.0, 0.0, math.log(2)]], mean=0.5, deviation=0.2)
    hidden = torch.ones(1, 1, 4, dtype=torch.bool)
    total, count = LAYOUT.loss(made, scores, place, hidden).tolist()
    deviation = 2 * math.tanh(0.1)
    number = (0.5 / math.exp(deviation)) ** 2 / 2 + deviation
    assert count == 3
    assert math.isclose(total, number - math.log(3 / 4) - math.log(2 / 4), rel_tol=1e-5)
    total, count = LAYOUT.loss(made, scores, place, torch.tensor([[[True, False, False, True]]])).tolist()
    assert count == 1
    assert math.isclose(total, -math.log(3 / 4), rel_tol=1e-5)


def test_moved_levels_have_the_probabilities_of_the_row() -> None:
    # Donors that follow their own distribution give values that follow the row's, to 5 standard errors.
    draws = 40_000
    generator = torch.Generator().manual_seed(0)
    of_donor, of_row = (
        torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.5, 0.3]]),
        torch.tensor([[0.9, 0.1, 0.0], [0.6, 0.1, 0.3]]),
    )
    donor, row = (outputs((p + 1e-30).log().tolist()) for p in (of_donor, of_row))
    place = torch.stack(
        [torch.multinomial(p, draws, replacement=True, generator=generator) for p in of_donor], dim=1
    )
    rank = torch.rand(1, draws, 2, generator=generator)
    values = LAYOUT.values(LAYOUT.moved_levels(row, donor.expand(1, draws, -1), place[None], rank))
    for j in range(2):
        for level, probability in zip(LAYOUT.levels[j].tolist(), of_row[j].tolist(), strict=True):
            share = float((values[0, :, j] == level).double().mean())
            assert abs(share - probability) <= 5 * math.sqrt(probability * (1 - probability) / draws)


def test_values_stay_where_row_and_donor_are_expected_to_be_alike() -> None:
    made = outputs([[0.3, -1.0, 5.0], [1.0, 0.2, -2.0]])
    place = LAYOUT.place(ROWS)
    rank = torch.rand(1, 60, 2, generator=torch.Generator().manual_seed(0)) * 0.98 + 0.01
    values = LAYOUT.values(LAYOUT.moved_levels(made, made.expand(1, 60, -1), place[None], rank))
    assert torch.equal(values[0], ROWS[:, [0, 2]])


def test_values_exist_even_if_outputs_are_not_finite() -> None:
    for wrong in (nan, torch.inf, -torch.inf):
        made = outputs([[wrong] * 3] * 2)
        level = LAYOUT.moved_levels(made, made.expand(1, 60, -1), LAYOUT.place(ROWS)[None], torch.rand(1, 60, 2))
        values = LAYOUT.values(level)
        assert set(values[..., 0].flatten().tolist()) <= {0.0, 1.0}
        assert set(values[..., 1].flatten().tolist()) <= {0.0, 10.0, 20.0}


def test_scores_are_shifted_and_stretched_within_limits() -> None:
    zeros = [[0.0] * 3] * 2
    row, donor = outputs(zeros, mean=1.0, deviation=0.4), outputs(zeros, mean=-0.5, deviation=-0.2)
    scores = torch.tensor([[[0.7, 0.3, 0.9, 0.0]]], dtype=torch.float64)
    moved = LAYOUT.moved_scores(row, donor, scores)[0, 0].tolist()
    stretch = math.exp(2 * math.tanh(0.2) + 2 * math.tanh(0.1))
    assert math.isclose(moved[1], 1.0 + stretch * 0.8, rel_tol=1e-6)
    assert moved[0::2] == [0.7, 0.9]
    wide = LAYOUT.moved_scores(outputs(zeros, deviation=50.0), outputs(zeros, deviation=-50.0), scores)
    assert math.isclose(float(wide[0, 0, 1]), 0.3 * math.exp(1.5), rel_tol=1e-6)


def test_expected_scores_are_means_and_sums_of_scores_times_probabilities() -> None:
    made = outputs([[0.0, math.log(3), -1e9], [0.0, 0.0, math.log(2)]], mean=0.5)
    expected = LAYOUT.expected_scores(made)[0, 0]
    assert expected[1] == 0.5
    scores = LAYOUT.scores(torch.tensor([[0, 0], [1, 1], [1, 2]]))
    assert float(expected[0]) == pytest.approx(float(0.25 * scores[0, 0] + 0.75 * scores[1, 0]))
    weights = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    assert float(expected[2]) == pytest.approx(float((weights * scores[:, 1]).sum()))
