"""Small networks on scikit-learn's digits of 8 x 8 pixels, and explainers that train quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fastshapley import FastSHAP, Recipe, Superpixels, Targets, Training
from fastshapley.training.run import one_thread

BRIEF = Training(steps=20, batch_size=16, learning_rate=3e-3, schedule="cosine")
TARGETS = Targets(evaluations=1000, rows=1, fewest=1 << 40)
QUICK = Recipe(
    surrogate=(BRIEF,),
    explainer=BRIEF,
    targets=TARGETS,
    coalitions=8,
    validation_rows=16,
    validation_coalitions=8,
    tied_classes=True,
)
GRID = Superpixels(grid=2)
BINS = np.kron([[0, 1], [2, 3]], np.ones((4, 4), dtype=int))  # the same players as segments


def digits(count: int = 96) -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8) of the digits 0, 1 and 2, with pixels from 0 to 1, and their labels."""
    images, labels = load_digits(n_class=3, return_X_y=True)
    return torch.from_numpy(images[:count]).float().reshape(-1, 1, 8, 8) / 16, torch.from_numpy(labels[:count])


X, Y = digits()


def network(outputs: int = 3, seed: int = 0, width: int = 8, dropout: float = 0.0) -> nn.Sequential:
    """A convolutional network that returns logits."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, outputs),
        )


def trained(outputs: int = 3) -> nn.Sequential:
    """The network after a few steps on the digits. A single output predicts whether the digit is 0."""
    model = network(outputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        logits = model(X)
        nought = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], (Y == 0).float())
        loss = nought if outputs == 1 else nn.functional.cross_entropy(logits, Y.clamp(max=outputs - 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


with one_thread():  # with several threads, two processes get different weights
    MODELS = {outputs: trained(outputs) for outputs in (1, 2, 3)}
MODEL = MODELS[3]


def explainer(model: Any = MODEL, **options: Any) -> FastSHAP:
    """An explainer that trains quickly."""
    given = {"players": GRID, "logits": True, "recipe": QUICK, "random_state": 0, "progress": False}
    return FastSHAP(model, **{**given, **options})


def probabilities(x: Tensor, model: nn.Module = MODEL) -> NDArray[np.float64]:
    with torch.no_grad():
        logits = model(x).double()
        return np.asarray(logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1))
