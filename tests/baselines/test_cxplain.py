"""Tests of CXPlain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn
from torch.nn import functional

from fastshapley import Superpixels, Training, UNet
from fastshapley.baselines import CXPlain
from fastshapley.errors import InputError
from fastshapley.players import Partition
from fastshapley.training.run import Run


def classifier() -> nn.Sequential:
    """Return a small convolutional classifier of three classes with random weights."""
    with Run(0).isolated("a test's weights"):
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
        ).eval()


class Spotter(nn.Module):
    """A classifier that returns class 1 if any patch of 2 x 2 pixels is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 2, stride=2)
        with torch.no_grad():
            self.conv.weight.fill_(0.25)
            self.conv.bias.copy_(torch.tensor([-0.5, 0.5]))  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        bright = self.conv(x)[:, 0].relu().flatten(1).sum(1)
        return torch.stack([torch.zeros_like(bright), 12 * bright - 3], dim=1)


def spots(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return dark images with one bright patch, and the index of that patch."""
    generator = torch.Generator().manual_seed(seed)
    patch = torch.randint(16, (count,), generator=generator)
    bright = functional.one_hot(patch, 16).float().reshape(-1, 1, 4, 4)
    x = bright.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return x + 0.1 * torch.rand(count, 1, 8, 8, generator=generator), patch


@pytest.mark.parametrize("explainer", [None, UNet(width=8), nn.Conv2d(1, 1, 2, stride=2)], ids=str)
def test_the_one_important_player_has_the_largest_share(explainer: Any) -> None:
    training = Training(steps=200, learning_rate=2e-2, schedule="cosine")
    method = CXPlain(Spotter(), Superpixels(grid=4), explainer=explainer, training=training, progress=False)
    before = torch.get_rng_state()
    method.fit(spots(300)[0])
    assert torch.equal(before, torch.get_rng_state())
    x, patch = spots(50, seed=1)
    values = method.explain(x)
    assert values.shape == (50, 4, 4)
    np.testing.assert_allclose(values.sum((1, 2)), 1, rtol=1e-5)
    assert (values.reshape(50, 16).argmax(1) == patch.numpy()).all()
    assert min(method.losses_) < 0.5 * method.losses_[0]
    np.testing.assert_array_equal(values, method(x.numpy()))


def fitted_by_hand(network: nn.Module, x: Tensor, labels: Tensor, players: Partition) -> Tensor:
    """Return the distribution over players that CXPlain learns, computed one player at a time."""
    losses = []
    with torch.no_grad():
        full = functional.cross_entropy(network(x), labels, reduction="none")
        for player in range(len(players)):
            s = torch.ones(len(players), dtype=torch.bool)
            s[player] = False
            shown = torch.where(players.mask(s), x, players.filling(x))
            losses.append(functional.cross_entropy(network(shown), labels, reduction="none") - full)
    rise = torch.stack(losses, dim=1).clamp(min=1e-7)
    return rise / rise.sum(1, keepdim=True)


class Free(nn.Module):
    """A network whose values do not depend on the image."""

    def __init__(self, players: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(players))

    def forward(self, x: Tensor) -> Tensor:
        return self.values.expand(len(x), -1)


@pytest.mark.parametrize("given", [False, True], ids=["predicted", "labels"])
def test_shares_are_those_of_the_rise_of_the_loss(given: bool) -> None:
    """The best fit that does not depend on the image is the mean of the distributions of all images."""
    network, x = classifier(), torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    players = Superpixels(segmentation=np.random.default_rng(0).integers(0, 5, size=(8, 8)), fill=0.2)
    labels = torch.arange(12) % 3 if given else network(x).argmax(1)
    method = CXPlain(
        network,
        players,
        explainer=Free(5),
        training=Training(steps=400, batch_size=12, learning_rate=0.1, schedule="cosine"),
        progress=False,
    )
    values = method.fit(x, labels if given else None, x, labels if given else None).explain(x[:2])
    expected = fitted_by_hand(network, x, labels, players.bind_image((3, 8, 8))).mean(0)
    assert values.shape == (2, 5)
    np.testing.assert_allclose(values, expected.expand(2, -1), atol=2e-3)


def test_rows_limits_the_images_that_are_used_and_the_seed_selects_them() -> None:
    seen: list[int] = []

    def counted(images: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(len(images))
        with torch.no_grad():
            return Spotter()(torch.from_numpy(images)).softmax(1).numpy()

    x = spots(40)[0].numpy()
    method = CXPlain(
        counted, Superpixels(grid=4), logits=False, training=Training(steps=2), rows=10, progress=False
    )
    first = method.fit(x)(x)
    trial = 32 + 1  # The images of the first call, which checks the model, and the filled image.
    # The prediction, the full image, and the image without each player.
    assert sum(seen) == trial + 10 * (1 + 1 + 16)
    np.testing.assert_array_equal(first, method.fit(x)(x))
    method.random_state = 1
    assert (method.fit(x)(x) != first).any()


def test_arguments_that_do_not_fit_are_refused() -> None:
    x = spots(10)[0]
    players = Superpixels(grid=4)
    with pytest.raises(NotFittedError, match="call fit"):
        CXPlain(Spotter(), players).explain(x)
    for network, options, arguments, message in [
        (Spotter(), {"rows": 0}, {}, "rows is 0"),
        (Spotter(), {}, {"labels_val": [0]}, "labels_val needs X_val"),
        (Spotter(), {}, {"X_val": x[:0]}, "X_val has no rows"),
        (Spotter(), {}, {"X_val": x[:, :, :4]}, "X_val has images of shape"),
        (Spotter(), {}, {"labels": [0, 1]}, "labels has shape"),
        (Spotter(), {}, {"X_val": x[:2], "labels_val": [0, 2]}, "labels_val are from 0 to 2"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), {}, {}, "network has one output"),
        (Spotter(), {"logits": False}, {}, "outputs are not probabilities"),
        (Spotter(), {"explainer": nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, {}, r"expected \(\d+, 16\)"),
    ]:
        method = CXPlain(network, players, training=Training(steps=1), progress=False, **options)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=message):
            method.fit(x, **arguments)  # type: ignore[arg-type]
