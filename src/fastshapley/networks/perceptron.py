"""Perceptrons, which play the largest part in networks for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastshapley.networks.weights import Configured
from fastshapley.training.recipes import Activation

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


class Perceptron(nn.Sequential, Configured):
    """Hidden layers of the same width: (b, inputs) to (b, outputs).

    Parameters
    ----------
    inputs, outputs : int
        The numbers of inputs and outputs.
    layers : int
        The number of hidden layers.
    width : int
        The number of units of each hidden layer.
    activation : str
        ``"relu"``, ``"elu"`` or ``"silu"``.
    """

    def __init__(self, inputs: int, outputs: int, layers: int, width: int, activation: Activation) -> None:
        config: dict[str, Any] = {
            "inputs": inputs,
            "outputs": outputs,
            "layers": layers,
            "width": width,
            "activation": activation,
        }
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(inputs, width), _ACTIVATIONS[activation]()]
            inputs = width
        super().__init__(*parts, nn.Linear(inputs, outputs))
        self.config = config


class PlayerPerceptron(nn.Module, Configured):
    """A perceptron that weighs, for each player, a few units that see only that player's own inputs.

    It maps (b, inputs) to (b, players * outputs). The value of player i is
    a_i0(x) + sum over j of a_ij(x) h_ij(x_i), where the hidden layers compute the a from the whole row. A player's
    value follows its own inputs closely, and the rest of the row bends that curve. This shape generalises from
    fewer rows than hidden layers alone.

    Parameters
    ----------
    owner : sequence of int
        The player of each input.
    outputs : int
        The number of outputs of one player.
    units : int
        The number of units of one player.
    layers, width, activation
        The hidden layers, as for `Perceptron`.
    shared : int
        The number of further inputs, which come last and which only the hidden layers see.
    """

    def __init__(
        self,
        owner: Sequence[int],
        outputs: int,
        units: int,
        layers: int,
        width: int,
        activation: Activation,
        shared: int = 0,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            "owner": list(owner),
            "outputs": outputs,
            "units": units,
            "layers": layers,
            "width": width,
            "activation": activation,
            "shared": shared,
        }
        self.players = max(owner) + 1
        self.one_to_one = list(owner) == list(range(self.players))
        self.register_buffer("owner", torch.tensor(list(owner)), persistent=False)
        self.hidden = Perceptron(
            len(owner) + shared, (units + 1) * self.players * outputs, layers, width, activation
        )
        # Units start as mirrored pairs of hinges, whose sums and differences are nearly |x| and x.
        pair = torch.arange(units)
        count = torch.bincount(self.owner)[self.owner]
        weight = torch.where(count == 1, 1.0, torch.randn(len(owner))) / count.sqrt()
        self.weight = nn.Parameter((1.0 - 2.0 * (pair % 2))[:, None] * weight)
        self.bias = nn.Parameter(-(pair // 2).float()[:, None].expand(-1, self.players).clone())
        self.activation = _ACTIVATIONS[activation]()

    owner: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        """Return values (b, players * outputs) of inputs (b, inputs)."""
        own = inputs[:, None, : len(self.owner)] * self.weight
        if not self.one_to_one:
            own = own.new_zeros(*own.shape[:2], self.players).index_add(2, self.owner, own)
        own = self.activation(own + self.bias)  # (b, units, players)
        free, weights = (
            self.hidden(inputs)
            .unflatten(1, (-1, self.players, self.config["outputs"]))
            .split([1, own.shape[1]], dim=1)
        )
        return (free[:, 0] + (weights * own[..., None]).sum(1)).flatten(1)
