"""Tests of the table encoder, which encodes columns as network inputs."""

from __future__ import annotations

import json
import math

import pytest
import torch
from encoded_rows import CATEGORIES, ROWS, fitted_encoder
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nan

from fastshapley.networks import TableEncoder

encoder = pytest.fixture(fitted_encoder)


def inputs_of(encoder: TableEncoder, column: int) -> list[int]:
    return [j for j, owner in enumerate(encoder.columns) if owner == column]


def test_inputs_are_float32_and_each_depends_on_its_column_only(encoder: TableEncoder) -> None:
    encoded = encoder(ROWS)
    assert encoded.dtype == torch.float32
    assert encoded.shape == (3, len(encoder.columns))
    assert [len(inputs_of(encoder, j)) for j in range(5)] == [1, 1, 3, 2, 3]  # the largest column has 3 categories
    for column in range(5):
        changed = ROWS.clone()
        changed[0, column] = 0.0 if column == 4 else 1.5 if column != 2 else 1.0
        moved = (encoder(changed)[0] != encoded[0]).nonzero()[:, 0].tolist()
        assert moved
        assert set(moved) <= set(inputs_of(encoder, column))


def test_numbers_are_standardised(encoder: TableEncoder) -> None:
    column = encoder(ROWS)[:, inputs_of(encoder, 0)[0]]
    torch.testing.assert_close(column, torch.tensor([-1.5, 0.0, 1.5]) / 1.5**0.5)


@pytest.mark.parametrize("value", [0.0, 7.0, 0.1, -1e9])
def test_a_constant_column_is_encoded_as_zero_and_new_values_are_finite(value: float) -> None:
    x = torch.full((1000, 1), value, dtype=torch.float64)
    encoder = TableEncoder.fitted(x, [0])
    torch.testing.assert_close(encoder(x), torch.zeros(1000, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder(x[:1] + 1), torch.ones(1, 1))


def test_small_differences_between_large_numbers_are_kept() -> None:
    """The mean is subtracted in float64, because float32 cannot represent the differences."""
    x = 1.7e9 + torch.arange(4, dtype=torch.float64)[:, None] * 10
    encoded = TableEncoder.fitted(x, [0])(x)
    torch.testing.assert_close(encoded.diff(dim=0), encoded[1:2] - encoded[:1] + torch.zeros(3, 1))


def test_a_gap_is_encoded_as_the_mean_and_a_flag(encoder: TableEncoder) -> None:
    number, flag = inputs_of(encoder, 3)
    encoded = encoder(ROWS)
    torch.testing.assert_close(encoded[:, number], torch.tensor([-1.0, 0.0, 1.0]))
    assert encoded[:, flag].tolist() == [0, 1, 0]


def test_a_column_of_gaps_and_a_new_gap_are_finite(encoder: TableEncoder) -> None:
    empty = torch.full((3, 1), nan, dtype=torch.float64)
    assert TableEncoder.fitted(empty, [0])(empty).tolist() == [[0, 1]] * 3
    gap = ROWS.clone()
    gap[0, 0] = nan
    assert encoder(gap)[0, inputs_of(encoder, 0)].tolist() == [0]


def test_each_category_has_its_own_vector_and_a_gap_is_zero(encoder: TableEncoder) -> None:
    rows = ROWS[:1].repeat(4, 1)
    rows[:, 2] = torch.tensor([0, 1, 2, nan])
    first = encoder(rows)[:, inputs_of(encoder, 2)]
    assert len(first.unique(dim=0)) == 4
    assert not first[3].any()
    second = encoder(ROWS[:2])[:, inputs_of(encoder, 4)]
    assert len(torch.cat([first, second]).unique(dim=0)) == 6  # no two columns share a vector


def test_training_keeps_the_vector_of_a_gap_at_zero(encoder: TableEncoder) -> None:
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1.0)
    encoder(ROWS).sum().backward()
    optimizer.step()
    assert not encoder(ROWS)[2, inputs_of(encoder, 2)].any()
    assert encoder(ROWS)[0, inputs_of(encoder, 2)].any()


def test_an_encoder_is_restored_from_its_configuration_and_state(encoder: TableEncoder) -> None:
    again = TableEncoder(**encoder.config)
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(ROWS), encoder(ROWS))


def tailed(values: Tensor, tails: float | None) -> Tensor:
    """Encode standardised numbers with the given tails."""
    return TableEncoder([0], [False], tails=tails)(values.double()[:, None])[:, 0]


@pytest.mark.parametrize("tails", [0.5, 1.0, 3.0])
def test_tails_are_the_identity_inside_and_logarithmic_outside(tails: float) -> None:
    inside = torch.linspace(-tails, tails, 101)
    torch.testing.assert_close(tailed(inside, tails), inside)
    beyond = tails * torch.logspace(0, 12, 50, dtype=torch.float64)
    expected = tails * (1 + torch.log(beyond / tails))
    torch.testing.assert_close(tailed(beyond, tails), expected.float())


@pytest.mark.parametrize("tails", [0.5, 1.0, 3.0])
def test_tails_are_monotone_continuous_and_odd(tails: float) -> None:
    values = torch.linspace(-20 * tails, 20 * tails, 4001, dtype=torch.float64)
    result = tailed(values, tails)
    assert (result.diff() > 0).all()
    step = float(values.diff()[0])
    assert result.diff().max() <= step * (1 + 1e-3)  # not steeper than the identity, so there is no jump
    torch.testing.assert_close(tailed(-values, tails), -result)
    around = tails * (1 + torch.tensor([-1e-4, 0.0, 1e-4]))
    slopes = tailed(around, tails).diff() / around.diff()
    torch.testing.assert_close(slopes, torch.ones(2), atol=1e-2, rtol=0)  # the slope is continuous at the boundary


def test_tails_change_only_numbers_and_are_off_by_default() -> None:
    rows = ROWS.clone()
    rows[0, 0] = 1e9
    torch.manual_seed(0)
    plain = TableEncoder.fitted(ROWS, CATEGORIES)
    torch.manual_seed(0)
    tails = TableEncoder.fitted(ROWS, CATEGORIES, 3.0)
    assert torch.equal(plain(ROWS), tails(ROWS))  # no value is far from the mean
    changed = (plain(rows) != tails(rows)).nonzero().tolist()
    assert changed == [[0, inputs_of(plain, 0)[0]]]
    assert tails(rows)[0, inputs_of(tails, 0)[0]] < 100


def test_extreme_numbers_and_gaps_stay_finite_with_tails() -> None:
    encoder = TableEncoder.fitted(ROWS, CATEGORIES, 3.0)
    rows = ROWS[:1].repeat(3, 1)
    rows[:, 0] = torch.tensor([1e300, -1e300, nan])
    encoded = encoder(rows)[:, inputs_of(encoder, 0)[0]]
    assert encoded[2] == 0
    assert encoded[0] == -encoded[1]
    assert encoded.isfinite().all()


@pytest.mark.parametrize("tails", [None, 2.5])
def test_tails_are_restored_from_the_configuration(tails: float | None) -> None:
    encoder = TableEncoder.fitted(ROWS, CATEGORIES, tails)
    again = TableEncoder(**json.loads(json.dumps(encoder.config)))
    again.load_state_dict(encoder.state_dict())
    rows = ROWS * 100
    rows[:, [2, 4]] = ROWS[:, [2, 4]]
    assert torch.equal(again(rows), encoder(rows))
    assert again.config == encoder.config


CUTS: list[list[float]] = [[2.0, 4.0], [], [], [3.0], []]


def cut_inputs(encoder: TableEncoder, x: Tensor) -> Tensor:
    return encoder(x)[:, encoder.plain_inputs :]


def test_inputs_of_cuts_come_last_and_are_centred() -> None:
    encoder = TableEncoder.fitted(ROWS, CATEGORIES, cuts=CUTS)
    assert encoder.columns[encoder.plain_inputs :] == [0, 0, 3]
    # Two of three numbers are above 2, one is above 4; one of two present numbers is above 3, and a gap is zero.
    expected = torch.tensor([[-2 / 3, -1 / 3, -1 / 2], [1 / 3, -1 / 3, 0], [1 / 3, 2 / 3, 1 / 2]])
    torch.testing.assert_close(cut_inputs(encoder, ROWS), expected)


def test_cuts_leave_the_other_inputs_as_they_are() -> None:
    torch.manual_seed(0)
    plain = TableEncoder.fitted(ROWS, CATEGORIES, 3.0)
    torch.manual_seed(0)
    cut = TableEncoder.fitted(ROWS, CATEGORIES, 3.0, cuts=CUTS)
    assert torch.equal(cut(ROWS)[:, : cut.plain_inputs], plain(ROWS))
    assert cut.plain_inputs == len(plain.columns) == plain.plain_inputs


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5, unique=True).map(sorted),
    st.floats(-1e6, 1e6),
    st.floats(-1e6, 1e6),
)
def test_inputs_of_cuts_change_exactly_where_a_cut_is_between_two_numbers(
    cuts: list[float], first: float, second: float
) -> None:
    """A cut itself is on the left side."""
    rows = torch.tensor([[cut] for cut in cuts] + [[1e7], [-1e7]], dtype=torch.float64)
    encoder = TableEncoder.fitted(rows, [0], cuts=[cuts])
    for a, b in [(first, second), (cuts[0], first), (cuts[-1], math.nextafter(cuts[-1], math.inf))]:
        one, other = cut_inputs(encoder, torch.tensor([[a], [b]], dtype=torch.float64))
        low, high = sorted((a, b))
        assert (one != other).tolist() == [low <= cut < high for cut in cuts]


def test_cuts_are_restored_from_the_configuration_and_the_state() -> None:
    encoder = TableEncoder.fitted(ROWS, CATEGORIES, cuts=CUTS)
    again = TableEncoder(**json.loads(json.dumps(encoder.config)))
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(ROWS), encoder(ROWS))
    assert again.columns == encoder.columns


def test_the_state_of_an_encoder_without_cuts_is_that_of_the_first_files(encoder: TableEncoder) -> None:
    config = {name: value for name, value in encoder.config.items() if name != "cuts"}
    assert set(encoder.state_dict()) == {"mean", "scale", "table.weight"}
    again = TableEncoder(**config)
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(ROWS), encoder(ROWS))


def test_a_cut_column_of_gaps_is_zero() -> None:
    empty = torch.full((3, 1), nan, dtype=torch.float64)
    encoder = TableEncoder.fitted(empty, [0], cuts=[[1.0]])
    assert cut_inputs(encoder, empty).tolist() == [[0]] * 3
