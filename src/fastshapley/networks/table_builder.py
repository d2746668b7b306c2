"""How the networks for tables are built."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import require_table
from fastshapley.errors import InputError
from fastshapley.networks.network_builder import (
    ExplainerPlan,
    NetworkBuilder,
    SavedNetwork,
    SurrogatePlan,
    copy_of_given,
)
from fastshapley.networks.perceptron import Perceptron, PlayerPerceptron
from fastshapley.networks.surrogate_networks import MaskedNetwork
from fastshapley.networks.table_encoder import TableEncoder


class TableBuilder(NetworkBuilder):
    """Perceptrons behind an encoding of the columns."""

    def explainer_parts(self, x: Rows, plan: ExplainerPlan) -> tuple[nn.Module, nn.Module]:
        """Return an encoder that is fitted to the rows, and the user's body or the recipe's layers."""
        given = plan.given
        if given is not None and not isinstance(given, nn.Module):
            raise InputError(f"network is {given!r}, which is for images: pass a module, or None")
        categories = require_table(plan.schema, "these networks are").category_counts
        encoder = TableEncoder.fitted(_in_memory(x), categories, plan.recipe.tails, plan.processes)
        return encoder, _body(encoder, plan) if given is None else copy.deepcopy(given)

    def saved_explainer_parts(self, saved: SavedNetwork) -> tuple[nn.Module, nn.Module]:
        """Return the encoder and the body of a file."""
        encoder = TableEncoder(**saved.config["encoder"])
        return encoder, _saved_body(saved, "network")

    def surrogate(self, x: Rows, plan: SurrogatePlan) -> MaskedNetwork:
        """Return a network with the user's body, or with a perceptron."""
        body = copy.deepcopy(plan.given)
        categories = require_table(plan.schema, "these networks are").category_counts
        encoder = TableEncoder.fitted(_in_memory(x), categories, plan.recipe.tails, plan.processes)
        if body is None:
            inputs, layers = len(encoder.columns) + len(plan.partition), plan.layers
            body = Perceptron(inputs, plan.outputs, layers.count, layers.width, layers.activation)
        return MaskedNetwork(encoder, plan.partition.owner, body)

    def saved_surrogate(self, saved: SavedNetwork) -> MaskedNetwork:
        """Return the network of a file."""
        encoder = TableEncoder(**saved.config["encoder"])
        return MaskedNetwork(encoder, saved.config["owner"], _saved_body(saved, "value_function"))


def _in_memory(x: Rows) -> Tensor:
    return x if isinstance(x, Tensor) else x[:]


def _body(encoder: TableEncoder, plan: ExplainerPlan) -> nn.Module:
    """Return the recipe's layers."""
    layers, owner = plan.recipe.explainer_layers, plan.partition.owner
    sizes = (layers.count, layers.width, layers.activation)
    if not plan.recipe.own_units or not owner:  # The players of a user's game may not be columns.
        return Perceptron(len(encoder.columns), plan.body_outputs, *sizes)
    owners = [owner[column] for column in encoder.columns]
    return PlayerPerceptron(owners, plan.body_outputs // plan.players, plan.recipe.own_units, *sizes)


def _saved_body(saved: SavedNetwork, argument: str) -> nn.Module:
    layers = saved.config["layers"]
    if layers is None:
        return copy_of_given(saved.given, argument)
    return PlayerPerceptron(**layers) if "owner" in layers else Perceptron(**layers)
