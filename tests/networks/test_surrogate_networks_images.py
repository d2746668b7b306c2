"""Tests of surrogate networks for images."""

from __future__ import annotations

import pytest
import torch
from image_networks import SIZE, Classifier, X, players
from torch import Tensor, nn

from fastshapley import Superpixels
from fastshapley.networks.surrogate_networks import MaskedImages

pytestmark = pytest.mark.usefixtures("seeded")


def test_the_body_gets_images_with_hidden_players_filled() -> None:
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
def test_softmax_of_the_raw_outputs_gives_the_probabilities_of_the_model(outputs: int) -> None:
    model = nn.Sequential(Classifier(outputs), nn.Softmax(1)).eval()
    everyone = torch.ones(len(X), 1, 16, dtype=torch.bool)
    raw = MaskedImages(model, players(4), "log")(X, everyone)
    torch.testing.assert_close(raw[:, 0].softmax(1), model(X))


@pytest.mark.parametrize("shape", ["(n, 1)", "(n, 3)", "(n,)"])
def test_sigmoid_of_the_raw_outputs_gives_the_probabilities_of_the_model(shape: str) -> None:
    last = nn.Flatten(0) if shape == "(n,)" else nn.Identity()
    model = nn.Sequential(Classifier(3 if shape == "(n, 3)" else 1), nn.Sigmoid(), last).eval()
    everyone = torch.ones(len(X), 1, 16, dtype=torch.bool)
    raw = MaskedImages(model, players(4), "logit")(X, everyone)
    torch.testing.assert_close(raw[:, 0].sigmoid(), model(X).reshape(len(X), -1))


def test_probabilities_of_0_and_1_have_finite_logits_and_gradients() -> None:
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
