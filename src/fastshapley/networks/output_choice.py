"""Explainer networks that compute the values of some of their outputs only."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.leaf_perceptron import UNITS, LeafPerceptron
from fastshapley.networks.perceptron import Perceptron, PlayerPerceptron


def with_outputs(network: ExplainerNetwork, outputs: Sequence[int]) -> ExplainerNetwork | None:
    """Return a network that computes the values of some outputs, in a fraction of the time if there are many.

    Parameters
    ----------
    network : ExplainerNetwork
        The network.
    outputs : sequence of int
        The outputs by number.

    Returns
    -------
    ExplainerNetwork or None
        None if the network's body is a module of the user's or is made for images, or has mirrored outputs.
    """
    if network.classes == "mirror":
        return None
    combine = torch.eye(network.outputs, dtype=torch.float64, device=network.scale.device)
    if network.classes == "zero-sum":
        combine = combine - 1 / network.outputs
    combine = (combine * network.scale.double())[:, list(outputs)]
    body = _combined(network.body, combine)
    if body is None:
        return None
    return ExplainerNetwork(network.encoder, body, network.players, len(outputs), leaves=network.leaves).to(
        network.scale.device
    )


def _combined(body: nn.Module, combine: Tensor) -> nn.Module | None:
    """Return a body whose outputs are linear combinations of another one's, or None if that is not possible.

    Parameters
    ----------
    body : nn.Module
        The body, from (b, inputs) to (b, players * outputs).
    combine : Tensor of shape (outputs, chosen)
        The coefficients.
    """
    if isinstance(body, LeafPerceptron):
        new = copy.copy(body)
        new._modules, new._parameters = dict(body._modules), dict(body._parameters)
        new.perceptron = _of_players(body.perceptron, combine)
        units, values = body.vectors.detach().split([UNITS, body.vectors.shape[1] - UNITS], dim=1)
        new.vectors = nn.Parameter(torch.cat([units, _mixed(values.T, combine).T], dim=1))
        return new
    if isinstance(body, PlayerPerceptron):
        return _of_players(body, combine)
    return _of_layers(body, combine) if isinstance(body, Perceptron) else None


def _of_players(body: PlayerPerceptron, combine: Tensor) -> PlayerPerceptron:
    new = copy.copy(body)
    new._modules = dict(body._modules)
    new.hidden = _of_layers(body.hidden, combine)
    new.config = {**body.config, "outputs": combine.shape[1]}
    return new


def _of_layers(body: Perceptron, combine: Tensor) -> Perceptron:
    last = body[-1]
    assert isinstance(last, nn.Linear)
    weight, bias = (_mixed(each.detach(), combine) for each in (last.weight, last.bias))
    linear = nn.Linear(last.in_features, len(weight), device=weight.device)
    linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    new = copy.copy(body)
    new._modules = {**body._modules, str(len(body) - 1): linear}
    new.config = {**body.config, "outputs": len(weight)}
    return new


def _mixed(rows: Tensor, combine: Tensor) -> Tensor:
    """Return linear combinations of rows (groups * outputs, ...), (groups * chosen, ...)."""
    groups = rows.unflatten(0, (-1, len(combine)))
    return torch.einsum("go...,oc->gc...", groups, combine.to(rows)).flatten(0, 1)
