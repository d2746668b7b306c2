"""An explainer of images that is made of a classifier's own layers.

A user writes `Backbone`. Built for the players and outputs of a game, it becomes `BackboneMaps`.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.data.players import Partition
from fastshapley.errors import InputError
from fastshapley.networks.image_maps import ToPlayers, channels_last, evaluating, made_maps, resized
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.weights import Configured


@dataclass(frozen=True)
class Backbone:
    """An explainer network for images that is made of a classifier's own layers.

    Parameters
    ----------
    layers : str or sequence of str, optional
        The names of the layers that are read, as in ``dict(network.named_modules())``. The maps from several layers
        are added up. A layer that runs several times is read the first time. By default, these are the last layer
        with the coarsest maps and the last layer of each size that is not finer than the grid.
    width : int
        The number of units at each place of the coarsest maps. They see that place and the whole image. Each finer
        size has half as many. With 0 there is only a 1x1 convolution, as in the paper.
    network : nn.Module, optional
        Where the layers and their initial weights come from. By default this is the surrogate if it is a copy of
        the explained model, and the model otherwise.
    """

    layers: str | Sequence[str] | None = None
    width: int = 128
    network: nn.Module | None = None

    def build(self, model: Any, players: Partition, outputs: int, x: Tensor) -> BackboneMaps:
        """Return the module for a game.

        Parameters
        ----------
        model : object
            The user's model, or the surrogate of it.
        players : Partition
            The players of the game.
        outputs : int
            The number of values per player.
        x : Tensor
            Some images.

        Raises
        ------
        InputError
            If there is no network, or it does not have the layers.
        """
        network = model if self.network is None else self.network
        if not isinstance(network, nn.Module):
            raise InputError(
                f"network: a Backbone needs a torch.nn.Module, but the model is a {type(network).__name__}; pass "
                "network=UNet(), or Backbone(network=...)"
            )
        layers = [self.layers] if isinstance(self.layers, str) else self.layers
        layers = _coarse_layers(network, players, x) if layers is None else list(layers)
        return BackboneMaps(network, layers, self.width, players, outputs, x)


class BackboneMaps(nn.Module, Configured):
    """The module of a `Backbone`: images to values (b, players * outputs).

    The 1x1 convolution starts as the classifier's own last layer if that is a linear layer on the coarsest maps.

    Parameters
    ----------
    network : nn.Module
        The network that the layers are from.
    layers, width
        As for `Backbone`.
    players, outputs, x
        As for `Backbone.build`; the sizes of the maps are found with the first image of ``x``.
    """

    def __init__(
        self, network: nn.Module, layers: Sequence[str], width: int, players: Partition, outputs: int, x: Tensor
    ) -> None:
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
        """Return values (b, players * outputs) of images."""
        maps = self.cut(x)
        values = torch.stack([self.to_players(head(made)) for head, made in zip(self.heads, maps, strict=True)])
        if self.refinement is None:
            return values.sum(0)
        return values.sum(0) + self.refinement([maps[i] for i in self.order])


class Refinement(nn.Module):
    """Maps, from the coarsest to the finest, to values (b, players * outputs); it starts at zero.

    What a patch adds depends on its detail and on all other patches. The coarsest maps as a whole modulate each of
    their places, and each place modulates the finer places within it. Each finer size has half as many units.

    Parameters
    ----------
    maps : sequence of Tensor
        The maps of one image, from which their sizes are found.
    players : Partition
        The players.
    outputs : int
        The number of values per player.
    width : int
        The number of units at each place of the coarsest maps.
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
        """Return values (b, players * outputs)."""
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


class Cut(nn.Module):
    """The maps (b, channels, h, w) of some layers of a network; later layers are not run.

    Parameters
    ----------
    network : nn.Module
        The network, which is copied.
    layers : sequence of str
        The names of the layers.

    Raises
    ------
    InputError
        If the network does not have these layers.
    """

    def __init__(self, network: nn.Module, layers: Sequence[str]) -> None:
        super().__init__()
        network = channels_last(copy.deepcopy(network)).requires_grad_(True)  # The user may have frozen it.
        self.network, self.layers = network, list(dict.fromkeys(layers))
        modules = dict(self.network.named_modules())
        unknown = [name for name in self.layers if name not in modules]
        if unknown or not self.layers:
            some = [name for name in modules if name and name.count(".") < 2][:40]
            raise InputError(f"network: there is no layer {unknown}; the layers are {some}")

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the maps of images, in the order of the layers."""
        found: dict[str, Tensor] = {}
        modules = dict(self.network.named_modules())

        def keep(name: str) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                found.setdefault(name, output)
                if len(found) == len(self.layers) and not torch.compiler.is_compiling():
                    raise _ReachedError  # A traced graph drops unused layers by itself.

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
            raise InputError(f"network: the layers {missing} exist, but the network does not run them")
        return [found[name] for name in self.layers]


class _ReachedError(Exception):
    """Raised when all layers that are read have been run."""


def _pointwise(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1)


def _coarse_layers(network: nn.Module, players: Partition, x: Tensor) -> list[str]:
    """Return the last layer with the coarsest maps, and that of each other size that is not finer than the grid."""
    made = made_maps(network, x)
    often = Counter(name for name, _ in made)
    last = {size: name for name, size in made if often[name] == 1}  # Layers that run several times are ambiguous.
    if not last:
        raise InputError(
            "network: the model has no layer that makes maps; pass network=UNet() or a module of your own"
        )
    coarsest = min(last, key=lambda size: size[0] * size[1])
    finest = players.grid or (math.isqrt(len(players)),) * 2
    return [last[size] for size in last if size == coarsest or (size[0] <= finest[0] and size[1] <= finest[1])]


def _classifier(network: nn.Module, channels: int, outputs: int) -> Tensor | None:
    """Return the weights (outputs, channels) of a last linear layer on the mean of maps; None if there is none.

    The weights are relative to the mean over classes. If there are two classes and one output, it is the second.
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
    """Return the parameters that the maps do not depend on."""
    parameters = list(cut.parameters())
    with evaluating(cut), torch.enable_grad():
        total = torch.stack([made.sum() for made in cut(x)]).sum()
        if not total.requires_grad:
            return parameters
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [p for p, gradient in zip(parameters, gradients, strict=True) if gradient is None]
