"""Tests of networks that compute some outputs only: they agree with the whole network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fastshapley.networks.explainer_network import Classes, ExplainerNetwork
from fastshapley.networks.leaf_perceptron import UNITS, LeafPerceptron
from fastshapley.networks.output_choice import with_outputs
from fastshapley.networks.perceptron import Perceptron, PlayerPerceptron

PLAYERS, OUTPUTS, LEAVES, TREES = 3, 5, 8, 2


class Leaves(nn.Module):
    """Leaves that follow from the signs of two columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, :TREES] > 0).long() + torch.arange(0, 2 * TREES, 2)


def players(shared: int = 0) -> dict[str, Any]:
    layers = {"layers": 2, "width": 16, "activation": "silu"}
    return {"owner": [0, 1, 1, 2], "outputs": OUTPUTS, "units": 4, "shared": shared, **layers}


def network(kind: str, classes: Classes) -> ExplainerNetwork:
    torch.manual_seed(0)
    if kind == "layers":
        made = ExplainerNetwork(
            nn.Identity(), Perceptron(4, PLAYERS * OUTPUTS, 2, 16, "relu"), PLAYERS, OUTPUTS, classes
        )
    elif kind == "players":
        made = ExplainerNetwork(nn.Identity(), PlayerPerceptron(**players()), PLAYERS, OUTPUTS, classes)
    else:
        body = LeafPerceptron(players(UNITS), LEAVES, TREES)
        nn.init.normal_(body.vectors)
        leaves: Any = Leaves()
        made = ExplainerNetwork(nn.Identity(), body, PLAYERS, OUTPUTS, classes, leaves)
    made.scale.copy_(torch.arange(1.0, OUTPUTS + 1))
    return made


@pytest.mark.parametrize("chosen", [[0], [4, 1], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("classes", ["free", "zero-sum"])
@pytest.mark.parametrize("kind", ["layers", "players", "leaves"])
def test_values_are_those_of_the_whole_network(kind: str, classes: Classes, chosen: list[int]) -> None:
    whole = network(kind, classes)
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    few = with_outputs(whole, chosen)
    assert few is not None
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = whole(x)[..., chosen], few(x)
    assert found.shape == (20, PLAYERS, len(chosen))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_bodies_of_other_kinds_and_mirrored_outputs_are_computed_as_a_whole() -> None:
    own = nn.Linear(4, PLAYERS * OUTPUTS)
    assert with_outputs(ExplainerNetwork(nn.Identity(), own, PLAYERS, OUTPUTS), [0]) is None
    mirror = ExplainerNetwork(nn.Identity(), Perceptron(4, PLAYERS, 1, 8, "relu"), PLAYERS, 2, "mirror")
    assert with_outputs(mirror, [1]) is None
