"""Explanations by gradients, computed by captum and brought to the players.

Each function explains the outputs of ``network`` as they are; it is best given a classifier that returns logits.
The result is (n, rows, columns, K) on a grid and (n, players, K) for a segmentation; with ``classes``, an array
(n,), only that class of each image is explained, and the last axis is left out. Every class takes passes of its
own: all of them cost K times as much as one.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.baselines.inclusion_curves import bind_images, class_numbers
from fastshapley.data.players import Partition, Superpixels
from fastshapley.errors import InputError
from fastshapley.explanation import maps
from fastshapley.networks.image_maps import ToPlayers, evaluating, made_maps
from fastshapley.support.optional import require
from fastshapley.training.run import Run, seed_of

logger = logging.getLogger(__name__)

_GAP = 0.05  # of what DeepSHAP's values should sum to, above which it is said that they do not
_NEAR = 1e-6  # numbers that lie closer have no slope to speak of between them
_ACTIVATIONS = (  # that act on each number alone
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.Mish,
    nn.PReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)


def grad_cam(
    network: nn.Module,
    X: Any,
    players: Partition | Superpixels,
    *,
    layer: str | None = None,
    classes: ArrayLike | None = None,
    batch_size: int = 64,
) -> NDArray[np.float64]:
    """GradCAM (Selvaraju et al., 2017): a layer's maps, weighted by the mean gradients of the class, above zero.

    ``layer`` is its name in ``dict(network.named_modules())``; by default the last layer that makes maps. What it
    makes is interpolated, or averaged, to the players.
    """
    captum = require("captum.attr", "images")
    task = _Task.of(network, X, players, classes)
    modules = dict(network.named_modules())
    if layer is None:
        made = made_maps(network, task.x)
        if not made:
            raise InputError("network has no layer that makes maps, which GradCAM needs")
        layer = made[-1][0]
    if layer not in modules:
        raise InputError(f"layer is {layer!r}, which the network does not have; there are {list(modules)[1:41]}")
    method = captum.LayerGradCam(task.network, modules[layer])
    to_players = ToPlayers(task.players).to(task.x.device)

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        coarse = method.attribute(x, target=target, relu_attributions=True)
        if not isinstance(coarse, Tensor) or coarse.ndim != 4:
            raise InputError(f"layer {layer!r} does not make maps (b, channels, height, width)")
        values: Tensor = to_players(coarse)
        return values

    return task.explain(attribute, batch_size)


def integrated_gradients(
    network: nn.Module,
    X: Any,
    players: Partition | Superpixels,
    *,
    steps: int = 50,
    classes: ArrayLike | None = None,
    batch_size: int = 64,
) -> NDArray[np.float64]:
    """Integrated gradients (Sundararajan et al., 2017) from the image that the players' fill makes.

    Values are sums over a player's pixels and channels: all together they sum to the class's output for the image
    minus that for the filled one, up to the error of ``steps`` points on the path.
    """
    captum = require("captum.attr", "images")
    task = _Task.of(network, X, players, classes)
    method = captum.IntegratedGradients(task.network)
    fill = task.players.filling(task.x)

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        baseline = fill.expand_as(x)
        pixels = method.attribute(x, baseline, target=target, n_steps=steps, internal_batch_size=len(x))
        return _within(pixels, task.players)

    return task.explain(attribute, batch_size)


def smooth_grad(
    network: nn.Module,
    X: Any,
    players: Partition | Superpixels,
    *,
    samples: int = 50,
    noise: float = 0.15,
    absolute: bool = True,
    classes: ArrayLike | None = None,
    batch_size: int = 64,
    random_state: int | None = 0,
) -> NDArray[np.float64]:
    """SmoothGrad (Smilkov et al., 2017): the mean gradient at noisy copies of an image, summed within players.

    noise: the standard deviation, as a share of the range of the image's pixels.
    absolute: sum the sizes of the mean gradients, as tf-explain does, which the FastSHAP paper used. The sign of a
        gradient says whether a brighter pixel would help the class, not whether the pixel as it is does, and
        neighbours' signs cancel in a sum. With False the gradients are summed as they are.
    """
    captum = require("captum.attr", "images")
    task = _Task.of(network, X, players, classes)

    def scaled(x: Tensor, width: Tensor) -> Tensor:
        outputs: Tensor = task.network(x * width)
        return outputs

    method = captum.NoiseTunnel(captum.Saliency(scaled))

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        # captum has one deviation for all images: the images are scaled to it
        width = (x.amax((1, 2, 3), keepdim=True) - x.amin((1, 2, 3), keepdim=True)).clamp(min=1e-12)
        pixels = method.attribute(
            x / width,
            nt_samples=samples,
            nt_samples_batch_size=1,
            stdevs=float(noise),
            target=target,
            additional_forward_args=width,
            abs=False,
        )
        return _within((pixels.abs() if absolute else pixels) / width, task.players)

    with Run(seed_of(random_state)).isolated("smooth grad"):
        return task.explain(attribute, batch_size)


def deep_shap(
    network: nn.Module,
    X: Any,
    players: Partition | Superpixels,
    background: Any,
    *,
    classes: ArrayLike | None = None,
    batch_size: int = 64,
) -> NDArray[np.float64]:
    """DeepSHAP (Lundberg and Lee, 2017): DeepLift's rescale rule, averaged over ``background``, some images.

    Values are sums over a player's pixels and channels: all together they sum to the class's output for the image
    minus its mean over the background. For that each activation of the network must be a module; where the sums are
    off, a warning is logged.
    """
    captum = require("captum.attr", "images")
    task = _Task.of(network, X, players, classes)
    others, _ = bind_images(background, task.players)
    others = others.to(task.x.device)
    paired = replace(task, network=_rescalable(task.network))
    method = captum.DeepLiftShap(paired.network)
    several = others if len(others) > 1 else others.expand(2, -1, -1, -1)  # captum does not take a single one

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Setting forward, backward hooks")
            return _within(method.attribute(x, several, target=target), task.players)

    values = paired.explain(attribute, max(1, batch_size // len(several)))
    _check_sums(values, task, others, batch_size)
    return values


@dataclass(frozen=True)
class _Task:
    """What is explained: a network's outputs, images, their players, and the classes of each, (n, classes)."""

    network: nn.Module
    x: Tensor
    players: Partition
    targets: Tensor
    chosen: bool

    @classmethod
    def of(cls, network: nn.Module, X: Any, players: Partition | Superpixels, classes: ArrayLike | None) -> _Task:
        if not isinstance(network, nn.Module):
            raise InputError(f"network is a {type(network).__name__}: gradients need a torch.nn.Module")
        x, partition = bind_images(X, players)
        x = x.to(next((p.device for p in network.parameters()), x.device))
        matrix = _Matrix(network)
        with evaluating(matrix):
            outputs = matrix(x[:1]).shape[1]
        if classes is None:
            targets = torch.arange(outputs).expand(len(x), -1)
        else:
            targets = torch.from_numpy(class_numbers(classes, len(x), outputs))[:, None]
        return cls(matrix, x, partition, targets.to(x.device), classes is not None)

    def explain(self, attribute: Callable[[Tensor, Tensor], Tensor], batch_size: int) -> NDArray[np.float64]:
        """The values of all images, from those (b, players) of some of them and a class (b,) of each."""
        parts = []
        with evaluating(self.network), torch.enable_grad():
            for x, targets in zip(self.x.split(batch_size), self.targets.split(batch_size), strict=True):
                parts.append(torch.stack([attribute(x, target).detach() for target in targets.unbind(1)], dim=2))
        values = maps(torch.cat(parts).double(), self.players, upsample=False)
        return values[..., 0] if self.chosen else values


class _Matrix(nn.Module):
    """A network whose outputs are (b, outputs), also if it is a single one that has no axis."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(x)
        if not isinstance(made, Tensor) or made.ndim not in (1, 2):
            got = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise InputError(f"network returned {got} for {len(x)} images: expected (b, outputs)")
        return made[:, None] if made.ndim == 1 else made


def _within(pixels: Tensor, players: Partition) -> Tensor:
    """The sums (b, players) of what each player's pixels have, (b, channels, height, width)."""
    flat = pixels.detach().double().sum(1).flatten(1)
    owner = torch.tensor(players.owner, device=flat.device)
    return flat.new_zeros(len(flat), len(players)).index_add(1, owner, flat)


def _rescalable(network: nn.Module) -> nn.Module:
    """A copy of the network whose gradients are DeepLift's multipliers, for pairs of an image and a reference.

    captum's own hooks (0.9) give wrong sums where activations or max poolings follow each other directly, and where
    the windows of one overlap; and it knows few activations. It finds none to hook in the copy, and does the rest.
    """
    network = copy.deepcopy(network)
    for module in list(network.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _ACTIVATIONS):
                module._modules[name] = _Secant(child)
            elif isinstance(child, nn.MaxPool2d):
                module._modules[name] = _SharedMax(child)
    return network


class _Secant(nn.Module):
    """An activation with the slope between an image's number and its reference's for a gradient: the rescale rule.

    The first half of a batch are images, the second their references.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x.clone())  # which may work in place
        run, rise = _changes(x), _changes(made)
        near = run.abs() < _NEAR
        slope = rise / run.where(~near, 1.0)
        straight = made.detach() + slope.repeat(2, *[1] * (x.ndim - 1)) * (x - x.detach())
        return torch.where(near.repeat(2, *[1] * (x.ndim - 1)), made, straight)


class _SharedMax(nn.Module):
    """A max pooling in which a change of the maximum is credited to one pixel, by the slope that makes it so.

    Where the maximum rises from the reference's, that is the pixel that has it in the image; where it falls, the
    one that had it in the reference.
    """

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.options = (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        made, place = functional.max_pool2d(x, *self.options, return_indices=True)
        flat, run = x.flatten(2), _changes(x).flatten(2)
        (image, reference), places = made.detach().flatten(2).chunk(2), place.flatten(2).chunk(2)
        result = made.detach().flatten(2)
        for where, rise in zip(places, ((image - reference).relu(), -(reference - image).relu()), strict=True):
            length = run.gather(2, where)
            slope = rise / length.where(rise != 0, 1.0)  # where the maximum changes, so does this pixel
            there = flat.gather(2, where.repeat(2, 1, 1))
            result = result + slope.repeat(2, 1, 1) * (there - there.detach())
        return result.view_as(made)


def _changes(x: Tensor) -> Tensor:
    """From references, the second half of a batch, to images, the first."""
    image, reference = x.detach().chunk(2)
    return image - reference


def _check_sums(values: NDArray[np.float64], task: _Task, background: Tensor, batch_size: int) -> None:
    with evaluating(task.network):
        grand = torch.cat([task.network(part) for part in task.x.split(batch_size)]).double()
        null = torch.cat([task.network(part) for part in background.split(batch_size)]).double().mean(0)
    expected = (grand - null).gather(1, task.targets).cpu().numpy()
    gap = np.abs(values.reshape(len(values), len(task.players), -1).sum(1) - expected).mean()
    if gap > _GAP * np.abs(expected).mean():
        logger.warning(
            "deep_shap: values miss what they should sum to by %.3g, where that is %.3g, on average: the network "
            "has an activation that is no module, or of a kind that is not known here",
            gap,
            np.abs(expected).mean(),
        )
