"""Exact Shapley values by listing every coalition."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.coalitions import enumerate_coalitions
from fastshapley.errors import InputError
from fastshapley.estimators.base import Estimate
from fastshapley.value_functions.base import ValueFunction, evaluate

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
    players, outputs = value_function.players, value_function.outputs
    total = 1 << players
    values = torch.zeros(len(x), players, outputs, dtype=torch.float64, device=x.device)
    null = torch.zeros(len(x), 1, outputs, dtype=torch.float64, device=x.device)
    chunk = min(total, _CHUNK)
    rows = max(1, _CHUNK // chunk)
    with tqdm(total=len(x) * total, desc="exact", unit="evaluation", disable=not progress) as bar:
        for start in range(0, total, chunk):
            s = enumerate_coalitions(players, start, min(total, start + chunk)).to(x.device)
            weight = _weights(s)
            for first in range(0, len(x), rows):
                part = x[first : first + rows]
                numbers = torch.arange(first, first + len(part), device=x.device)
                v = evaluate(value_function, part, s.expand(len(part), -1, -1), numbers)
                if start == 0:
                    null[first : first + rows] = v[:, :1]
                # the weights sum to zero: without the null, a constant game has values of exactly zero
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
