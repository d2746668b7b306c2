"""Tests of building networks for images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import QUICK
from torch import nn

from fastshapley.data.image_schema import ImageSchema
from fastshapley.errors import FileFormatError, InputError
from fastshapley.networks import Backbone, UNet
from fastshapley.networks.backbone import BackboneMaps
from fastshapley.networks.image_builder import ImageBuilder
from fastshapley.networks.image_maps import MapsOf
from fastshapley.networks.network_builder import ExplainerPlan, SavedNetwork, SurrogatePlan
from fastshapley.networks.unet import UNetMaps
from fastshapley.players import Superpixels

pytestmark = pytest.mark.usefixtures("seeded")

X = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
SCHEMA = ImageSchema.of(X)
PLAYERS = Superpixels(grid=2).bind_image(SCHEMA.shape)


def classifier() -> nn.Module:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=4, padding=1), nn.ReLU(), pooled)


def plan(given: Any, model: Any) -> ExplainerPlan:
    return ExplainerPlan(SCHEMA, PLAYERS, 4, 2, QUICK, given=given, model=model)


@pytest.mark.parametrize(
    ("given", "model", "body"),
    [
        (None, classifier, BackboneMaps),
        (None, lambda: "no module", UNetMaps),
        (UNet(4), classifier, UNetMaps),
        (nn.Conv2d(1, 2, 3), classifier, MapsOf),
    ],
    ids=["backbone", "model is not a module", "unet", "custom module"],
)
def test_an_explainer_network_is_rebuilt_from_its_configuration(given: Any, model: Any, body: type) -> None:
    model = model()
    network = ImageBuilder().explainer(X, plan(given, model))
    assert type(network.body) is body
    passed = given if isinstance(given, nn.Module) else None
    again = ImageBuilder().saved_explainer(SavedNetwork(network.config, SCHEMA, PLAYERS, passed, model))
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.eval()(X), network(X))


@pytest.mark.parametrize(
    ("given", "message"),
    [(None, "pass the model as model="), (nn.Conv2d(1, 2, 3), "pass it as network=")],
    ids=["backbone", "custom module"],
)
def test_user_layers_must_be_passed_again(given: Any, message: str) -> None:
    network = ImageBuilder().explainer(X, plan(given, classifier()))
    with pytest.raises(FileFormatError, match=message):
        ImageBuilder().saved_explainer(SavedNetwork(network.config, SCHEMA, PLAYERS))


def test_a_model_that_differs_from_the_one_in_the_file_is_refused() -> None:
    network = ImageBuilder().explainer(X, plan(Backbone(["0"]), classifier()))
    with pytest.raises(FileFormatError, match="not the one that the file has weights of"):
        ImageBuilder().saved_explainer(SavedNetwork(network.config, SCHEMA, PLAYERS, None, nn.Flatten()))


def test_a_surrogate_network_starts_as_a_copy_of_the_model() -> None:
    model = classifier().requires_grad_(False)
    network = ImageBuilder().surrogate(
        X, SurrogatePlan(SCHEMA, PLAYERS, 2, QUICK, QUICK.surrogate_layers, model=model)
    )
    torch.testing.assert_close(network.known(X), model(X))
    assert network.body is not model
    assert all(parameter.requires_grad for parameter in network.body.parameters())
    again = ImageBuilder().saved_surrogate(SavedNetwork(network.config, SCHEMA, PLAYERS, None, model))
    torch.testing.assert_close(again.known(X), model(X))


def test_a_surrogate_network_needs_a_module() -> None:
    plan = SurrogatePlan(SCHEMA, PLAYERS, 2, QUICK, QUICK.surrogate_layers, model="function")
    with pytest.raises(InputError, match="model is a str, which cannot be trained further"):
        ImageBuilder().surrogate(X, plan)
    with pytest.raises(FileFormatError, match="its layers are your model's"):
        ImageBuilder().saved_surrogate(SavedNetwork({"inverse": None}, SCHEMA, PLAYERS))
