"""Networks for images: a surrogate's, and explainers' from (b, channels, height, width) to players' values.

`Backbone` and `UNet` are what a user writes; built for a game's players and outputs, each becomes a module.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.data.players import Partition
from fastshapley.errors import InputError
from fastshapley.networks.mlp import Perceptron

Inverse = Literal["log", "logit"] | None
_TINY = 1e-7  # probabilities are kept this far from 0 before a logarithm


@dataclass(frozen=True)
class Backbone:
    """A classifier's own layers, and from there to one map for each output.

    layers: the names of the layers to read, as in ``dict(network.named_modules())``, one or several: the maps that
        are made of each are added up. One that is run several times is read the first time. By default the last
        layer of each size of map that is not finer than the grid, and of the coarsest one.
    width: units at each place of the coarsest maps, which see what lies there and the whole; from them the finer
        maps are gone through, with half as many each. With 0 there is a 1x1 convolution alone, as in the paper.
    network: where the layers and their first weights are from; by default the surrogate, if that is a copy of the
        model that is explained, and else the model.
    """

    layers: str | Sequence[str] | None = None
    width: int = 128
    network: nn.Module | None = None

    def build(self, model: Any, players: Partition, outputs: int, x: Tensor) -> BackboneMaps:
        network = model if self.network is None else self.network
        if not isinstance(network, nn.Module):
            raise InputError(
                f"network: a Backbone needs a torch.nn.Module, and the model is a {type(network).__name__}; pass "
                "network=UNet(), or Backbone(network=...)"
            )
        layers = [self.layers] if isinstance(self.layers, str) else self.layers
        layers = _coarse_layers(network, players, x) if layers is None else list(layers)
        return BackboneMaps(network, layers, self.width, players, outputs, x)


@dataclass(frozen=True)
class UNet:
    """A small network from scratch, with ``width`` channels at first: to coarse maps, and back up to the grid."""

    width: int = 32

    def build(self, model: Any, players: Partition, outputs: int, x: Tensor) -> UNetMaps:
        return UNetMaps(x.shape[1], outputs, players, self.width)


class ToPlayers(nn.Module):
    """Maps (b, outputs, h, w) of any size to values (b, players * outputs): what lies within each player."""

    def __init__(self, players: Partition) -> None:
        super().__init__()
        self.grid = players.grid
        self.size = players.shape[1:]
        if self.grid is None:
            owner = torch.tensor(players.owner)
            share = 1 / torch.bincount(owner).float()
            self.register_buffer("owner", owner, persistent=False)
            self.register_buffer("share", share, persistent=False)

    owner: Tensor
    share: Tensor

    def forward(self, maps: Tensor) -> Tensor:
        if self.grid is not None:
            return resized(maps, self.grid).flatten(2).transpose(1, 2).flatten(1)
        pixels = resized(maps, self.size).flatten(2)
        sums = pixels.new_zeros(*pixels.shape[:2], len(self.share)).index_add(2, self.owner, pixels)
        return (sums * self.share).transpose(1, 2).flatten(1)


class MaskedImages(nn.Module):
    """A surrogate's network: images (n, channels, height, width) and s (n, m, players) to (n, m, outputs).

    ``body`` sees each image with the hidden players filled. ``inverse`` makes logits of what it returns: the
    logarithms of probabilities that sum to one, the log-odds of others; None if it returns logits, or numbers.
    """

    def __init__(self, body: nn.Module, players: Partition, inverse: Inverse) -> None:
        super().__init__()
        self.body, self.players, self.inverse = quick(body), players, inverse
        self.inputs = f"(b, {', '.join(map(str, (len(players.fill), *players.shape[1:])))})"

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        shown = torch.where(self.players.mask(s), x[:, None], self.players.filling(x))
        raw: Tensor = self.body(shown.flatten(0, 1))
        if raw.ndim == 1:
            raw = raw[:, None]
        if self.inverse == "log":
            raw = raw.clamp(min=_TINY).log()
        elif self.inverse == "logit":
            raw = raw.logit(_TINY)
        return raw.unflatten(0, s.shape[:2])


class MapsOf(nn.Module):
    """A module of the user's, whose maps (b, outputs, h, w) are brought to the players; values are left alone."""

    def __init__(self, body: nn.Module, players: Partition) -> None:
        super().__init__()
        self.body, self.to_players = body, ToPlayers(players)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x)
        return self.to_players(made) if made.ndim == 4 else made


class Cut(nn.Module):
    """A network's maps at some of its layers, (b, channels, h, w) each; what comes after the last is not run."""

    def __init__(self, network: nn.Module, layers: Sequence[str]) -> None:
        super().__init__()
        network = quick(copy.deepcopy(network)).requires_grad_(True)  # it may be frozen
        self.network, self.layers = network, list(dict.fromkeys(layers))
        modules = dict(self.network.named_modules())
        unknown = [name for name in self.layers if name not in modules]
        if unknown or not self.layers:
            some = [name for name in modules if name and name.count(".") < 2][:40]
            raise InputError(f"network: there is no layer {unknown}; there are {some}")

    def forward(self, x: Tensor) -> list[Tensor]:
        found: dict[str, Tensor] = {}
        modules = dict(self.network.named_modules())

        def keep(name: str) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                found.setdefault(name, output)
                if len(found) == len(self.layers) and not torch.compiler.is_compiling():
                    raise _ReachedError  # a graph that is traced drops what is not used by itself

            return hook

        handles = [modules[name].register_forward_hook(keep(name)) for name in self.layers]
        try:
            self.network(x)
        except _ReachedError:
            pass
        finally:
            for handle in handles:
                handle.remove()
        if missing := [name for name in self.layers if name not in found]:
            raise InputError(f"network: the layers {missing} are there, but are not run")
        return [found[name] for name in self.layers]


class _ReachedError(Exception):
    """The last layer that is asked for has been run."""


class BackboneMaps(nn.Module):
    """See `Backbone`. The 1x1 convolution starts as the classifier's own last layer where it has such."""

    def __init__(
        self, network: nn.Module, layers: Sequence[str], width: int, players: Partition, outputs: int, x: Tensor
    ) -> None:
        """``x`` are some images, from which the sizes of the maps are found."""
        super().__init__()
        self.config = {"backbone": list(layers), "width": width}
        self.cut, self.to_players = Cut(network, layers), ToPlayers(players)
        with evaluating(self.cut):
            maps = self.cut(x[:1])
        for name, made in zip(layers, maps, strict=True):
            if not isinstance(made, Tensor) or made.ndim != 4:
                raise InputError(f"network: layer {name!r} does not make maps (b, channels, height, width)")
        self.order = sorted(range(len(maps)), key=lambda i: maps[i].shape[2] * maps[i].shape[3])  # coarsest first
        heads = [_pointwise(made.shape[1], outputs) for made in maps]
        for i, head in enumerate(heads):
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]
            if i != self.order[0]:
                nn.init.zeros_(head.weight)
            elif (weight := _classifier(network, maps[i].shape[1], outputs)) is not None:
                with torch.no_grad():
                    head.weight.copy_(weight[:, :, None, None] / len(players))
        self.heads = nn.ModuleList(heads)
        self.refinement = Refinement([maps[i] for i in self.order], players, outputs, width) if width else None
        for parameter in _unused(self.cut, x[:1]):
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.cut(x)
        values = torch.stack([self.to_players(head(made)) for head, made in zip(self.heads, maps, strict=True)])
        if self.refinement is None:
            return values.sum(0)
        return values.sum(0) + self.refinement([maps[i] for i in self.order])


class Refinement(nn.Module):
    """Maps from the coarsest to the finest to values, (b, players * outputs); it starts at zero.

    What a patch adds depends on its detail, and on all the others: the coarsest maps as a whole say what to make of
    each of their places, and these what to make of the finer ones that lie there. Half as many units do at each
    finer size.
    """

    def __init__(self, maps: Sequence[Tensor], players: Partition, outputs: int, width: int) -> None:
        super().__init__()
        self.to_players = ToPlayers(players)
        self.place = nn.Parameter(0.1 * torch.randn(1, width, *maps[0].shape[2:]))
        self.whole = nn.Sequential(nn.Flatten(), Perceptron(maps[0].numel(), 2 * width, 1, 2 * width, "silu"))
        widths = [max(1, width >> finer) for finer in range(len(maps))]
        self.from_coarser = nn.ModuleList(map(_pointwise, widths[:-1], widths[1:]))
        self.gates = nn.ModuleList(_pointwise(m.shape[1], 2 * w) for m, w in zip(maps, widths, strict=True))
        self.around = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in widths)
        self.heads = nn.ModuleList(_pointwise(w, outputs) for w in widths)
        for head in self.heads:
            for parameter in head.parameters():
                nn.init.zeros_(parameter)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        weight, shift = self.whole(maps[0])[:, :, None, None].chunk(2, dim=1)
        known = self.place * (1 + weight) + shift
        values = []
        for i, made in enumerate(maps):
            if i:
                known = functional.silu(self.from_coarser[i - 1](resized(known, tuple(made.shape[2:]))))
            weight, shift = self.gates[i](made).chunk(2, dim=1)
            known = known * (1 + weight) + shift
            known = known + self.around[i](functional.silu(known))
            values.append(self.to_players(self.heads[i](functional.silu(known))))
        return torch.stack(values).sum(0)


class UNetMaps(nn.Module):
    """See `UNet`."""

    def __init__(self, channels: int, outputs: int, players: Partition, width: int) -> None:
        super().__init__()
        self.config = {"channels": channels, "outputs": outputs, "width": width}
        self.to_players = ToPlayers(players)
        size = players.shape[1:]
        finest = players.grid or (math.isqrt(len(players)),) * 2
        # halve until the maps are as the players lie, then twice more, and come back up those two
        halvings = max(0, math.floor(math.log2(min(size[0] / finest[0], size[1] / finest[1]))))
        self.stem = nn.Sequential(_block(channels, width), *[_down(width, width) for _ in range(halvings)])
        self.levels = nn.ModuleList([_block(width, width)])
        for level in range(min(2, math.floor(math.log2(max(1, min(finest)))))):
            self.levels.append(_down(width << level, width << level + 1))
        self.ups = nn.ModuleList(
            _block((width << level) + (width << level + 1), width << level) for level in range(len(self.levels) - 1)
        )
        self.head = nn.Conv2d(width, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.stem(x)
        levels: list[Tensor] = []
        for level in self.levels:
            made = level(made)
            levels.append(made)
        for up, finer in zip(reversed(self.ups), reversed(levels[:-1]), strict=True):
            made = up(torch.cat([finer, resized(made, tuple(finer.shape[2:]))], dim=1))
        result: Tensor = self.to_players(self.head(made))
        return result


def resized(maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (b, c, h, w) of another size: averaged where it is smaller, interpolated where it is larger."""
    height, width = size
    if maps.shape[2:] == (height, width):
        return maps
    smaller = (min(height, maps.shape[2]), min(width, maps.shape[3]))
    if maps.shape[2:] != smaller:
        maps = functional.adaptive_avg_pool2d(maps, smaller)
    if smaller == (height, width):
        return maps
    return functional.interpolate(maps, (height, width), mode="bilinear", align_corners=False)


def quick(network: nn.Module) -> nn.Module:
    """The network with its weights laid out channels last: up to 1.8 times as fast on a processor."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluate inside, without gradients, and leave each part in the mode it was in."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _pointwise(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1)


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    groups = math.gcd(outputs, max(1, outputs // 8))  # of 8 channels, so that a map of one place is no constant
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1),
        nn.GroupNorm(groups, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1),
        nn.GroupNorm(groups, outputs),
        nn.SiLU(),
    )


def _down(inputs: int, outputs: int) -> nn.Sequential:
    return _block(inputs, outputs, stride=2)


def made_maps(network: nn.Module, x: Tensor) -> list[tuple[str, tuple[int, int]]]:
    """The layers that make maps, in the order in which they are done, with the maps' sizes."""
    made: list[tuple[str, tuple[int, int]]] = []

    def hook(name: str) -> Any:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
                made.append((name, (output.shape[2], output.shape[3])))

        return note

    handles = [module.register_forward_hook(hook(name)) for name, module in network.named_modules() if name]
    try:
        with evaluating(network):
            network(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    return made


def _coarse_layers(network: nn.Module, players: Partition, x: Tensor) -> list[str]:
    """The last layer of the coarsest maps, and of each size above that which is not finer than the grid."""
    made = made_maps(network, x)
    often = Counter(name for name, _ in made)
    last = {size: name for name, size in made if often[name] == 1}  # which of several times would be a guess
    if not last:
        raise InputError(
            "network: the model has no layer that makes maps; pass network=UNet() or a module of your own"
        )
    coarsest = min(last, key=lambda size: size[0] * size[1])
    finest = players.grid or (math.isqrt(len(players)),) * 2
    return [last[size] for size in last if size == coarsest or (size[0] <= finest[0] and size[1] <= finest[1])]


def _classifier(network: nn.Module, channels: int, outputs: int) -> Tensor | None:
    """The weights (outputs, channels) of a last linear layer on the mean of maps with so many channels.

    They are relative to the mean over classes; of two classes, one output is the second.
    """
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not linear or linear[-1].in_features != channels:
        return None
    weight = linear[-1].weight.detach()
    centred = weight - weight.mean(0) if len(weight) > 1 else weight
    if len(centred) == 2 and outputs == 1:
        return centred[1:]
    return centred if len(centred) == outputs else None


def _unused(cut: Cut, x: Tensor) -> list[nn.Parameter]:
    """The parameters that the maps do not depend on."""
    parameters = list(cut.parameters())
    with evaluating(cut), torch.enable_grad():
        total = torch.stack([made.sum() for made in cut(x)]).sum()
        if not total.requires_grad:
            return parameters
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [p for p, gradient in zip(parameters, gradients, strict=True) if gradient is None]
