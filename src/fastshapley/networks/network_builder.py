"""How the networks for one kind of data are built: one abstract class, with one final class for each kind."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.data.stream import Rows
from fastshapley.errors import FileFormatError, InputError
from fastshapley.networks.backbone import Backbone
from fastshapley.networks.explainer_network import Classes, ExplainerNetwork
from fastshapley.networks.surrogate_networks import Inverse, SurrogateNetwork
from fastshapley.networks.tree_leaves import TreeLeaves
from fastshapley.networks.unet import UNet
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.recipes import Layers, Recipe

GivenNetwork = nn.Module | Backbone | UNet | None  # what a user may pass as ``network``


@dataclass(frozen=True)
class ExplainerPlan:
    """What an explainer network is built for.

    Attributes
    ----------
    schema : Schema
        The layout of the rows.
    partition : Partition
        The players and the columns or pixels that they own.
    players, outputs : int
        The numbers of players and outputs of the game.
    recipe : Recipe
        The sizes of the layers.
    classes : str
        What is known about the values of the outputs; see `ExplainerNetwork`.
    given : nn.Module, Backbone, UNet or None
        What the user passed as ``network``.
    model : object
        The user's model, or a surrogate of it, from which an explainer of images takes its layers, and an explainer
        of tables the split points of its trees.
    processes : ProcessGroup
        The processes that train together.
    """

    schema: Schema
    partition: Partition
    players: int
    outputs: int
    recipe: Recipe
    classes: Classes = "free"
    given: GivenNetwork = None
    model: Any = None
    processes: ProcessGroup = field(default_factory=ProcessGroup)

    @property
    def body_outputs(self) -> int:
        """The number of values that the body computes for each row."""
        return ExplainerNetwork.body_outputs(self.players, self.outputs, self.classes)


@dataclass(frozen=True)
class SurrogatePlan:
    """What a surrogate's network is built for.

    Attributes
    ----------
    schema : Schema
        The layout of the rows.
    partition : Partition
        The players.
    outputs : int
        The number of outputs.
    recipe : Recipe
        The encoding of the columns.
    layers : Layers
        The hidden layers of the default body.
    inverse : str or None
        How logits are computed from what a copy of the model returns; see `MaskedImages`.
    given : nn.Module or None
        The user's own body.
    model : object
        The user's model, from which a network for tables takes the split points of its trees.
    processes : ProcessGroup
        The processes that train together.
    """

    schema: Schema
    partition: Partition
    outputs: int
    recipe: Recipe
    layers: Layers
    inverse: Inverse = None
    given: nn.Module | None = None
    model: Any = None
    processes: ProcessGroup = field(default_factory=ProcessGroup)


@dataclass(frozen=True)
class SavedNetwork:
    """What a network in a file is built from.

    Attributes
    ----------
    config : dict
        What the file says about the network.
    schema : Schema
        The layout of the rows.
    partition : Partition
        The players.
    given : nn.Module, Backbone, UNet or None
        The network that the user passes because the file does not describe it.
    model : object
        The user's model.
    """

    config: dict[str, Any]
    schema: Schema
    partition: Partition
    given: Any = None
    model: Any = None


@dataclass(frozen=True)
class Parts:
    """The parts of an explainer network.

    Attributes
    ----------
    encoder : nn.Module
        Computes the inputs of the body.
    body : nn.Module
        Computes the values.
    leaves : TreeLeaves or None
        Computes the leaves of the model's trees, if the body takes them.
    """

    encoder: nn.Module
    body: nn.Module
    leaves: TreeLeaves | None = None


class NetworkBuilder(ABC):
    """Builds the networks for one kind of data. New weights are drawn from torch's global generator."""

    def explainer(self, x: Rows, plan: ExplainerPlan) -> ExplainerNetwork:
        """Return a new explainer network.

        Parameters
        ----------
        x : Tensor or Stream
            Encoded rows; the network is put on their device.
        plan : ExplainerPlan
            What the network is for.

        Raises
        ------
        InputError
            If the user's network does not fit the data.
        """
        parts = self.explainer_parts(x, plan)
        sizes = (plan.players, plan.outputs, plan.classes)
        network = ExplainerNetwork(parts.encoder, parts.body, *sizes, parts.leaves).to(x.device)
        _try_out(network, x[:2])
        return network

    @abstractmethod
    def explainer_parts(self, x: Rows, plan: ExplainerPlan) -> Parts:
        """Return the parts of a new explainer network; the arguments are those of `explainer`."""

    def saved_explainer(self, saved: SavedNetwork) -> ExplainerNetwork:
        """Return the explainer network of a file, with any weights.

        Raises
        ------
        FileFormatError
            If a network or a model of the user's is needed, or is not the one in the file.
        """
        parts, config = self.saved_explainer_parts(saved), saved.config
        sizes = (config["players"], config["outputs"], config["classes"])
        return ExplainerNetwork(parts.encoder, parts.body, *sizes, parts.leaves)

    @abstractmethod
    def saved_explainer_parts(self, saved: SavedNetwork) -> Parts:
        """Return the parts of the explainer network of a file."""

    @abstractmethod
    def surrogate(self, x: Rows, plan: SurrogatePlan) -> SurrogateNetwork:
        """Return a new network for a surrogate.

        Parameters
        ----------
        x : Tensor or Stream
            Encoded rows.
        plan : SurrogatePlan
            What the network is for.

        Raises
        ------
        InputError
            If a network is needed, and there is none.
        """

    @abstractmethod
    def saved_surrogate(self, saved: SavedNetwork) -> SurrogateNetwork:
        """Return the network of a surrogate in a file, with any weights.

        Raises
        ------
        FileFormatError
            If a network or a model of the user's is needed.
        """


def copy_of_given(given: nn.Module | None, argument: str) -> nn.Module:
    """Return a copy of a network that the file does not describe, and that the user must pass as ``argument``.

    Raises
    ------
    FileFormatError
        If the user did not pass it.
    """
    if given is None:
        raise FileFormatError(f"the file holds only the weights of a network of your own: pass it as {argument}=")
    return copy.deepcopy(given)


def _try_out(network: ExplainerNetwork, x: Tensor) -> None:
    """Check that a network accepts rows."""
    try:
        with torch.no_grad():
            network.eval()(x)
    except InputError:
        raise
    except Exception as error:  # A user's module may raise anything.
        inputs = tuple(network.encoder(x).shape[1:])
        outputs = network.players * network.outputs
        expected = f"(b, {', '.join(map(str, inputs))}) to (b, {outputs})"
        raise InputError(f"network must be a module from {expected}: {error}") from error
