"""Tests of row augmentation: new rows that are mixed from the given ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastshapley.data.augmentation import mix_rows

NAN = float("nan")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(rows: int = 200) -> Tensor:
    """Columns: continuous, whole numbers, category codes, continuous; all but the first have gaps."""
    g = generator(7)
    continuous = torch.randn(rows, dtype=torch.float64, generator=g)
    whole = torch.randint(0, 3, (rows,), generator=g).double() * 10
    codes = torch.randint(0, 4, (rows,), generator=g).double() + 0.5  # only `discrete` marks them as categories
    x = torch.stack([continuous, whole, codes, continuous.exp()], 1)
    x[::5, 1] = NAN
    x[::7, 2] = NAN
    x[::3, 3] = NAN
    return x


DISCRETE = [False, False, True, False]


@pytest.mark.parametrize("count", [0, 1, 500])
def test_mixed_rows_have_the_shape_and_dtype_of_the_table(count: int) -> None:
    mixed = mix_rows(table(), count, DISCRETE, generator())
    assert mixed.shape == (count, 4)
    assert mixed.dtype == torch.float64


@pytest.mark.parametrize("column", [1, 2], ids=["whole numbers", "categories"])
def test_discrete_columns_hold_only_values_that_occurred(column: int) -> None:
    x = table()
    mixed = mix_rows(x, 2000, DISCRETE, generator())
    occurred = set(x[:, column].nan_to_num(-1).tolist())
    assert set(mixed[:, column].nan_to_num(-1).tolist()) == occurred


def test_continuous_columns_get_new_values_from_the_same_range() -> None:
    x = table()
    mixed = mix_rows(x, 2000, DISCRETE, generator())[:, 0]
    assert not torch.isin(mixed, x[:, 0]).any()
    assert abs(mixed.mean() - x[:, 0].mean()) < 0.15
    assert 0.8 < mixed.std() / x[:, 0].std() < 1.2


def test_each_column_keeps_its_share_of_gaps() -> None:
    x = table()
    gaps = mix_rows(x, 5000, DISCRETE, generator()).isnan().double().mean(0)
    torch.testing.assert_close(gaps, x.isnan().double().mean(0), atol=0.05, rtol=0)
    assert gaps[0] == 0


def test_a_column_of_gaps_stays_a_column_of_gaps() -> None:
    x = table()
    x[:, 0] = NAN
    assert mix_rows(x, 50, DISCRETE, generator())[:, 0].isnan().all()


def test_a_new_row_is_mixed_from_several_rows() -> None:
    x = torch.arange(100.0, dtype=torch.float64)[:, None].expand(100, 6).contiguous()  # equal entries per row
    mixed = mix_rows(x, 1000, [True] * 6, generator())
    sources = torch.tensor([len(row.unique()) for row in mixed])
    assert (sources > 1).double().mean() > 0.5
    assert sources.max() <= 3  # the row itself, a neighbour and a random row


def test_equal_generators_give_equal_rows() -> None:
    x = table()
    before = x.clone()
    first, again, other = (mix_rows(x, 50, DISCRETE, generator(seed)) for seed in (1, 1, 2))
    torch.testing.assert_close(first, again, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(first.nan_to_num(), other.nan_to_num())
    torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)


def test_a_single_row_is_copied() -> None:
    x = torch.tensor([[0.3, 2.0, 1.0, NAN]], dtype=torch.float64)
    mixed = mix_rows(x, 4, DISCRETE, generator())
    torch.testing.assert_close(mixed, x.expand(4, 4), rtol=0, atol=0, equal_nan=True)


def test_one_hot_columns_of_a_player_stay_one_hot() -> None:
    one_hot = torch.eye(3, dtype=torch.float64)[torch.randint(3, (50,), generator=torch.Generator().manual_seed(0))]
    x = torch.cat([torch.randn(50, 1, generator=torch.Generator().manual_seed(1)).double(), one_hot], dim=1)
    mixed = mix_rows(x, 500, [False] * 4, torch.Generator().manual_seed(2), owner=[0, 1, 1, 1])
    assert (mixed[:, 1:].sum(1) == 1).all()
    assert set(mixed[:, 1:].unique().tolist()) == {0, 1}
