"""How the networks for images are built."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from fastshapley.data.stream import Rows
from fastshapley.errors import FileFormatError, InputError
from fastshapley.networks.backbone import Backbone
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.image_maps import MapsOf
from fastshapley.networks.network_builder import (
    ExplainerPlan,
    NetworkBuilder,
    Parts,
    SavedNetwork,
    SurrogatePlan,
    copy_of_given,
)
from fastshapley.networks.surrogate_networks import MaskedImages
from fastshapley.networks.unet import UNet, UNetMaps


class ImageBuilder(NetworkBuilder):
    """Layers of the user's model, a U-Net, or a module of the user's own."""

    def explainer_parts(self, x: Rows, plan: ExplainerPlan) -> Parts:
        """Return no encoder, and the user's module or the layers of a model; by default the user's model."""
        given = plan.given
        if isinstance(given, nn.Module):
            return Parts(nn.Identity(), MapsOf(copy.deepcopy(given), plan.partition))
        design = given or (Backbone() if isinstance(plan.model, nn.Module) else UNet())
        each = plan.body_outputs // plan.players
        return Parts(nn.Identity(), design.build(plan.model, plan.partition, each, x[:2]))

    def saved_explainer_parts(self, saved: SavedNetwork) -> Parts:
        """Return no encoder, and the body of a file."""
        layers, players = saved.config["layers"], saved.partition
        if layers is None:
            return Parts(nn.Identity(), MapsOf(copy_of_given(saved.given, "network"), players))
        if "backbone" in layers:
            return Parts(nn.Identity(), _saved_backbone(saved))
        return Parts(nn.Identity(), UNetMaps(**layers, players=players))

    def surrogate(self, x: Rows, plan: SurrogatePlan) -> MaskedImages:
        """Return a network with a copy of the user's network, by default of the model."""
        body = copy.deepcopy(plan.given)
        if body is None and not isinstance(plan.model, nn.Module):
            raise InputError(
                f"model is a {type(plan.model).__name__}, which cannot be trained further: pass a network that "
                "imitates it, value_function=Surrogate(network)"
            )
        body = (copy.deepcopy(plan.model) if body is None else body).requires_grad_(True)
        return MaskedImages(body, plan.partition, plan.inverse)

    def saved_surrogate(self, saved: SavedNetwork) -> MaskedImages:
        """Return a network with the layers of the user's network or model."""
        body = saved.model if saved.given is None else saved.given
        if not isinstance(body, nn.Module):
            raise FileFormatError(
                "the file holds the surrogate's weights, but its layers are your model's: pass that as model=, or "
                "as value_function= if the surrogate was another network"
            )
        return MaskedImages(copy.deepcopy(body), saved.partition, saved.config["inverse"])


def _saved_backbone(saved: SavedNetwork) -> nn.Module:
    config, layers = saved.config, saved.config["layers"]
    given = saved.given if isinstance(saved.given, Backbone) else Backbone()
    if not isinstance(given.network or saved.model, nn.Module):
        raise FileFormatError("the explainer is made of your model's own layers: pass the model as model=")
    backbone = replace(given, layers=layers["backbone"], width=layers["width"])
    each = ExplainerNetwork.body_outputs(config["players"], config["outputs"], config["classes"])
    image = torch.zeros(1, len(saved.partition.fill), *saved.partition.shape[1:])
    try:
        return backbone.build(saved.model, saved.partition, each // config["players"], image)
    except Exception as error:  # Another network may raise anything.
        raise FileFormatError(f"the network is not the one that the file has weights of: {error}") from error
