"""KernelSHAP: Shapley values by least squares over coalitions drawn from the Shapley kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.coalitions import sample_kernel
from fastshapley.errors import InputError
from fastshapley.estimators.base import Estimate
from fastshapley.value_functions.base import ValueFunction, evaluate, grand_values, null_values

_MEMORY = 1 << 25  # bytes of coalitions kept for a block of rows
_EVALUATIONS = 1 << 16  # coalitions times rows in one evaluation
_RIDGE = 1e-7  # relative to the number of pairs: it matters only where they leave a value undetermined
_LEVERAGE = 1e-2  # one minus the largest leverage that is believed


def kernel(
    value_function: ValueFunction,
    x: Tensor,
    *,
    budget: int | None = None,
    tol: float | None = None,
    random_state: int | None = None,
    progress: bool = False,
) -> Estimate:
    """Shapley values of each row of ``x`` from at most ``budget`` evaluations, null and grand included.

    By default that is 64 for each player.

    Coalitions come in pairs with their complements. With ``tol``, a row stops as soon as its largest standard
    error is below ``tol`` times the range of its values.
    """
    players = value_function.players
    smallest = 2 + 4 * players if players > 1 else 2
    budget = 64 * players + 2 if budget is None else budget
    if budget < smallest:
        raise InputError(
            f"budget is {budget}: the kernel estimator needs at least {smallest} for {players} players"
        )
    if tol is not None and not 0 < tol < 1:
        raise InputError(f"tol is {tol}: it must lie between 0 and 1")
    generator = torch.Generator(x.device)
    if random_state is None:
        generator.seed()
    else:
        generator.manual_seed(random_state)
    block = max(1, _MEMORY // (budget * (players + 16 * value_function.outputs)))
    parts = []
    with tqdm(total=len(x) * budget, desc="kernel", unit="evaluation", disable=not progress) as bar:
        for rows in x.split(block):
            parts.append(_block(value_function, rows, budget, tol, generator))
            bar.update(len(rows) * budget)
    fields = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Estimate(fields[0], fields[1], fields[2], fields[3])


def _block(
    value_function: ValueFunction, x: Tensor, budget: int, tol: float | None, generator: torch.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The estimate for rows that are worked on together; rows that have converged stop costing."""
    players = value_function.players
    total = grand_values(value_function, x).double() - null_values(value_function, x).double()
    values = total[:, None] / players + torch.zeros(1, players, 1, dtype=torch.float64, device=x.device)
    stderr = torch.zeros_like(values)
    spent = torch.full((len(x),), 2, device=x.device)
    converged = torch.full((len(x),), players == 1, device=x.device)
    if players == 1:
        return tuple(part.cpu().numpy() for part in (values, stderr, spent, converged))  # type: ignore[return-value]
    pairs = (budget - 2) // 2
    round_size = pairs if tol is None else min(pairs, max(2 * players, 64))
    active = torch.arange(len(x), device=x.device)
    z = torch.empty(len(x), 0, players, dtype=torch.int8, device=x.device)
    u = torch.empty(len(x), 0, value_function.outputs, dtype=torch.float64, device=x.device)
    while z.shape[1] < pairs and len(active):
        fresh_z, fresh_u = draw_pairs(value_function, x[active], min(round_size, pairs - z.shape[1]), generator)
        z, u = torch.cat([z, fresh_z], 1), torch.cat([u, fresh_u], 1)
        values[active], stderr[active] = solve_pairs_with_errors(z, u, total[active])
        spent[active] = 2 + 2 * z.shape[1]
        round_size = z.shape[1] // 2  # check for convergence at a geometric rate
        if tol is not None:
            spread = values[active].amax((1, 2)) - values[active].amin((1, 2))
            done = stderr[active].amax((1, 2)) <= tol * spread
            converged[active[done]] = True
            active, z, u = active[~done], z[~done], u[~done]
    return tuple(part.cpu().numpy() for part in (values, stderr, spent, converged))  # type: ignore[return-value]


def draw_pairs(
    value_function: ValueFunction, x: Tensor, pairs: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Fresh pairs for each row: z = 2s - 1, (n, pairs, players), and u = v(s) - v(1 - s), (n, pairs, outputs)."""
    rows = max(1, _EVALUATIONS // (2 * pairs))
    signs, differences = [], []
    for part in x.split(rows):
        s = sample_kernel(len(part), 2 * pairs, value_function.players, generator)
        v = evaluate(value_function, part, s)
        signs.append(2 * s[:, :pairs].to(torch.int8) - 1)
        differences.append(v[:, :pairs] - v[:, pairs:])
    return torch.cat(signs), torch.cat(differences)


def solve_pairs(z: Tensor, u: Tensor, total: Tensor) -> Tensor:
    """The values (n, players, outputs) that sum to ``total`` (n, outputs) and fit u ~ z . phi best.

    The unknown is the deviation from an even split. With pairs enough it is fitted freely and made to sum to zero
    afterwards, which is as consistent as fitting it under that constraint, and less noisy; with few, a soft
    constraint is less noisy.
    """
    even, deviation, _ = _regress(z, u, total)
    return even + deviation - deviation.mean(1, keepdim=True)


def solve_pairs_with_errors(z: Tensor, u: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """As `solve_pairs`, the values and their standard errors, each (n, players, outputs).

    The errors are the regression's own, by the jackknife: leaving out a pair moves the coefficients by its row of
    Z G^-1 times its residual over one minus its leverage. No common variance is assumed, for a residual's
    depends on the size of its coalition.
    """
    even, deviation, gram = _regress(z, u, total)
    z = z.double()
    influence = z @ torch.linalg.inv(gram)
    leverage = (influence * z).sum(2, keepdim=True)
    residual = (u - z @ (even + deviation)) / (1 - leverage).clamp(min=_LEVERAGE)
    influence = influence - influence.mean(2, keepdim=True)  # as the deviation is made to sum to zero
    stderr = (influence.square().transpose(1, 2) @ residual.square()).sqrt()
    return even + deviation - deviation.mean(1, keepdim=True), stderr


def _regress(z: Tensor, u: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Least squares for u ~ z . (even + deviation): both of these, and the gram matrix (n, players, players)."""
    players, pairs = z.shape[2], z.shape[1]
    even = (total / players)[:, None].double()
    z = z.float()  # sums of +-1 are exact
    gram = (z.transpose(1, 2) @ z).double()
    gram += _RIDGE * pairs * torch.eye(players, dtype=gram.dtype, device=z.device)
    if pairs < 4 * players:
        gram += pairs
    rest = u - z.sum(2, keepdim=True) * even
    right = (z.transpose(1, 2) @ rest.float()).double()
    return even, torch.linalg.solve(gram, right), gram
