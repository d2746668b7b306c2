"""Tests of surrogate networks for tables."""

from __future__ import annotations

import pytest
import torch
from encoded_rows import CATEGORIES, ROWS
from torch import nan, nn

from fastshapley.networks import MaskedNetwork, Perceptron, TableEncoder


@pytest.fixture(params=[(), [[2.0, 4.0], [], [], [3.0], []]], ids=["plain", "with cuts"])
def encoder(request: pytest.FixtureRequest) -> TableEncoder:
    torch.manual_seed(0)
    return TableEncoder.fitted(ROWS, CATEGORIES, cuts=request.param)


@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4], [0, 1, 1, 0, 2]], ids=["columns", "groups"])
@pytest.mark.parametrize("replacement", [nan, 1.0, 0.0, 1e300])
def test_a_masked_network_ignores_hidden_columns(
    encoder: TableEncoder, owner: list[int], replacement: float
) -> None:
    players = max(owner) + 1
    network = MaskedNetwork(encoder, owner, Perceptron(len(encoder.columns) + players, 2, 2, 16, "silu"))
    every = (torch.arange(2**players)[:, None] >> torch.arange(players)) & 1 == 1
    s = every.expand(len(ROWS), -1, -1)
    before = network(ROWS, s)
    assert before.shape == (3, 2**players, 2)
    for column, player in enumerate(owner):
        if CATEGORIES[column] and replacement > 1:
            continue  # not a valid category code
        changed = ROWS.clone()
        changed[:, column] = replacement
        after = network(changed, s)
        assert torch.equal(after[:, ~every[:, player]], before[:, ~every[:, player]])
        shown = ~torch.isclose(ROWS[:, column], changed[:, column], equal_nan=True)
        if column != 1:  # a constant column need not matter
            assert (after[shown][:, every[:, player]] != before[shown][:, every[:, player]]).any() == shown.any()


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4], [0, 1, 1, 0, 2]], ids=["columns", "groups"])
def test_many_coalitions_at_once_give_the_same_values_as_one_by_one(
    encoder: TableEncoder, owner: list[int], layers: int
) -> None:
    players = max(owner) + 1
    network = MaskedNetwork(encoder, owner, Perceptron(len(encoder.columns) + players, 2, layers, 16, "silu"))
    s = torch.rand(3, 300, players, generator=torch.Generator().manual_seed(0)) < 0.5
    together = network(ROWS, s)
    assert together.shape == (3, 300, 2)
    alone = torch.cat([network(ROWS, part) for part in s.split(1, dim=1)], dim=1)
    torch.testing.assert_close(together, alone)


def test_the_body_gets_the_masked_inputs_and_the_coalition() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)
    network = MaskedNetwork(TableEncoder.fitted(x, [0, 0]), [0, 1], nn.Identity())
    s = torch.tensor([[[True, False]], [[True, True]]])
    torch.testing.assert_close(network(x, s), torch.tensor([[[-1.0, 0, 1, 0]], [[1.0, 1, 1, 1]]]))
