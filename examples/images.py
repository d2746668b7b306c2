"""Show which parts of a digit are evidence for which class.

python examples/images.py          (about half a minute; writes digits.png)
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import shap
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fastshapley import FastSHAP, Superpixels


def trained(X: Tensor, y: Tensor) -> nn.Module:
    """Train a small classifier of digits."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(X), y).backward()
        optimizer.step()
    return net.eval()


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    X, y = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)
    net = trained(X[:1400], y[:1400])
    print(f"accuracy on the test images: {(net(X[1400:]).argmax(1) == y[1400:]).float().mean():.2f}")

    explainer = FastSHAP(
        net,
        players=Superpixels(grid=4),
        logits=True,
        time_budget=25,
        random_state=0,
        progress=False,
    ).fit(X[:1400])
    print(explainer.report_)
    print(explainer.shap_values(X[1400:]).shape)
    shap.image_plot(explainer(X[1400:1404]), labels=[str(k) for k in range(10)], show=False)
    plt.savefig("digits.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
