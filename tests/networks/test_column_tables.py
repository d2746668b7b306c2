"""Tests of fastshapley.networks.column_tables: the same outputs as the network's own layers."""

from __future__ import annotations

import pytest
import torch

from fastshapley.networks.column_tables import MANY
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.surrogate_networks import MaskedNetwork
from fastshapley.networks.table_encoder import TableEncoder

CUTS = [[-0.5, 0.1, 0.3], [], [0.0], [], []]
# Sums of 20 float32 terms of size 1, in another order.
TOLERANCE = 20 * torch.finfo(torch.float32).eps


def rows() -> torch.Tensor:
    """Return rows of three columns of numbers and two of categories, with gaps in two of them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 5, dtype=torch.float64, generator=generator)
    x[:, 1], x[:, 3] = torch.arange(50) % 4, torch.arange(50) % 2
    x[::7, 0], x[::5, 1] = torch.nan, torch.nan
    return x


def network(owner: list[int], cuts: list[list[float]] = CUTS, columns: int = 5) -> MaskedNetwork:
    """Return an untrained network for the first columns of `rows`."""
    x = rows()[:, :columns]
    encoder = TableEncoder.fitted(x, [0, 4, 0, 2, 0][:columns], 3.0, cuts=cuts)
    torch.manual_seed(1)
    body = Perceptron(len(encoder.columns) + max(owner) + 1, 3, 2, 16, "silu")
    return MaskedNetwork(encoder, owner, body)


@pytest.mark.parametrize("owner", [[0, 1, 2, 3, 4], [0, 1, 1, 2, 0]], ids=["columns", "groups"])
@pytest.mark.parametrize("coalitions", [1, 3, MANY, 20])
class TestCoalitions:
    def test_same_outputs(self, owner: list[int], coalitions: int) -> None:
        net, x = network(owner), rows()
        s = torch.rand(50, coalitions, max(owner) + 1, generator=torch.Generator().manual_seed(2)) < 0.5
        with torch.no_grad():
            torch.testing.assert_close(net.trained()(x, s), net(x, s), rtol=0, atol=TOLERANCE)


class TestKnown:
    @pytest.mark.parametrize("cuts", [CUTS, []], ids=["cuts", "no cuts"])
    def test_same_outputs_for_unseen_gaps_large_numbers_and_numbers_on_a_cut(self, cuts: list[list[float]]) -> None:
        net, x = network([0, 1, 2, 3, 4], cuts), rows()
        x[3, 2], x[4, 0], x[5, 4] = torch.nan, 0.1, 1e6
        with torch.no_grad():
            torch.testing.assert_close(net.trained().known(x), net.known(x), rtol=0, atol=TOLERANCE)

    def test_numbers_without_gaps_and_cuts_need_no_tables(self) -> None:
        encoder = TableEncoder.fitted(rows()[:, 2:3], [0], 3.0)
        net = MaskedNetwork(encoder, [0], Perceptron(2, 3, 2, 16, "silu"))
        with torch.no_grad():
            torch.testing.assert_close(
                net.trained().known(rows()[:, 2:3]), net.known(rows()[:, 2:3]), rtol=0, atol=TOLERANCE
            )


def test_a_body_of_the_users_is_evaluated_as_it_is() -> None:
    net = network([0, 1, 2, 3, 4])
    net.body = torch.nn.Sequential(*net.body.children())
    assert net.trained() is net
