"""Tests of the baselines for images, against closed forms and against direct calls of captum."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from torch.nn import functional

from fastshapley import FastSHAP, Recipe, Superpixels, Training
from fastshapley.baselines import (
    deep_shap,
    grad_cam,
    integrated_gradients,
    kernel_shap,
    kernel_shap_s,
    random_ranking,
    smooth_grad,
)
from fastshapley.baselines.inclusion_curves import removal_curves
from fastshapley.errors import InputError
from fastshapley.estimators import exact
from fastshapley.training.run import Run
from fastshapley.value_functions import Baseline

captum = pytest.importorskip("captum.attr")

GRID = Superpixels(grid=(2, 4))
SEGMENTS = Superpixels(segmentation=np.random.default_rng(0).integers(0, 5, size=(8, 8)))
PLAYERS = {"grid": GRID, "segments": SEGMENTS}
Array = NDArray[np.float64]
Network = TypeVar("Network", bound=nn.Module)


def some_images(count: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], Network], seed: int = 0) -> Network:
    with Run(seed).isolated("a test's weights"):
        return make().eval()


def linear(outputs: int = 2) -> nn.Sequential:
    """Return a model that is linear in the pixels and has no bias."""
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, outputs, bias=False)))


def deep(activation: Callable[[], nn.Module] = nn.ReLU, pool: nn.Module | None = None) -> nn.Sequential:
    """Return a small convolutional classifier with three classes. Each activation is a separate module."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            activation(),
            pool or nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1),
            activation(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        )
    )


def summed(pixels: Tensor, players: Superpixels) -> Array:
    """Return the sums of pixel values (n, channels, height, width) over each player, one player at a time."""
    partition = players.bind_image((3, 8, 8))
    flat = pixels.detach().double().sum(1).flatten(1).numpy()
    owner = np.array(partition.owner)
    values = np.stack([flat[:, owner == player].sum(1) for player in range(len(partition))], axis=1)
    return values if partition.grid is None else values.reshape(len(values), *partition.grid)


def weights(network: nn.Sequential) -> Tensor:
    """Return the weights of a linear model, (outputs, channels, height, width)."""
    layer = network[1]
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().unflatten(1, (3, 8, 8))


def additive(network: nn.Sequential, x: Tensor, players: Superpixels) -> Array:
    """Return what each player adds to a linear model: (n, rows, columns, outputs) or (n, players, outputs)."""
    return np.stack([summed(weight * x, players) for weight in weights(network)], axis=-1)


@pytest.mark.parametrize("players", PLAYERS.values(), ids=PLAYERS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_values_of_a_linear_model_are_exact(players: Superpixels, outputs: int) -> None:
    """Integrated gradients, DeepSHAP and KernelSHAP all return the sum that a player's pixels add."""
    network, x = linear(outputs), some_images()
    truth = additive(network, x, players)
    np.testing.assert_allclose(integrated_gradients(network, x, players, steps=5), truth, rtol=1e-4, atol=1e-5)
    for background in (torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 8, 8)):
        np.testing.assert_allclose(deep_shap(network, x, players, background), truth, rtol=1e-4, atol=1e-5)
    values = kernel_shap(network, x, players, budget=200, logits=False, link="identity")
    np.testing.assert_allclose(values, truth, rtol=1e-4, atol=1e-5)
    # The path starts at the filled image, and the mean of the background is subtracted.
    shifted = Superpixels(players.grid, players.segmentation, fill=[0.5, -1.0, 2.0])
    fill = torch.tensor([0.5, -1.0, 2.0]).reshape(1, 3, 1, 1)
    truth = additive(network, x - fill, shifted)
    np.testing.assert_allclose(integrated_gradients(network, x, shifted), truth, rtol=1e-4, atol=1e-5)
    values = kernel_shap(network, x, shifted, budget=200, logits=False, link="identity")
    np.testing.assert_allclose(values, truth, rtol=1e-4, atol=1e-5)
    others = some_images(5, seed=1)
    truth = additive(network, x - others.mean(0), players)
    np.testing.assert_allclose(deep_shap(network, x, players, others, batch_size=7), truth, rtol=1e-4, atol=1e-5)


def test_kernel_shap_explains_log_odds_of_logits() -> None:
    network, x = linear(1), some_images()
    np.testing.assert_allclose(
        kernel_shap(network, x, GRID, budget=200), additive(network, x, GRID), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("players", PLAYERS.values(), ids=PLAYERS)
def test_smooth_gradients_of_a_linear_model_are_its_weights(players: Superpixels) -> None:
    network, x = linear(), some_images()
    for absolute in (True, False):
        weight = weights(network).abs() if absolute else weights(network)
        truth = np.moveaxis(summed(weight, players), 0, -1)
        values = smooth_grad(network, x, players, samples=3, absolute=absolute)
        np.testing.assert_allclose(values, np.broadcast_to(truth, values.shape), rtol=1e-4, atol=1e-5)


class Mapped(nn.Module):
    """A convolution, a global mean and a linear layer, so that the class activation maps are known."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, stride=stride, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.relu(self.conv(x)).mean((2, 3)))
        return result

    def activation_maps(self, x: Tensor) -> Tensor:
        """Return the positive part of the channels weighted by the linear layer, (n, classes, h, w)."""
        made = self.relu(self.conv(x))
        area = made.shape[2] * made.shape[3]
        return torch.einsum("kc,nchw->nkhw", self.head.weight, made).relu().detach() / area


def test_grad_cam_is_the_class_activation_map() -> None:
    x = some_images()
    network = seeded(lambda: Mapped(stride=1))
    cam = network.activation_maps(x)
    averaged = functional.avg_pool2d(cam, (4, 2)).movedim(1, -1).numpy()
    values = grad_cam(network, x, GRID, batch_size=2)
    assert values.shape == (3, 2, 4, 4)
    np.testing.assert_allclose(values, averaged, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(grad_cam(network, x, GRID, layer="relu"), averaged, rtol=1e-4, atol=1e-7)
    owner = np.array(SEGMENTS.bind_image((3, 8, 8)).owner)
    flat = cam.flatten(2).numpy()
    means = np.stack([flat[..., owner == player].mean(-1) for player in range(owner.max() + 1)], axis=1)
    np.testing.assert_allclose(grad_cam(network, x, SEGMENTS), means, rtol=1e-4, atol=1e-7)
    # Maps that are coarser than the players are interpolated.
    network = seeded(lambda: Mapped(stride=2))
    fine = functional.interpolate(network.activation_maps(x), (8, 8), mode="bilinear", align_corners=False)
    np.testing.assert_allclose(
        grad_cam(network, x, Superpixels(grid=8)), fine.movedim(1, -1).numpy(), rtol=1e-4, atol=1e-7
    )


def test_grad_cam_uses_the_given_layer() -> None:
    network, x = deep(), some_images()
    coarse = captum.LayerGradCam(network, network[0]).attribute(x, target=2, relu_attributions=True)
    expected = functional.avg_pool2d(coarse, (4, 2))[:, 0].detach().numpy()
    np.testing.assert_allclose(grad_cam(network, x, GRID, layer="0")[..., 2], expected, rtol=1e-4, atol=1e-7)
    for layer, message in (("9", "layer is '9', which the network does not have"), ("6", "does not return maps")):
        with pytest.raises(InputError, match=message):
            grad_cam(network, x, GRID, layer=layer)
    with pytest.raises(InputError, match="no layer that returns maps"):
        grad_cam(linear(), x, GRID)


def test_values_equal_those_of_direct_calls_of_captum() -> None:
    network, x, target = deep(), some_images(4), torch.tensor([0, 2, 1, 2])
    classes = target.numpy()
    pixels = captum.IntegratedGradients(network).attribute(x, 0 * x, target=target, n_steps=20)
    values = integrated_gradients(network, x, GRID, steps=20, classes=classes, batch_size=3)
    np.testing.assert_allclose(values, summed(pixels, GRID), rtol=1e-4, atol=1e-6)
    others = some_images(5, seed=1)
    for pool in (nn.AvgPool2d(2), nn.Sequential(nn.Conv2d(6, 6, 1), nn.MaxPool2d(2))):  # Correct in captum.
        pooled = deep(pool=pool)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = captum.DeepLiftShap(pooled).attribute(x, others, target=target)
        values = deep_shap(pooled, x, SEGMENTS, others, classes=classes, batch_size=10)
        np.testing.assert_allclose(values, summed(pixels, SEGMENTS), rtol=1e-4, atol=1e-6)
    # Captum uses one standard deviation of the noise for all images.
    image, width = x[:1], float(x[0].max() - x[0].min())
    with Run(3).isolated("smooth grad"):
        method = captum.NoiseTunnel(captum.Saliency(network))
        pixels = method.attribute(
            image, nt_samples=6, nt_samples_batch_size=1, stdevs=0.2 * width, target=1, abs=False
        )
    values = smooth_grad(network, image, GRID, samples=6, noise=0.2, classes=[1], random_state=3)
    np.testing.assert_allclose(values, summed(pixels.abs(), GRID), rtol=1e-3, atol=1e-5)


def test_noise_is_scaled_by_the_range_of_each_image() -> None:
    """The values of an image do not depend on the range of the other images."""
    network = deep()
    dark, bright = some_images(1), 20 * some_images(1, seed=1)
    alone = smooth_grad(network, dark, GRID, samples=200, noise=0.1)
    beside = smooth_grad(network, torch.cat([dark, bright]), GRID, samples=200, noise=0.1)[:1]
    np.testing.assert_allclose(alone, beside, rtol=0.1, atol=0.05 * float(np.abs(alone).max()))


class Hidden(nn.Module):
    """A module that calls an activation function, which hooks cannot find."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(4 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "in place": lambda: nn.ReLU6(inplace=True),
    "silu": nn.SiLU,
    "prelu": nn.PReLU,
}
POOLS = {"tiles": nn.MaxPool2d(2), "overlapping": nn.MaxPool2d(3, stride=2, padding=1), "mean": nn.AvgPool2d(2)}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_values_sum_to_the_output_minus_that_of_the_baseline(
    activation: Callable[[], nn.Module], pool: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    network, x, others = deep(activation, pool), 3 * some_images(), some_images(4, seed=1)
    with torch.no_grad():
        full, null, filled = network(x).numpy(), network(others).mean(0).numpy(), network(0 * x).numpy()
    with caplog.at_level(logging.WARNING):
        values = deep_shap(network, x, GRID, others)
    np.testing.assert_allclose(values.sum((1, 2)), full - null, rtol=1e-4, atol=1e-5)
    assert not caplog.records
    values = integrated_gradients(network, x, SEGMENTS, steps=200)
    np.testing.assert_allclose(values.sum(1), full - filled, atol=2e-2 * float(np.abs(full - filled).max()))


def test_an_activation_that_is_not_a_module_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        deep_shap(deep(Hidden), some_images(), GRID, some_images(4, seed=1))
    assert "an activation that is not a module" in caplog.text


METHODS: dict[str, Callable[..., Array]] = {
    "grad_cam": grad_cam,
    "integrated_gradients": lambda network, X, players, **rest: integrated_gradients(
        network, X, players, steps=4, **rest
    ),
    "deep_shap": lambda network, X, players, **rest: deep_shap(network, X, players, some_images(2, seed=1), **rest),
    "smooth_grad": lambda network, X, players, **rest: smooth_grad(network, X, players, samples=2, **rest),
    "kernel_shap": lambda network, X, players, **rest: kernel_shap(network, X, players, budget=60, **rest),
    "random_ranking": lambda network, X, players, **rest: random_ranking(X, players, 3, **rest),
}
SEEDED = ("smooth_grad", "kernel_shap", "random_ranking")


@pytest.mark.parametrize("name", METHODS)
def test_methods_accept_all_inputs_and_return_documented_shapes(name: str) -> None:
    """The cases are one class or all, a grid or segments, tensors or arrays, and bound or unbound players."""
    method, network, x = METHODS[name], deep(), some_images()
    before = torch.get_rng_state()
    values = method(network, x, GRID)
    assert values.shape == (3, 2, 4, 3)
    assert values.dtype == np.float64
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(values, method(network, x.numpy(), GRID.bind_image((3, 8, 8))))
    classes = np.array([2, 0, 1])
    chosen = method(network, x, GRID, classes=classes)
    assert chosen.shape == (3, 2, 4)
    if name != "smooth_grad":  # Its noise differs between classes.
        np.testing.assert_allclose(chosen, values[np.arange(3), ..., classes], rtol=1e-5, atol=1e-8)
    assert method(network, x, SEGMENTS).shape == (3, 5, 3)
    assert method(network, x, SEGMENTS, classes=torch.tensor(classes)).shape == (3, 5)
    if name in SEEDED:
        assert (values != method(network, x, GRID, random_state=1)).any()
    # The curves accept the values without conversion.
    curves = removal_curves(lambda images: network(images).softmax(1), x, chosen, GRID, classes)
    assert curves.inclusion.agreement.auc.shape == (3,)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "random_ranking"])
def test_the_network_is_not_changed(name: str) -> None:
    network = deep(lambda: nn.ReLU(inplace=True))
    network.insert(1, nn.BatchNorm2d(6))
    network.train()
    network[0].eval()
    network[0].requires_grad_(False)
    state = copy.deepcopy(network.state_dict())
    modes = [module.training for module in network.modules()]
    values = METHODS[name](network, some_images(), GRID)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert [p.requires_grad for p in network.parameters()] == [False] * 2 + [True] * 6
    for module in network.modules():
        assert not {**module._forward_hooks, **module._forward_pre_hooks, **module._backward_hooks}
    np.testing.assert_allclose(METHODS[name](network.eval(), some_images(), GRID), values, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_bad_input_raises(name: str) -> None:
    method, network, x = METHODS[name], deep(), some_images()
    for X, players, classes, message in [
        (x[0], GRID, None, "X has shape"),
        (x, Superpixels(grid=3), None, "does not divide"),
        (x, GRID.bind_image((3, 4, 4)), None, "players belong to images of shape"),
        (x, GRID, [0, 1], r"classes has shape \(2,\)"),
        (x, GRID, [0.0, 1.0, 2.0], "one integer per image"),
        (x, GRID, [0, 1, 3], "numbered from 0 to 2"),
    ]:
        with pytest.raises(InputError, match=message):
            method(network, X, players, classes=classes)
    if name in ("kernel_shap", "random_ranking"):
        return
    with pytest.raises(InputError, match="network is a function: gradients need a torch"):
        method(lambda images: images, x, GRID)
    with pytest.raises(InputError, match="network returned shape"):
        method(nn.Identity(), x, GRID)


def test_a_network_may_return_one_number_per_image() -> None:
    network = linear(1)
    x = some_images()
    flat = nn.Sequential(network, nn.Flatten(0))
    np.testing.assert_array_equal(integrated_gradients(flat, x, GRID), integrated_gradients(network, x, GRID))
    values = deep_shap(flat, x, GRID, 0 * x[:1], batch_size=4)
    np.testing.assert_allclose(values, additive(network, x, GRID), rtol=1e-4, atol=1e-5)


def test_kernel_shap_estimates_the_baseline_game() -> None:
    network, x = deep(), some_images()
    players = Superpixels(grid=2, fill=0.3)
    seen: list[int] = []

    def counted(images: Tensor) -> Tensor:
        seen.append(len(images))
        with torch.no_grad():
            result: Tensor = network(images)
        return result

    values = kernel_shap(counted, x, players)
    filled = players.bind_image((3, 8, 8))

    class Game:
        players, outputs = 4, 3

        def __call__(self, x: Tensor, s: Tensor) -> Tensor:
            shown = torch.where(filled.mask(s), x[:, None], filled.filling(x))
            with torch.no_grad():
                return network(shown.flatten(0, 1)).double().softmax(1).logit().unflatten(0, s.shape[:2])

    truth = exact(Game(), x).values.reshape(3, 2, 2, 3)
    scale = float(np.abs(truth).max())
    np.testing.assert_allclose(values.sum((1, 2)), truth.sum((1, 2)), atol=1e-4 * scale)
    # With 1028 pairs, errors are about 1 / sqrt(1028) of the part that is not additive.
    np.testing.assert_allclose(values, truth, atol=0.05 * scale)
    assert sum(seen) < 3 * 16 + 16  # A repeated coalition is evaluated once.
    np.testing.assert_array_equal(values, kernel_shap(counted, x, players, random_state=0))
    with pytest.raises(InputError, match="budget is 10"):
        kernel_shap(counted, x, players, budget=10)
    with pytest.raises(InputError, match="outputs are not probabilities"):
        kernel_shap(counted, x, players, logits=False)


def test_kernel_shap_s_runs_on_the_explainers_game() -> None:
    """With an explainer of the baseline game, the values are those of `kernel_shap`."""
    network, x = deep(), some_images(8)
    quick = Recipe(surrogate=(), explainer=Training(steps=2), coalitions=2, validation_coalitions=2)
    explainer = FastSHAP(
        network,
        players=GRID,
        value_function=Baseline(),
        logits=True,
        link="logit",
        recipe=quick,
        random_state=0,
        progress=False,
    )
    with pytest.raises(NotFittedError):
        kernel_shap_s(explainer, x)
    explainer.fit(x)
    values = kernel_shap_s(explainer, x[:3], budget=100, random_state=5)
    assert values.shape == explainer.shap_values(x[:3]).shape == (3, 2, 4, 3)
    np.testing.assert_allclose(values, kernel_shap(network, x[:3], GRID, budget=100, random_state=5), atol=1e-6)
    chosen = kernel_shap_s(explainer, x[:3], budget=100, random_state=5, classes=[0, 1, 2])
    np.testing.assert_array_equal(chosen, values[np.arange(3), ..., [0, 1, 2]])
    assert kernel_shap_s(explainer, x[:1]).shape == (1, 2, 4, 3)
    with pytest.raises(InputError, match="explainer is a Sequential: pass a fitted FastSHAP"):
        kernel_shap_s(network, x)  # type: ignore[arg-type]


def test_random_values_are_uniform() -> None:
    values = random_ranking(some_images(200), Superpixels(grid=4), outputs=3)
    assert values.shape == (200, 4, 4, 3)
    assert 0 <= values.min() < 0.01 < 0.99 < values.max() < 1
    assert abs(values.mean() - 0.5) < 4 * np.sqrt(1 / 12 / values.size)


def test_the_import_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(
        ImportError, match=r"this needs captum: install it with pip install 'fastshapley\[images\]'"
    ):
        grad_cam(deep(), some_images(), GRID)
