"""Tests of explainer networks that are built from the layers of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from image_networks import (
    SIZE,
    Classifier,
    X,
    awaken,
    by_player,
    dead,
    gradients,
    players,
    segments,
)
from torch import Tensor, nn

from fastshapley import Backbone
from fastshapley.errors import InputError
from fastshapley.networks.image_maps import ToPlayers, resized
from fastshapley.players import Partition

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize(
    ("partition", "layers"),
    [
        (players(1), ["layer3"]),
        (players(2), ["layer3"]),
        (players((2, 8)), ["layer3"]),
        (players(4), ["layer2", "layer3"]),
        (players(8), ["layer1", "layer2", "layer3"]),
        (segments(), ["layer3"]),
        (segments(np.reshape(players(4).owner, (SIZE, SIZE))), ["layer2", "layer3"]),
    ],
    ids=["one player", "2", "2 x 8", "4", "every pixel", "three segments", "16 segments"],
)
def test_by_default_the_maps_of_every_size_up_to_the_grid_are_used(partition: Partition, layers: list[str]) -> None:
    model = Classifier().eval()
    built = Backbone().build(model, partition, 5, X)
    assert built.config["backbone"] == layers
    assert [head.in_channels for head in built.heads] == [model.maps(X)[name].shape[1] for name in layers]
    assert built(X).shape == (len(X), len(partition) * 5)


@pytest.mark.parametrize("layers", ["layer2.0", ["layer3"], ("layer1", "layer2.1.norm"), ["layer3", "layer1"]])
def test_values_are_computed_from_the_maps_of_the_named_layers(layers: str | Sequence[str]) -> None:
    """Each map goes through a 1x1 convolution and is averaged per player; the results are added."""
    model = Classifier().eval()
    partition = players(4)
    built = Backbone(layers).build(model, partition, 2, X).eval()
    names = [layers] if isinstance(layers, str) else list(layers)
    seen: dict[str, Tensor] = {}
    for name in names:
        part = model.get_submodule(name)
        part.register_forward_hook(lambda _, i, output, name=name: seen.update({name: output.clone()}))
    model(X)
    to_players = ToPlayers(partition)
    by_hand = torch.stack([to_players(head(seen[name])) for name, head in zip(names, built.heads, strict=True)])
    torch.testing.assert_close(built(X), by_hand.sum(0))


@pytest.mark.parametrize("grid", [1, 2, 4])
def test_the_head_starts_as_the_class_activation_map(grid: int) -> None:
    """It applies the classifier weights, relative to the mean class, and divides by the number of players."""
    model = Classifier().eval()
    partition = players(grid)
    built = Backbone().build(model, partition, 5, X).eval()
    weight = model.fc.weight - model.fc.weight.mean(0)
    activation = torch.einsum("oc,bchw->bohw", weight, model.maps(X)["layer3"])
    by_hand = resized(activation, (grid, grid)).flatten(2).transpose(1, 2) / grid**2
    torch.testing.assert_close(by_player(built(X), grid**2), by_hand)


def test_with_several_layers_the_initial_values_are_those_of_the_coarsest() -> None:
    model = Classifier().eval()
    alone = Backbone("layer3").build(model, players(4), 5, X).eval()
    both = Backbone(["layer3", "layer1"]).build(model, players(4), 5, X).eval()
    torch.testing.assert_close(alone(X), both(X))


def test_a_frozen_model_is_copied_for_training_and_does_not_change() -> None:
    model = Classifier().requires_grad_(False)
    model.layer2.eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    built = Backbone("layer2").build(model, players(4), 5, X)
    awaken(built)
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
    before = {name: p.detach().clone() for name, p in built.named_parameters() if p.requires_grad}
    built.train()
    built(X).square().sum().backward()
    optimizer.step()
    moved = {name for name, p in built.named_parameters() if name in before and not torch.equal(before[name], p)}
    assert moved == set(before)
    assert {name.split(".")[2] for name in before if name.startswith("cut")} == {"conv", "layer1", "layer2"}
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    assert not model._forward_hooks
    assert not any(module._forward_hooks for module in model.modules())


def test_building_does_not_change_batch_norm_statistics() -> None:
    """This holds for the model and for the copy."""
    model = Classifier().train()
    built = Backbone().build(model, players(4), 5, X)
    assert built.training
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, built.cut.network.get_buffer(name))
        assert name.rpartition(".")[2] != "num_batches_tracked" or buffer == 0


def test_layers_after_the_last_named_layer_are_not_run_or_trained() -> None:
    built = Backbone(["layer1", "layer2.0"]).build(Classifier(), players(4), 5, X)
    calls = dict.fromkeys(("conv", "layer1", "layer2.0", "layer2.1", "layer3", "pool", "fc"), 0)

    def count(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls[name] += 1

        return hook

    for name in calls:
        built.cut.network.get_submodule(name).register_forward_hook(count(name))
    found = gradients(built, X)
    assert calls == {**dict.fromkeys(calls, 0), "conv": 1, "layer1": 1, "layer2.0": 1}
    after = [
        name for name in found if name.startswith(("cut.network.layer2.1", "cut.network.layer3", "cut.network.fc"))
    ]
    assert after
    for name, parameter in built.named_parameters():
        assert parameter.requires_grad == (name not in after)
        assert (parameter.grad is None) == (name in after)


def test_gradients_reach_every_layer_that_is_run() -> None:
    built = Backbone().build(Classifier(), players(8), 5, X)
    awaken(built)
    assert dead(built, X) == ["cut.network.fc.weight", "cut.network.fc.bias"]


def test_the_value_of_a_player_depends_on_its_pixels_and_on_the_whole_image() -> None:
    """A change in one corner changes the values of all players, and those in the corner the most."""
    built = Backbone(["layer1", "layer2", "layer3"], width=8).build(Classifier(), players(8), 5, X).eval()
    awaken(built)
    with torch.no_grad():
        for parameter in built.heads.parameters():
            parameter.zero_()
        other = X.clone()
        other[:, :, :2, :2] = 1 - other[:, :, :2, :2]
        moved = by_player(built(other) - built(X), 64).abs().mean((0, 2)).reshape(8, 8)
    assert (moved > 0).all()
    assert moved[:2, :2].mean() > 2 * moved[4:, 4:].mean()


def test_the_layers_of_another_network_can_be_used() -> None:
    other = Classifier(outputs=7, seed=1).eval()
    built = Backbone("layer3", network=other).build(lambda x: x, players(2), 3, X).eval()
    torch.testing.assert_close(built.cut(X)[0], other.maps(X)["layer3"])
    assert built(X).shape == (len(X), 12)


class Headless(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("backbone", "model", "message"),
    [
        (Backbone("layer4"), Classifier(), r"no layer \['layer4'\]; the layers are \['conv', 'layer1', 'layer1.0'"),
        (Backbone(["layer3", "body"]), Classifier(), r"no layer \['body'\]; the layers are"),
        (Backbone([]), Classifier(), r"no layer \[\]; the layers are"),
        (Backbone("fc"), Classifier(), r"layer 'fc' does not make maps \(b, channels, height, width\)"),
        (Backbone(["layer1", "fc"]), Classifier(), "layer 'fc' does not make maps"),
        (Backbone("0"), nn.Sequential(Headless()), "layer '0' does not make maps"),
        (
            Backbone(),
            nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
            r"no layer that makes maps; pass network=UNet\(",
        ),
        (Backbone(), lambda x: x, r"needs a torch.nn.Module, but the model is a function; pass network=UNet\(\)"),
        (Backbone("layer1"), None, r"the model is a NoneType; .* or Backbone\(network=...\)"),
    ],
)
def test_a_backbone_that_cannot_be_built_is_refused(backbone: Backbone, model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        backbone.build(model, players(4), 5, X)


class OneRelu(nn.Module):
    """A common pattern: one ReLU module is used after every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.relu, self.fc = nn.ReLU(), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.conv2(self.relu(self.conv1(x)))).mean((2, 3)))


@pytest.mark.parametrize("grid", [2, 8])
def test_a_layer_that_is_called_twice_gives_the_map_that_was_chosen(grid: int) -> None:
    """By default the coarsest maps (4 x 4) are used, and for a grid of 8 x 8 also the maps of 8 x 8."""
    built = Backbone().build(OneRelu(), players(grid), 5, X)
    sizes = [tuple(made.shape[1:]) for made in built.cut(X)]
    assert sizes == ([(4, 8, 8)] if grid == 8 else []) + [(6, 4, 4)]


def test_a_layer_that_the_network_does_not_run_is_refused() -> None:
    model = Classifier()
    model.auxiliary = nn.Conv2d(4, 4, 1)
    with pytest.raises(InputError, match="auxiliary"):
        Backbone("auxiliary").build(model, players(4), 5, X)


def test_the_head_of_a_single_output_does_not_start_at_zero() -> None:
    built = Backbone("layer3").build(Classifier(1), players(2), 1, X)
    weight = built.heads[0].weight
    assert isinstance(weight, Tensor)
    assert weight.any()


def test_a_network_without_weights_can_be_a_backbone() -> None:
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    assert Backbone("0").build(model, players(4), 2, X)(X).shape == (len(X), 32)
