"""Exact Shapley values by listing every coalition."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.errors import InputError
from fastshapley.estimators.sampling import Estimate
from fastshapley.value_functions.protocol import ValueFunction, evaluate, grand_values, null_values

MAX_PLAYERS = 20
_CHUNK = 1 << 16  # coalitions times rows in one evaluation


def exact(value_function: ValueFunction, x: Tensor, *, progress: bool = False) -> Estimate:
    """The Shapley values of each row of ``x``, from all ``2 ** players`` coalitions, each evaluated once.

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
            f"exact enumeration takes at most {MAX_PLAYERS} players, and there are {players}: "
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
    """As `exact`, the values alone: (n, players, outputs), float64."""
    players = value_function.players
    total = 1 << players
    everyone = torch.arange(len(x), device=x.device)
    null, grand = (f(value_function, x, everyone)[:, None] for f in (null_values, grand_values))
    # the weights sum to zero: without the null, a constant game has values of exactly zero
    values = ((grand - null) / players).expand(-1, players, -1).clone()
    chunk = min(total, _CHUNK)
    rows = max(1, _CHUNK // chunk)
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
    """What v(s) contributes to each player's value: (coalitions, players)."""
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
