"""Networks for images: what is read off which layer, and how maps become players' values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley import Backbone, Superpixels, UNet
from fastshapley.errors import InputError
from fastshapley.networks.image_maps import MapsOf, ToPlayers, resized
from fastshapley.networks.surrogate_networks import MaskedImages
from fastshapley.players import Partition

SIZE = 8
X = torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
STRIPES = np.arange(SIZE * SIZE).reshape(SIZE, SIZE) * 3 // 64 * 10  # three segments of different sizes


pytestmark = pytest.mark.usefixtures("seeded")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def players(grid: int | tuple[int, int] = 4, size: tuple[int, int] = (SIZE, SIZE)) -> Partition:
    return Superpixels(grid=grid).bind_image((3, *size))


def segments(segmentation: Any = STRIPES) -> Partition:
    return Superpixels(segmentation=segmentation).bind_image((3, *np.shape(segmentation)))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)) + self.short(x))


class Classifier(nn.Module):
    """Like a ResNet: maps of 8 x 8, 4 x 4 and 2 x 2, their mean, and a linear layer."""

    def __init__(self, outputs: int = 5, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 4, 3, 1, 1)
            self.layer1 = nn.Sequential(Block(4, 4, 1), Block(4, 4, 1))
            self.layer2 = nn.Sequential(Block(4, 6, 2), Block(6, 6, 1))
            self.layer3 = nn.Sequential(Block(6, 10, 2))
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(10, outputs)

    def maps(self, x: Tensor) -> dict[str, Tensor]:
        one = self.layer1(self.conv(x))
        two = self.layer2(one)
        return {"layer1": one, "layer2": two, "layer3": self.layer3(two)}

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.maps(x)["layer3"]).flatten(1))


def by_player(values: Tensor, count: int) -> Tensor:
    """What a network returns, (b, players * outputs), as (b, players, outputs)."""
    return values.unflatten(1, (count, -1))


def awaken(network: nn.Module) -> None:
    """Set to one what starts at zero, and keeps gradients from what is before it."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.ones_(parameter)


def gradients(network: nn.Module, x: Tensor) -> dict[str, float]:
    """The largest gradient of each parameter, of random weights of the values; NaN for none at all."""
    values = network(x)
    (values * normal(*values.shape)).sum().backward()
    found = network.named_parameters()
    return {name: float("nan") if p.grad is None else float(p.grad.abs().max()) for name, p in found}


def dead(network: nn.Module, x: Tensor) -> list[str]:
    """The parameters that no gradient reaches, beside rounding errors."""
    found = gradients(network, x)
    most = np.nanmax(list(found.values()))
    return [name for name, size in found.items() if not size > 1e-6 * most]


# maps to players


@pytest.mark.parametrize("maps", [(8, 8), (16, 8), (4, 2)])
def test_finer_maps_are_averaged_within_each_player_of_a_grid(maps: tuple[int, int]) -> None:
    made, grid = normal(2, 3, *maps), (4, 2)
    values = by_player(ToPlayers(players(grid))(made), 8)
    height, width = maps[0] // 4, maps[1] // 2
    for player in range(8):
        i, j = player // 2 * height, player % 2 * width
        by_hand = made[:, :, i : i + height, j : j + width].mean((2, 3))
        torch.testing.assert_close(values[:, player], by_hand)


def test_coarser_maps_are_interpolated_between_their_centres() -> None:
    """From 2 to 4: the ends as they are, and a quarter of the way in between."""
    weight = torch.tensor([[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]])
    made = normal(2, 3, 2, 2)
    by_hand = torch.einsum("ih,bohw,jw->bijo", weight, made, weight)
    torch.testing.assert_close(by_player(ToPlayers(players(4))(made), 16), by_hand.flatten(1, 2))


def test_a_segments_value_is_the_mean_of_its_pixels() -> None:
    made = normal(2, 3, SIZE, SIZE)
    values = by_player(ToPlayers(segments())(made), 3)
    for player, number in enumerate((0, 10, 20)):
        inside = torch.from_numpy(np.equal(STRIPES, number))
        torch.testing.assert_close(values[:, player], made[:, :, inside].mean(2))


def test_coarser_maps_are_brought_to_the_pixels_of_segments() -> None:
    made = normal(2, 3, 4, 4)
    pixels = functional.interpolate(made, (SIZE, SIZE), mode="bilinear")
    by_hand = torch.stack(
        [pixels[:, :, torch.from_numpy(np.equal(STRIPES, number))].mean(2) for number in (0, 10, 20)], 1
    )
    torch.testing.assert_close(by_player(ToPlayers(segments())(made), 3), by_hand)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 5), (8, 8), (16, 16), (2, 16)])
@pytest.mark.parametrize("partition", [players(4), players((2, 8)), players(1), segments()])
def test_a_map_of_one_number_gives_every_player_that_number(partition: Partition, size: tuple[int, int]) -> None:
    made = torch.tensor([2.0, -3.0]).reshape(1, 2, 1, 1).expand(1, 2, *size)
    values = by_player(ToPlayers(partition)(made), len(partition))
    torch.testing.assert_close(values, torch.tensor([2.0, -3.0]).expand(1, len(partition), 2))


def test_full_size_maps_give_a_grid_and_the_same_segments_the_same_values() -> None:
    grid = players(2)
    same = segments(np.reshape(grid.owner, (SIZE, SIZE)))
    made = normal(2, 3, SIZE, SIZE)
    torch.testing.assert_close(ToPlayers(grid)(made), ToPlayers(same)(made))


def test_a_users_module_may_return_maps_or_values() -> None:
    maps, values = nn.Conv2d(3, 2, 1), nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 32))
    partition = players(4)
    torch.testing.assert_close(MapsOf(maps, partition)(X), ToPlayers(partition)(maps(X)))
    assert torch.equal(MapsOf(values, partition)(X), values(X))


# a classifier's own layers


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
    ids=["one", "2", "2 x 8", "4", "every pixel", "three segments", "16 segments"],
)
def test_by_default_every_size_of_map_up_to_the_grids_is_read(partition: Partition, layers: list[str]) -> None:
    model = Classifier().eval()
    built = Backbone().build(model, partition, 5, X)
    assert built.config["backbone"] == layers
    assert [head.in_channels for head in built.heads] == [model.maps(X)[name].shape[1] for name in layers]
    assert built(X).shape == (len(X), len(partition) * 5)


@pytest.mark.parametrize("layers", ["layer2.0", ["layer3"], ("layer1", "layer2.1.norm"), ["layer3", "layer1"]])
def test_the_values_are_of_the_maps_at_the_named_layers(layers: str | Sequence[str]) -> None:
    """Each brought to an output's map by a 1x1 convolution, to the players, and added up."""
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
    """The classifier's weights at each place, relative to the mean class, a player's share each."""
    model = Classifier().eval()
    partition = players(grid)
    built = Backbone().build(model, partition, 5, X).eval()
    weight = model.fc.weight - model.fc.weight.mean(0)
    activation = torch.einsum("oc,bchw->bohw", weight, model.maps(X)["layer3"])
    by_hand = resized(activation, (grid, grid)).flatten(2).transpose(1, 2) / grid**2
    torch.testing.assert_close(by_player(built(X), grid**2), by_hand)


def test_the_map_of_several_layers_starts_as_that_of_the_coarsest_wherever_it_is_named() -> None:
    model = Classifier().eval()
    alone = Backbone("layer3").build(model, players(4), 5, X).eval()
    both = Backbone(["layer3", "layer1"]).build(model, players(4), 5, X).eval()
    torch.testing.assert_close(alone(X), both(X))


def test_a_frozen_model_is_trained_in_the_copy_and_stays_as_it_was() -> None:
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


def test_building_learns_nothing_from_the_images_it_is_tried_on() -> None:
    """Batch norms keep their running means, in the model and in the copy."""
    model = Classifier().train()
    built = Backbone().build(model, players(4), 5, X)
    assert built.training
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, built.cut.network.get_buffer(name))
        assert name.rpartition(".")[2] != "num_batches_tracked" or buffer == 0


def test_what_comes_after_the_last_layer_is_not_run_and_not_trained() -> None:
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


def test_gradients_reach_all_that_is_run() -> None:
    built = Backbone().build(Classifier(), players(8), 5, X)
    awaken(built)
    assert dead(built, X) == ["cut.network.fc.weight", "cut.network.fc.bias"]


def test_what_a_place_adds_depends_on_its_own_detail_and_on_the_whole() -> None:
    """Of two images that differ in one corner, every player's value differs, and those in the corner the most."""
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


def test_another_network_lends_its_layers() -> None:
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
        (Backbone("layer4"), Classifier(), r"no layer \['layer4'\]; there are \['conv', 'layer1', 'layer1.0'"),
        (Backbone(["layer3", "body"]), Classifier(), r"no layer \['body'\]; there are"),
        (Backbone([]), Classifier(), r"no layer \[\]; there are"),
        (Backbone("fc"), Classifier(), r"layer 'fc' does not make maps \(b, channels, height, width\)"),
        (Backbone(["layer1", "fc"]), Classifier(), "layer 'fc' does not make maps"),
        (Backbone("0"), nn.Sequential(Headless()), "layer '0' does not make maps"),
        (
            Backbone(),
            nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
            r"no layer that makes maps; pass network=UNet\(",
        ),
        (Backbone(), lambda x: x, r"needs a torch.nn.Module, and the model is a function; pass network=UNet\(\)"),
        (Backbone("layer1"), None, r"the model is a NoneType; .* or Backbone\(network=...\)"),
    ],
)
def test_backbones_that_cannot_be_built(backbone: Backbone, model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        backbone.build(model, players(4), 5, X)


# a network from scratch


@pytest.mark.parametrize(
    ("grid", "size"),
    [
        (1, (8, 8)),
        (2, (8, 8)),
        (4, (8, 8)),
        (8, (8, 8)),
        (1, (28, 28)),
        (2, (28, 28)),
        (4, (28, 28)),
        (7, (28, 28)),
        (14, (28, 28)),
        (14, (14, 14)),
        (7, (56, 56)),
        (14, (112, 112)),
        ((2, 8), (8, 8)),
        ((1, 14), (28, 28)),
        ((7, 2), (14, 28)),
        ((4, 14), (20, 28)),
        (3, (9, 15)),
    ],
    ids=str,
)
def test_a_unet_gives_each_player_a_value_and_every_parameter_a_gradient(
    grid: int | tuple[int, int], size: tuple[int, int]
) -> None:
    partition = players(grid, size)
    x = normal(2, 3, *size)
    network = UNet().build(None, partition, 2, x)
    assert network(x).shape == (2, 2 * len(partition))
    assert network(x[:1]).shape == (1, 2 * len(partition))
    assert dead(network, x) == []


@pytest.mark.parametrize(
    "partition", [segments(), segments(np.arange(64).reshape(8, 8)), segments(np.zeros((8, 8), int))]
)
def test_a_unet_takes_segments(partition: Partition) -> None:
    network = UNet().build(None, partition, 2, X)
    assert network(X).shape == (len(X), 2 * len(partition))
    assert dead(network, X) == []


# a surrogate's network


def test_a_body_sees_images_with_the_fill_where_players_are_hidden() -> None:
    partition = Superpixels(grid=2, fill=(1.0, 2.0, 3.0)).bind_image((3, SIZE, SIZE))
    network = MaskedImages(nn.Flatten(), partition, None)
    s = torch.rand(len(X), 5, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    seen = network(X, s).unflatten(2, X.shape[1:])
    for row in range(len(X)):
        for number in range(5):
            by_hand = X[row].clone()
            for player in range(4):
                if not s[row, number, player]:
                    i, j = player // 2 * 4, player % 2 * 4
                    by_hand[:, i : i + 4, j : j + 4] = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)
            assert torch.equal(seen[row, number], by_hand)
    assert network.inputs == "(b, 3, 8, 8)"


@pytest.mark.parametrize("outputs", [2, 5])
def test_the_logarithms_of_probabilities_give_back_the_models_own(outputs: int) -> None:
    model = nn.Sequential(Classifier(outputs), nn.Softmax(1)).eval()
    everyone = torch.ones(len(X), 1, 16, dtype=torch.bool)
    raw = MaskedImages(model, players(4), "log")(X, everyone)
    torch.testing.assert_close(raw[:, 0].softmax(1), model(X))


@pytest.mark.parametrize("shape", ["(n, 1)", "(n, 3)", "(n,)"])
def test_the_log_odds_of_probabilities_give_back_the_models_own(shape: str) -> None:
    last = nn.Flatten(0) if shape == "(n,)" else nn.Identity()
    model = nn.Sequential(Classifier(3 if shape == "(n, 3)" else 1), nn.Sigmoid(), last).eval()
    everyone = torch.ones(len(X), 1, 16, dtype=torch.bool)
    raw = MaskedImages(model, players(4), "logit")(X, everyone)
    torch.testing.assert_close(raw[:, 0].sigmoid(), model(X).reshape(len(X), -1))


def test_certain_probabilities_have_finite_logits_and_gradients() -> None:
    class Certain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.tensor([200.0, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.logits.softmax(0).expand(len(x), 2)

    for inverse in ("log", "logit"):
        body = Certain()
        raw = MaskedImages(body, players(1), inverse)(X, torch.ones(len(X), 1, 1, dtype=torch.bool))
        raw.sum().backward()
        assert raw.isfinite().all()
        assert body.logits.grad is not None
        assert body.logits.grad.isfinite().all()


# what is wrong as yet


class OneRelu(nn.Module):
    """As many are written: one module without weights, used after every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 6, 3, 2, 1)
        self.relu, self.fc = nn.ReLU(), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.conv2(self.relu(self.conv1(x)))).mean((2, 3)))


@pytest.mark.parametrize("grid", [2, 8])
def test_a_layer_that_is_used_twice_is_read_where_it_was_chosen(grid: int) -> None:
    """By default the coarsest maps are read, of 4 x 4, and on a grid of 8 x 8 those of 8 x 8 too."""
    built = Backbone().build(OneRelu(), players(grid), 5, X)
    sizes = [tuple(made.shape[1:]) for made in built.cut(X)]
    assert sizes == ([(4, 8, 8)] if grid == 8 else []) + [(6, 4, 4)]


def test_a_layer_that_the_network_does_not_run() -> None:
    model = Classifier()
    model.auxiliary = nn.Conv2d(4, 4, 1)
    with pytest.raises(InputError, match="auxiliary"):
        Backbone("auxiliary").build(model, players(4), 5, X)


def test_the_head_of_a_single_output_starts_as_the_class_activation_map_too() -> None:
    built = Backbone("layer3").build(Classifier(1), players(2), 1, X)
    weight = built.heads[0].weight
    assert isinstance(weight, Tensor)
    assert weight.any()


def test_layers_without_weights() -> None:
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    assert Backbone("0").build(model, players(4), 2, X)(X).shape == (len(X), 32)


def test_maps_that_are_finer_one_way_and_coarser_the_other_are_averaged_the_one_way() -> None:
    made = torch.zeros(1, 1, 4, 8)
    made[..., 0] = 1
    torch.testing.assert_close(ToPlayers(players((8, 1)))(made), torch.full((1, 8), 1 / 8))


@pytest.mark.parametrize(("width", "grid"), [(4, 2), (4, 1), (8, 1)])
def test_a_narrow_unet_explains_one_image(width: int, grid: int) -> None:
    assert UNet(width).build(None, players(grid), 2, X)(X[:1]).shape == (1, 2 * grid**2)


@pytest.mark.parametrize(("width", "grid"), [(4, 2), (4, 1), (8, 1)])
def test_every_parameter_of_a_narrow_unet_gets_a_gradient(width: int, grid: int) -> None:
    assert dead(UNet(width).build(None, players(grid), 2, X), X) == []
