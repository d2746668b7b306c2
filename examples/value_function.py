"""Write your own value function: hidden columns are averaged over similar rows.

python examples/value_function.py  (about 15 seconds)
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor
from torch import Tensor

from fastshapley import FastSHAP, metrics


class Neighbours:
    """The mean of ``y`` (r,) over ``rows`` (r, columns), weighted by how close they are in the known columns."""

    def __init__(self, rows: Tensor, y: Tensor) -> None:
        self.rows, self.y, self.scale = rows, y, rows.std(0)
        self.players, self.outputs = rows.shape[1], 1

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return the values (n, m, 1) of the rows x (n, columns) and the coalitions s (n, m, players)."""
        distance = ((x[:, None] - self.rows) / self.scale).square()
        weight = (-s.double() @ distance.transpose(1, 2) / 2).softmax(-1)
        return (weight @ self.y)[..., None]


def main() -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = GradientBoostingRegressor(random_state=0).fit(X, y)
    game = Neighbours(torch.tensor(X.to_numpy()), torch.tensor(model.predict(X)))
    explainer = FastSHAP(value_function=game, evaluation_budget=500_000, random_state=0, progress=False).fit(X)
    print(explainer.report_)
    truth = explainer.estimate(X[:20], "exact")
    values = explainer.shap_values(X[:20])[..., None]
    print(f"relative squared error: {metrics.relative_squared_error(values, truth.values):.4f}")


if __name__ == "__main__":
    main()
