"""Tests of the normalisation and the losses."""

from __future__ import annotations

import pytest
import torch
from games import GAMES, KnownGame
from torch import Tensor

from fastshapley.objective import coalition_loss, efficiency_penalty, normalize
from fastshapley.value_functions import grand_values, null_values


@pytest.fixture(params=GAMES.values(), ids=list(GAMES))
def example(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor, Tensor]:
    """Exact values, noisy values, and grand minus null."""
    game: KnownGame = request.param
    x = game.rows(5)
    truth = game.shapley(x)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return truth, truth + noise, grand_values(game, x) - null_values(game, x)


def test_normalized_values_are_efficient(example: tuple[Tensor, Tensor, Tensor]) -> None:
    _, phi, total = example
    torch.testing.assert_close(normalize(phi, total).sum(1), total)


def test_normalizing_is_idempotent_and_does_not_change_exact_values(example: tuple[Tensor, Tensor, Tensor]) -> None:
    truth, phi, total = example
    once = normalize(phi, total)
    torch.testing.assert_close(normalize(once, total), once)
    torch.testing.assert_close(normalize(truth, total), truth)


def test_normalizing_along_another_axis_is_the_same(example: tuple[Tensor, Tensor, Tensor]) -> None:
    phi, total = example[0], torch.ones_like(example[0][:, 0])
    by_output = normalize(phi.transpose(1, 2), total, dim=2)
    torch.testing.assert_close(by_output.transpose(1, 2), normalize(phi, total))


def test_normalizing_is_an_orthogonal_projection(example: tuple[Tensor, Tensor, Tensor]) -> None:
    truth, phi, total = example
    projected = normalize(phi, total)
    before, after, moved = (
        (a - b).square().sum(1) for a, b in ((phi, truth), (projected, truth), (phi, projected))
    )
    torch.testing.assert_close(
        before, after + moved
    )  # So projected values are never further from the exact values.


def test_the_coalition_loss_equals_a_calculation_by_hand() -> None:
    phi = torch.tensor([[[1.0, 0.0], [2.0, -1.0]]])
    s = torch.tensor([[[True, False], [True, True]]])
    worth = torch.tensor([[[3.0, 1.0], [3.0, 2.0]]])
    # The residuals are 3 - 1 = 2, 1 - 0 = 1; 3 - 3 = 0, 2 + 1 = 3.
    assert float(coalition_loss(phi, s, worth)) == pytest.approx((4 + 1 + 0 + 9) / 4)
    weight = torch.tensor([[0.5, 2.0]])
    assert float(coalition_loss(phi, s, worth, weight)) == pytest.approx((0.5 * (4 + 1) + 2 * (0 + 9)) / 4)


def test_the_efficiency_penalty_equals_a_calculation_by_hand() -> None:
    phi = torch.tensor([[[1.0, 0.0], [2.0, -1.0]], [[0.0, 0.0], [0.0, 1.0]]])
    total = torch.tensor([[5.0, -1.0], [1.0, 4.0]])
    # The differences are 5 - 3 = 2, -1 + 1 = 0; 1 - 0 = 1, 4 - 1 = 3.
    assert float(efficiency_penalty(phi, total)) == pytest.approx((4 + 0 + 1 + 9) / 4)
