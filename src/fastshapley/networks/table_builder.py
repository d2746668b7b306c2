"""How the networks for tables are built."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from fastshapley.data.model_trees import model_trees
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import require_table
from fastshapley.data.trees import Trees
from fastshapley.errors import InputError
from fastshapley.networks.cut_choice import chosen_cuts
from fastshapley.networks.leaf_perceptron import UNITS, LeafPerceptron
from fastshapley.networks.network_builder import (
    ExplainerPlan,
    NetworkBuilder,
    Parts,
    SavedNetwork,
    SurrogatePlan,
    copy_of_given,
)
from fastshapley.networks.perceptron import Perceptron, PlayerPerceptron
from fastshapley.networks.surrogate_networks import MaskedNetwork
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.networks.tree_choice import SEEN_ROWS, chosen_trees
from fastshapley.networks.tree_leaves import TreeLeaves

OWN_WEIGHTS = 2048  # largest number of weights of own units that a network puts out for a row,
FEWEST_UNITS = 2  # unless each value has this many units
LEAF_WEIGHTS = 1 << 19  # largest number of weights that belong to single leaves of a model's trees
LEAF_WIDTH = 128  # largest width of hidden layers that see leaves, which tell the most


class TableBuilder(NetworkBuilder):
    """Perceptrons behind an encoding of the columns."""

    def explainer_parts(self, x: Rows, plan: ExplainerPlan) -> Parts:
        """Return an encoder that is fitted to the rows, and the user's body or the recipe's layers."""
        given = plan.given
        if given is not None and not isinstance(given, nn.Module):
            raise InputError(f"network is {given!r}, which is for images: pass a module, or None")
        trees = _trees(x, plan)
        encoder = _encoder(x, plan, trees, plan.recipe.cuts)
        if given is not None:
            return Parts(encoder, copy.deepcopy(given))
        leaves = _leaves(x, plan, trees)
        return Parts(encoder, _body(encoder, leaves, plan), leaves)

    def saved_explainer_parts(self, saved: SavedNetwork) -> Parts:
        """Return the encoder and the body of a file."""
        leaves = saved.config.get("leaves")  # The first files do not have them.
        return Parts(
            TableEncoder(**saved.config["encoder"]),
            _saved_body(saved, "network"),
            None if leaves is None else TreeLeaves(**leaves),
        )

    def surrogate(self, x: Rows, plan: SurrogatePlan) -> MaskedNetwork:
        """Return a network with the user's body, or with a perceptron."""
        body = copy.deepcopy(plan.given)
        encoder = _encoder(x, plan, _trees(x, plan), plan.recipe.surrogate_cuts)
        if body is None:
            inputs, layers = len(encoder.columns) + len(plan.partition), plan.layers
            body = Perceptron(inputs, plan.outputs, layers.count, layers.width, layers.activation)
        return MaskedNetwork(encoder, plan.partition.owner, body)

    def saved_surrogate(self, saved: SavedNetwork) -> MaskedNetwork:
        """Return the network of a file."""
        encoder = TableEncoder(**saved.config["encoder"])
        return MaskedNetwork(encoder, saved.config["owner"], _saved_body(saved, "value_function"))


def _trees(x: Rows, plan: ExplainerPlan | SurrogatePlan) -> Trees | None:
    """Return the trees of the model, unless the body is the user's own."""
    return None if plan.given is not None else model_trees(plan.model, x.shape[1])


def _encoder(x: Rows, plan: ExplainerPlan | SurrogatePlan, trees: Trees | None, most: int) -> TableEncoder:
    """Return an encoder that is fitted to the rows, with at most ``most`` cuts of the trees per column."""
    rows, recipe = _all(x), plan.recipe
    categories = require_table(plan.schema, "these networks are").category_counts
    cuts = chosen_cuts(trees.cuts(), rows, categories, most, plan.processes) if trees and most else []
    return TableEncoder.fitted(rows, categories, recipe.tails, plan.processes, cuts)


def _leaves(x: Rows, plan: ExplainerPlan, trees: Trees | None) -> TreeLeaves | None:
    """Return the leaves of the trees that a network of our own sees; None if there are none."""
    recipe, rows = plan.recipe, _all(x)
    if trees is None or not recipe.leaves or not recipe.own_units or not plan.partition.owner:
        return None
    most = min(recipe.leaves, LEAF_WEIGHTS // (UNITS + plan.body_outputs))
    seen = plan.processes.gather(rows[:: -(-len(rows) // SEEN_ROWS)], SEEN_ROWS)[:].cpu().numpy()
    chosen = chosen_trees(trees, seen, most)
    return TreeLeaves.of(chosen) if len(chosen.roots) else None


def _all(x: Rows) -> Tensor:
    return x if isinstance(x, Tensor) else x[:]


def _body(encoder: TableEncoder, leaves: TreeLeaves | None, plan: ExplainerPlan) -> nn.Module:
    """Return the recipe's layers."""
    layers, owner = plan.recipe.explainer_layers, plan.partition.owner
    sizes = (layers.count, layers.width, layers.activation)
    if not plan.recipe.own_units or not owner:  # The players of a user's game may not be columns.
        return Perceptron(len(encoder.columns), plan.body_outputs, *sizes)
    units = min(plan.recipe.own_units, max(FEWEST_UNITS, OWN_WEIGHTS // plan.body_outputs))
    owners, cuts = [owner[column] for column in encoder.columns[: encoder.plain_inputs]], len(encoder.cut)
    outputs = plan.body_outputs // plan.players
    if leaves is None:
        return PlayerPerceptron(owners, outputs, units, *sizes, shared=cuts)
    width = min(layers.width, LEAF_WIDTH)
    perceptron = PlayerPerceptron(owners, outputs, units, layers.count, width, layers.activation, cuts + UNITS)
    return LeafPerceptron(perceptron.config, leaves.leaves, leaves.config["trees"])


def _saved_body(saved: SavedNetwork, argument: str) -> nn.Module:
    layers = saved.config["layers"]
    if layers is None:
        return copy_of_given(saved.given, argument)
    if "perceptron" in layers:
        return LeafPerceptron(**layers)
    return PlayerPerceptron(**layers) if "owner" in layers else Perceptron(**layers)
