"""Tests of the network that sees the leaves of a model's trees."""

from __future__ import annotations

import torch

from fastshapley.networks.leaf_perceptron import UNITS, LeafPerceptron
from fastshapley.networks.perceptron import PlayerPerceptron

LEAVES, TREES, ROWS = 12, 3, 5


def network(outputs: int = 2) -> LeafPerceptron:
    torch.manual_seed(0)
    perceptron = PlayerPerceptron([0, 1, 1], outputs, 2, 2, 8, "silu", shared=1 + UNITS)
    return LeafPerceptron(perceptron.config, LEAVES, TREES)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 4, generator=generator), torch.randint(LEAVES, (ROWS, TREES), generator=generator)


def test_values_have_a_part_that_is_a_sum_over_leaves() -> None:
    made = network()
    inputs, leaves = rows()
    before = made(inputs, leaves)
    assert before.shape == (ROWS, 4)
    with torch.no_grad():
        made.vectors[leaves[0, 0], UNITS:] += 1.0
    added = (leaves == leaves[0, 0]).sum(1, keepdim=True).float().expand(-1, 4)
    torch.testing.assert_close(made(inputs, leaves) - before, added)


def test_hidden_layers_see_the_leaves() -> None:
    made = network()
    inputs, leaves = rows()
    assert not torch.allclose(made(inputs, leaves), made(inputs, (leaves + 1) % LEAVES))


def test_a_network_from_its_configuration_and_weights_is_the_same() -> None:
    made = network()
    again = LeafPerceptron(**made.config)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(*rows()), made(*rows()))
    assert again.config == made.config


def test_an_exported_network_returns_the_same() -> None:
    made = network().eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(made, rows(), dynamic_shapes=({0: batch}, {0: batch}))
    torch.testing.assert_close(program.module()(*rows()), made(*rows()))
