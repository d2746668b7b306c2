"""Tests of perceptrons."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastshapley.networks import PlayerPerceptron
from fastshapley.training.recipes import Activation

OWNERS = {"one to one": [0, 1, 2], "out of order": [2, 0, 1], "several inputs a player": [0, 1, 1, 0, 2, 1]}


def player_perceptron(
    owner: list[int], outputs: int = 1, units: int = 4, layers: int = 2, activation: Activation = "silu"
) -> PlayerPerceptron:
    torch.manual_seed(0)
    return PlayerPerceptron(owner, outputs, units, layers, 16, activation).double()


def normal(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def act(activation: str, z: NDArray[np.float64]) -> NDArray[np.float64]:
    if activation == "relu":
        return np.maximum(z, 0)
    return z / (1 + np.exp(-z)) if activation == "silu" else np.where(z > 0, z, np.expm1(z))


def by_hand(network: PlayerPerceptron, owner: list[int], inputs: Tensor) -> NDArray[np.float64]:
    """Values (b, players, outputs): a_i0(x) + sum over j of a_ij(x) h_ij(x_i), one number at a time."""
    units, outputs, activation = (network.config[name] for name in ("units", "outputs", "activation"))
    state = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    layers = [state[f"hidden.{2 * i}.weight"] for i in range(network.config["layers"] + 1)]
    biases = [state[f"hidden.{2 * i}.bias"] for i in range(network.config["layers"] + 1)]
    players = max(owner) + 1
    values = np.zeros((len(inputs), players, outputs))
    for row, x in enumerate(inputs.numpy()):
        a = x
        for layer, bias in zip(layers[:-1], biases[:-1], strict=True):
            a = act(activation, layer @ a + bias)
        a = (layers[-1] @ a + biases[-1]).reshape(1 + units, players, outputs)
        for i in range(players):
            values[row, i] = a[0, i]
            for j in range(units):
                own = sum(state["weight"][j, k] * x[k] for k in range(len(owner)) if owner[k] == i)
                values[row, i] += a[1 + j, i] * act(activation, own + state["bias"][j, i])
    return values


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("layers", "activation"), [(2, "silu"), (1, "relu"), (0, "elu")])
def test_a_player_perceptron_computes_its_formula(
    owner: list[int], outputs: int, layers: int, activation: Activation
) -> None:
    network = player_perceptron(owner, outputs, layers=layers, activation=activation)
    inputs = normal(7, len(owner))
    found = network(inputs).detach()
    assert found.shape == (7, 3 * outputs)
    np.testing.assert_allclose(found.reshape(7, 3, outputs), by_hand(network, owner, inputs), atol=1e-12)


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
@pytest.mark.parametrize("outputs", [1, 3])
def test_own_units_see_only_the_inputs_of_one_player(owner: list[int], outputs: int) -> None:
    """If the hidden layers ignore the row, each input changes only the values of its own player."""
    network = player_perceptron(owner, outputs)
    for layer in network.hidden:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.weight)
            nn.init.normal_(layer.bias)
    inputs = normal(5, len(owner))
    before = network(inputs).reshape(5, 3, outputs)
    for column, player in enumerate(owner):
        changed = inputs.clone()
        changed[:, column] += 1
        moved = network(changed).reshape(5, 3, outputs) != before
        assert moved[:, player].all()
        assert not moved[:, [i for i in range(3) if i != player]].any()


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
def test_hidden_layers_see_the_whole_row(owner: list[int]) -> None:
    network = player_perceptron(owner)
    inputs = normal(5, len(owner)).requires_grad_()
    for i in range(3):
        (slope,) = torch.autograd.grad(network(inputs)[:, i].sum(), inputs)
        assert (slope != 0).all()


def test_a_player_perceptron_without_own_units_is_its_hidden_layers() -> None:
    network = player_perceptron([0, 1, 1], units=0)
    inputs = normal(4, 3)
    torch.testing.assert_close(network(inputs), network.hidden(inputs))


def test_every_parameter_of_a_player_perceptron_gets_a_gradient() -> None:
    network = player_perceptron([0, 1, 1, 0, 2], outputs=2)
    network(normal(50, 5)).square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in network.parameters())


@pytest.mark.parametrize("inputs", [1, 4, 16])
def test_initial_own_units_have_unit_variance_for_any_number_of_inputs(inputs: int) -> None:
    """For standardised inputs, the mean variance over 2000 players is 1 within 4 standard errors."""
    torch.manual_seed(0)
    network = PlayerPerceptron(torch.arange(2000).repeat_interleave(inputs).tolist(), 1, 4, 0, 1, "relu")
    weight = network.weight.detach()
    squares = weight[0].unflatten(0, (2000, inputs)).square().sum(1)  # the variance of a unit over rows
    assert abs(float(squares.mean()) - 1) <= 1e-6 + 4 * float(squares.std()) / 2000**0.5
    assert torch.equal(weight[1::2], -weight[::2])  # units come in mirrored pairs
    assert network.bias[:, 0].tolist() == [0, 0, -1, -1]


@pytest.mark.parametrize("owner", OWNERS.values(), ids=list(OWNERS))
def test_a_player_perceptron_is_restored_from_its_configuration_and_state(owner: list[int]) -> None:
    network = player_perceptron(owner, outputs=2)
    again = PlayerPerceptron(**json.loads(json.dumps(network.config))).double()
    again.load_state_dict(network.state_dict())
    assert again.config == network.config
    inputs = normal(9, len(owner))
    assert torch.equal(again(inputs), network(inputs))


def test_the_names_of_the_weights_do_not_change() -> None:
    """Saved files contain these names."""
    hidden = [f"hidden.{number}.{what}" for number in (0, 2, 4) for what in ("weight", "bias")]
    assert sorted(player_perceptron([0, 1, 1]).state_dict()) == sorted(["weight", "bias", *hidden])


@pytest.mark.parametrize(
    "owner", [[0, 1, 2], [0, 1, 1, 0, 2, 1]], ids=["one input per player", "several inputs per player"]
)
def test_a_player_perceptron_can_be_exported(owner: list[int]) -> None:
    """The exported program takes any number of rows."""
    network = player_perceptron(owner, outputs=2).eval()
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(network, (normal(4, len(owner)),), dynamic_shapes=({0: rows},))
    inputs = normal(11, len(owner))
    torch.testing.assert_close(program.module()(inputs), network(inputs))


def test_shared_inputs_reach_the_hidden_layers_only() -> None:
    torch.manual_seed(0)
    body = PlayerPerceptron([0, 1], 1, 2, 1, 8, "silu", shared=3)
    assert body.weight.shape == (2, 2)
    inputs = torch.randn(4, 5)
    changed = inputs.clone()
    changed[:, 4] += 1
    assert (body(changed) != body(inputs)).all()
    with torch.no_grad():
        first = next(body.hidden.children())
        assert isinstance(first, nn.Linear)
        first.weight[:, 2:] = 0
    assert torch.equal(body(changed), body(inputs))
    again = PlayerPerceptron(**body.config)
    again.load_state_dict(body.state_dict())
    assert torch.equal(again(inputs), body(inputs))
