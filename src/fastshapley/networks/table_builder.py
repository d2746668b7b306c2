"""How the networks for tables are built."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fastshapley.data.split_points import split_points
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import require_table
from fastshapley.errors import InputError
from fastshapley.networks.cut_choice import chosen_cuts
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

OWN_WEIGHTS = 2048  # largest number of weights of own units that a network puts out for a row,
FEWEST_UNITS = 2  # unless each value has this many units


class TableBuilder(NetworkBuilder):
    """Perceptrons behind an encoding of the columns."""

    def explainer_parts(self, x: Rows, plan: ExplainerPlan) -> tuple[nn.Module, nn.Module]:
        """Return an encoder that is fitted to the rows, and the user's body or the recipe's layers."""
        given = plan.given
        if given is not None and not isinstance(given, nn.Module):
            raise InputError(f"network is {given!r}, which is for images: pass a module, or None")
        encoder = _encoder(x, plan, plan.recipe.cuts)
        return encoder, _body(encoder, plan) if given is None else copy.deepcopy(given)

    def saved_explainer_parts(self, saved: SavedNetwork) -> tuple[nn.Module, nn.Module]:
        """Return the encoder and the body of a file."""
        encoder = TableEncoder(**saved.config["encoder"])
        return encoder, _saved_body(saved, "network")

    def surrogate(self, x: Rows, plan: SurrogatePlan) -> MaskedNetwork:
        """Return a network with the user's body, or with a perceptron."""
        body = copy.deepcopy(plan.given)
        encoder = _encoder(x, plan, plan.recipe.surrogate_cuts)
        if body is None:
            inputs, layers = len(encoder.columns) + len(plan.partition), plan.layers
            body = Perceptron(inputs, plan.outputs, layers.count, layers.width, layers.activation)
        return MaskedNetwork(encoder, plan.partition.owner, body)

    def saved_surrogate(self, saved: SavedNetwork) -> MaskedNetwork:
        """Return the network of a file."""
        encoder = TableEncoder(**saved.config["encoder"])
        return MaskedNetwork(encoder, saved.config["owner"], _saved_body(saved, "value_function"))


def _encoder(x: Rows, plan: ExplainerPlan | SurrogatePlan, most: int) -> TableEncoder:
    """Return an encoder that is fitted to the rows; for a body of our own with ``most`` split points per column."""
    rows, recipe = x if isinstance(x, Tensor) else x[:], plan.recipe
    categories = require_table(plan.schema, "these networks are").category_counts
    found = split_points(plan.model, len(categories)) if most and plan.given is None else None
    cuts = [] if found is None else chosen_cuts(found, rows, categories, most, plan.processes)
    return TableEncoder.fitted(rows, categories, recipe.tails, plan.processes, cuts)


def _body(encoder: TableEncoder, plan: ExplainerPlan) -> nn.Module:
    """Return the recipe's layers."""
    layers, owner = plan.recipe.explainer_layers, plan.partition.owner
    sizes = (layers.count, layers.width, layers.activation)
    if not plan.recipe.own_units or not owner:  # The players of a user's game may not be columns.
        return Perceptron(len(encoder.columns), plan.body_outputs, *sizes)
    units = min(plan.recipe.own_units, max(FEWEST_UNITS, OWN_WEIGHTS // plan.body_outputs))
    owners, cuts = [owner[column] for column in encoder.columns[: encoder.plain_inputs]], len(encoder.cut)
    return PlayerPerceptron(owners, plan.body_outputs // plan.players, units, *sizes, shared=cuts)


def _saved_body(saved: SavedNetwork, argument: str) -> nn.Module:
    layers = saved.config["layers"]
    if layers is None:
        return copy_of_given(saved.given, argument)
    return PlayerPerceptron(**layers) if "owner" in layers else Perceptron(**layers)
