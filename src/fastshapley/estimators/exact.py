"""Exact Shapley values by enumerating every coalition."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.errors import InputError
from fastshapley.estimators import memory
from fastshapley.estimators.estimate import Estimate
from fastshapley.value_functions.protocol import ValueFunction, evaluate, grand_values, null_values

MAX_PLAYERS = 20  # More players have more coalitions than one wants to evaluate: 2 ** 20 is a million per row.


def exact(value_function: ValueFunction, x: Tensor, *, progress: bool = False) -> Estimate:
    """Compute the Shapley values of each row of ``x`` from all ``2 ** players`` coalitions, each evaluated once.

    Parameters
    ----------
    value_function : ValueFunction
        The game. It may have at most 20 players.
    x : Tensor of shape (n, ...)
        The encoded rows.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    Estimate
        The values; their standard errors are zero.

    Raises
    ------
    InputError
        If there are more than 20 players.

    Examples
    --------
    >>> class Additive:
    ...     players, outputs = 2, 1
    ...     def __call__(self, x, s):
    ...         return (x[:, None] * s).sum(-1, keepdim=True)
    >>> exact(Additive(), torch.tensor([[3.0, 4.0]])).values[0, :, 0].tolist()
    [3.0, 4.0]
    """
    players = value_function.players
    if players > MAX_PLAYERS:
        raise InputError(
            f"value_function has {players} players, and exact enumeration takes at most {MAX_PLAYERS}: "
            "use the kernel estimator (method='kernel')"
        )
    values = exact_values(value_function, x, progress=progress).cpu().numpy()
    return Estimate(
        values=values,
        stderr=np.zeros_like(values),
        evaluations=np.full(len(x), 1 << players),
        converged=np.ones(len(x), dtype=np.bool_),
    )


def exact_values(value_function: ValueFunction, x: Tensor, *, progress: bool = False) -> Tensor:
    """Compute the values of `exact` only, as a float64 tensor of shape (n, players, outputs)."""
    players = value_function.players
    total = 1 << players
    everyone = torch.arange(len(x), device=x.device)
    null, grand = (f(value_function, x, everyone)[:, None] for f in (null_values, grand_values))
    # The weights of a player's coalitions sum to zero, so the null may be subtracted from every value. With that, a
    # constant game has values of exactly zero.
    values = ((grand - null) / players).expand(-1, players, -1).clone()
    chunk = min(total, memory.EVALUATIONS_PER_CALL)
    rows = max(1, memory.EVALUATIONS_PER_CALL // chunk)
    with tqdm(total=len(x) * total, desc="exact", unit="evaluation", disable=not progress) as bar:
        bar.update(2 * len(x))
        for start in range(1, total - 1, chunk):
            s = enumerate_coalitions(players, start, min(total - 1, start + chunk)).to(x.device)
            weight = _weights(s)
            for first in range(0, len(x), rows):
                part = x[first : first + rows]
                numbers = everyone[first : first + rows]
                v = evaluate(value_function, part, s.expand(len(part), -1, -1), numbers)
                values[first : first + rows] += weight.T @ (v - null[first : first + rows])
                bar.update(len(part) * len(s))
    return values


def _weights(s: Tensor) -> Tensor:
    """Return the weight of v(s) in each player's value, (coalitions, players)."""
    players = s.shape[1]
    size = s.sum(1)
    joining = torch.tensor(
        [0.0] + [1 / (players * math.comb(players - 1, k - 1)) for k in range(1, players + 1)],
        dtype=torch.float64,
    )
    leaving = torch.tensor(
        [1 / (players * math.comb(players - 1, k)) for k in range(players)] + [0.0], dtype=torch.float64
    )
    joining, leaving = joining.to(s.device), leaving.to(s.device)
    return torch.where(s, joining[size, None], -leaving[size, None])
