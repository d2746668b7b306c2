"""The training objective, which makes a network's outputs Shapley values.

All functions take values ``phi`` of shape (n, players, outputs) and a game's values for each row.
"""

from __future__ import annotations

from torch import Tensor


def normalize(phi: Tensor, total: Tensor, dim: int = 1) -> Tensor:
    """Make values sum to ``total`` by adding the same amount to each player.

    This is a projection onto the values that satisfy efficiency. The exact values are among them, so it never moves
    an estimate away from these.

    Parameters
    ----------
    phi : Tensor of shape (n, players, outputs)
        The values; the axis ``dim`` is that of the players.
    total : Tensor of shape (n, outputs)
        Grand minus null.
    dim : int, default=1
        The axis of the players.

    Returns
    -------
    Tensor of the shape of ``phi``
        The normalized values.
    """
    missing = total - phi.sum(dim=dim)
    return phi + missing.unsqueeze(dim) / phi.shape[dim]


def coalition_loss(phi: Tensor, s: Tensor, worth: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the loss of the FastSHAP paper: the mean of ``(worth - s . phi)^2`` over rows, coalitions and outputs.

    Parameters
    ----------
    phi : Tensor of shape (n, players, outputs)
        The values.
    s : Tensor of shape (n, m, players)
        The coalitions.
    worth : Tensor of shape (n, m, outputs)
        v(x, s) - v(x, 0).
    weight : Tensor of shape (n, m) or None
        Weights, for coalitions that are not drawn from the Shapley kernel.

    Returns
    -------
    Tensor of shape ()
        The loss.
    """
    squares = (worth - s.to(phi.dtype) @ phi).square()
    return squares.mean() if weight is None else (weight[..., None] * squares).mean()


def efficiency_penalty(phi: Tensor, total: Tensor) -> Tensor:
    """Return the mean squared difference between ``total``, grand minus null, and the sum of the values."""
    return (total - phi.sum(dim=1)).square().mean()
