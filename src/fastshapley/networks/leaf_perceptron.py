"""The network of an explainer whose model has trees."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.networks.perceptron import PlayerPerceptron
from fastshapley.networks.weights import Configured

UNITS = 32  # numbers per leaf that the hidden layers see


class LeafPerceptron(nn.Module, Configured):
    """A perceptron that also sees which leaves of the model's trees a row comes to.

    It maps inputs (b, inputs) and leaves (b, trees) to (b, players * outputs). Each leaf has a learnt vector. The
    sum of a row's vectors holds units, which are further inputs of the hidden layers, and one value for each player
    and output, which is added to the result.

    Parameters
    ----------
    perceptron : dict
        The configuration of the perceptron. The units are the last of its shared inputs.
    leaves, trees : int
        The numbers of leaves and trees.
    """

    def __init__(self, perceptron: dict[str, Any], leaves: int, trees: int) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"perceptron": perceptron, "leaves": leaves, "trees": trees}
        self.perceptron = PlayerPerceptron(**perceptron)
        units = torch.randn(leaves, UNITS) / math.sqrt(trees)
        values = torch.zeros(leaves, self.perceptron.players * perceptron["outputs"])
        self.vectors = nn.Parameter(torch.cat([units, values], dim=1))

    def forward(self, inputs: Tensor, leaves: Tensor) -> Tensor:
        """Return values (b, players * outputs) of inputs (b, inputs) and leaves (b, trees)."""
        if torch.compiler.is_exporting():  # A graph has no operator for the other way.
            found = functional.embedding(leaves, self.vectors).sum(1)
        else:
            found = functional.embedding_bag(leaves, self.vectors, mode="sum")
        units, values = found.split([UNITS, found.shape[1] - UNITS], dim=1)
        made: Tensor = self.perceptron(torch.cat([inputs, units], dim=1))
        return made + values
