"""The objective: what makes a network's outputs Shapley values.

All functions take values ``phi`` of shape (n, players, outputs) and a game's values by row.
"""

from __future__ import annotations

from torch import Tensor


def normalize(phi: Tensor, total: Tensor, dim: int = 1) -> Tensor:
    """Spread the gap to ``total`` = grand - null, (n, outputs), evenly over the players, the axis ``dim``.

    This projects onto the values that satisfy efficiency, among them the exact ones, so it never moves an
    estimate away from them.
    """
    gap = total - phi.sum(dim=dim)
    return phi + gap.unsqueeze(dim) / phi.shape[dim]


def coalition_loss(phi: Tensor, s: Tensor, worth: Tensor, weight: Tensor | None = None) -> Tensor:
    """The paper's loss: the mean of ``(worth - s . phi)^2`` over rows, coalitions and outputs.

    ``s`` is (n, m, players), ``worth`` = v(x, s) - v(x, 0) is (n, m, outputs), and ``weight`` (n, m) is for
    coalitions that are not drawn from the Shapley kernel.
    """
    squares = (worth - s.to(phi.dtype) @ phi).square()
    return squares.mean() if weight is None else (weight[..., None] * squares).mean()


def efficiency_penalty(phi: Tensor, total: Tensor) -> Tensor:
    """The mean squared gap between the sum of the values, before normalisation, and grand - null."""
    return (total - phi.sum(dim=1)).square().mean()
