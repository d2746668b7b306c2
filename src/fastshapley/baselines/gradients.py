"""Explain images by gradients, which captum computes, and sum them over the players.

Each function explains the outputs of ``network`` as they are. A classifier should return logits. Every class needs
passes of its own, so all K classes cost K times as much as one.
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

_SUM_TOLERANCE = 0.05  # relative error of the sum of DeepSHAP's values above which a warning is logged
_MIN_CHANGE = 1e-6  # an activation whose input changes by less uses its gradient instead of a slope
_ACTIVATIONS = (  # elementwise activations
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
    """Explain images by GradCAM (Selvaraju et al., 2017).

    The maps of a layer are weighted by the mean gradients of the class. Negative values are set to zero. The result
    is interpolated or averaged to the players.

    Parameters
    ----------
    network : torch.nn.Module
        The network to explain.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    layer : str, optional
        The name of the layer in ``dict(network.named_modules())``. The default is the last layer that returns maps.
    classes : array-like, optional
        The class to explain for each image, (n,). The default explains all K classes.
    batch_size : int, default=64
        The number of images per pass.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.

    Raises
    ------
    InputError
        If there is no such layer, or it does not return maps.
    """
    captum = require("captum.attr", "images")
    task = _GradientTask.of(network, X, players, classes)
    modules = dict(network.named_modules())
    if layer is None:
        made = made_maps(network, task.x)
        if not made:
            raise InputError(
                "network has no layer that returns maps (b, channels, height, width), which GradCAM needs"
            )
        layer = made[-1][0]
    if layer not in modules:
        raise InputError(f"layer is {layer!r}, which the network does not have: use one of {list(modules)[1:41]}")
    method = captum.LayerGradCam(task.network, modules[layer])
    to_players = ToPlayers(task.players).to(task.x.device)

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        coarse = method.attribute(x, target=target, relu_attributions=True)
        if not isinstance(coarse, Tensor) or coarse.ndim != 4:
            raise InputError(f"layer is {layer!r}, which does not return maps (b, channels, height, width)")
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
    """Explain images by integrated gradients (Sundararajan et al., 2017), with the players' fill as the baseline.

    The value of a player is the sum over its pixels and channels. The values of an image sum to the output for the
    image minus the output for the baseline, up to the error of the numerical integration.

    Parameters
    ----------
    network : torch.nn.Module
        The network to explain.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    steps : int, default=50
        The number of points on the path from the baseline to the image.
    classes : array-like, optional
        The class to explain for each image, (n,). The default explains all K classes.
    batch_size : int, default=64
        The number of images per pass.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.
    """
    captum = require("captum.attr", "images")
    task = _GradientTask.of(network, X, players, classes)
    method = captum.IntegratedGradients(task.network)
    fill = task.players.filling(task.x)

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        baseline = fill.expand_as(x)
        pixels = method.attribute(x, baseline, target=target, n_steps=steps, internal_batch_size=len(x))
        return _sum_over_players(pixels, task.players)

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
    """Explain images by SmoothGrad (Smilkov et al., 2017): mean gradients at noisy copies of an image.

    The value of a player is the sum over its pixels and channels.

    Parameters
    ----------
    network : torch.nn.Module
        The network to explain.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    samples : int, default=50
        The number of noisy copies per image.
    noise : float, default=0.15
        The standard deviation of the noise, as a share of the range of the image's pixels.
    absolute : bool, default=True
        Whether to sum absolute values, as in tf-explain, which the FastSHAP paper used. The sign of a gradient says
        whether a brighter pixel would help the class, not whether the pixel itself does, and the signs of
        neighbouring pixels cancel in a sum.
    classes : array-like, optional
        The class to explain for each image, (n,). The default explains all K classes.
    batch_size : int, default=64
        The number of images per pass.
    random_state : int, default=0
        The seed.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.
    """
    captum = require("captum.attr", "images")
    task = _GradientTask.of(network, X, players, classes)

    def scaled(x: Tensor, width: Tensor) -> Tensor:
        outputs: Tensor = task.network(x * width)
        return outputs

    method = captum.NoiseTunnel(captum.Saliency(scaled))

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        # captum uses one standard deviation for all images, so the images are scaled to it.
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
        return _sum_over_players((pixels.abs() if absolute else pixels) / width, task.players)

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
    """Explain images by DeepSHAP (Lundberg and Lee, 2017): DeepLift's rescale rule, averaged over a background.

    The value of a player is the sum over its pixels and channels. The values of an image sum to the output for the
    image minus the mean output for the background. This requires that each activation of the network is a module.
    If the sums are wrong, a warning is logged.

    Parameters
    ----------
    network : torch.nn.Module
        The network to explain.
    X : Tensor, array or dataset
        Images, (n, channels, height, width).
    players : Superpixels or Partition
        The players.
    background : Tensor, array or dataset
        Images to compare with, (m, channels, height, width).
    classes : array-like, optional
        The class to explain for each image, (n,). The default explains all K classes.
    batch_size : int, default=64
        The number of images per pass.

    Returns
    -------
    ndarray
        Values (n, rows, columns, K) on a grid, or (n, players, K) for a segmentation. With ``classes`` the last
        axis is left out.
    """
    captum = require("captum.attr", "images")
    task = _GradientTask.of(network, X, players, classes)
    others, _ = bind_images(background, task.players)
    others = others.to(task.x.device)
    paired = replace(task, network=_rescalable(task.network))
    method = captum.DeepLiftShap(paired.network)
    several = others if len(others) > 1 else others.expand(2, -1, -1, -1)  # captum needs two or more

    def attribute(x: Tensor, target: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Setting forward, backward hooks")
            return _sum_over_players(method.attribute(x, several, target=target), task.players)

    values = paired.explain(attribute, max(1, batch_size // len(several)))
    _check_sums(values, task, others, batch_size)
    return values


@dataclass(frozen=True)
class _GradientTask:
    """What to explain: a network, images, their players, and the classes of each image, (n, classes)."""

    network: nn.Module
    x: Tensor
    players: Partition
    targets: Tensor
    chosen: bool

    @classmethod
    def of(
        cls, network: nn.Module, X: Any, players: Partition | Superpixels, classes: ArrayLike | None
    ) -> _GradientTask:
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
        """Return the values of all images; ``attribute`` returns (b, players) for a batch and a class per image."""
        parts = []
        with evaluating(self.network), torch.enable_grad():
            for x, targets in zip(self.x.split(batch_size), self.targets.split(batch_size), strict=True):
                parts.append(torch.stack([attribute(x, target).detach() for target in targets.unbind(1)], dim=2))
        values = maps(torch.cat(parts).double(), self.players, upsample=False)
        return values[..., 0] if self.chosen else values


class _Matrix(nn.Module):
    """A network that always returns (b, outputs), also for a single output without an axis."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        made = self.body(x)
        if not isinstance(made, Tensor) or made.ndim not in (1, 2):
            got = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
            raise InputError(f"network returned {got} for {len(x)} images: expected (b, outputs)")
        return made[:, None] if made.ndim == 1 else made


def _sum_over_players(pixels: Tensor, players: Partition) -> Tensor:
    """Sum attributions of pixels, (b, channels, height, width), over each player: (b, players)."""
    flat = pixels.detach().double().sum(1).flatten(1)
    owner = torch.tensor(players.owner, device=flat.device)
    return flat.new_zeros(len(flat), len(players)).index_add(1, owner, flat)


def _rescalable(network: nn.Module) -> nn.Module:
    """Return a copy of the network whose gradients are DeepLift's multipliers, for pairs of image and reference.

    captum's own hooks (version 0.9) give wrong sums where activations or max poolings follow each other directly,
    or the windows of a max pooling overlap. They also support few activations. In the copy captum finds none to
    hook.
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
    """An activation whose gradient is the slope between the image and its reference: the rescale rule.

    The first half of a batch holds images, the second half their references.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x.clone())  # the activation may work in place
        run, rise = _changes(x), _changes(made)
        near = run.abs() < _MIN_CHANGE
        slope = rise / run.where(~near, 1.0)
        straight = made.detach() + slope.repeat(2, *[1] * (x.ndim - 1)) * (x - x.detach())
        return torch.where(near.repeat(2, *[1] * (x.ndim - 1)), made, straight)


class _SharedMax(nn.Module):
    """A max pooling that attributes a change of the maximum to one pixel.

    If the maximum rises from the reference to the image, this is the pixel with the maximum in the image. If it
    falls, it is the pixel with the maximum in the reference.
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
            slope = rise / length.where(rise != 0, 1.0)  # this pixel changes if the maximum does
            there = flat.gather(2, where.repeat(2, 1, 1))
            result = result + slope.repeat(2, 1, 1) * (there - there.detach())
        return result.view_as(made)


def _changes(x: Tensor) -> Tensor:
    """Return images, the first half of a batch, minus references, the second half."""
    image, reference = x.detach().chunk(2)
    return image - reference


def _check_sums(values: NDArray[np.float64], task: _GradientTask, background: Tensor, batch_size: int) -> None:
    with evaluating(task.network):
        grand = torch.cat([task.network(part) for part in task.x.split(batch_size)]).double()
        null = torch.cat([task.network(part) for part in background.split(batch_size)]).double().mean(0)
    expected = (grand - null).gather(1, task.targets).cpu().numpy()
    gap = np.abs(values.reshape(len(values), len(task.players), -1).sum(1) - expected).mean()
    if gap > _SUM_TOLERANCE * np.abs(expected).mean():
        logger.warning(
            "deep_shap: on average, the sum of the values is off by %.3g, where it should be %.3g: the network has "
            "an activation that is not a module, or of an unsupported kind",
            gap,
            np.abs(expected).mean(),
        )
