"""What an estimator returns, and what the sampling estimators share: budgets, blocks of rows, convergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.errors import InputError
from fastshapley.value_functions.protocol import ValueFunction, grand_values, null_values

_MEMORY = 1 << 27  # bytes for a block of rows: its coalitions, and what solving for its values takes
_FIRST_LOOK = 64  # coalitions before a row may be found to have converged


@dataclass(frozen=True)
class Estimate:
    """Shapley values of given rows.

    values: (n, players, outputs).
    stderr: their standard errors, of the same shape; zero where the values are exact.
    evaluations: coalitions evaluated for each row, null and grand included, (n,).
    converged: whether a row reached the tolerance asked for, (n,); True for exact values.
    budgets, history: with ``history``, some budgets (b,) and the values after as many evaluations, from the same
        run, (b, n, players, outputs); else empty.
    """

    values: NDArray[np.float64]
    stderr: NDArray[np.float64]
    evaluations: NDArray[np.int64]
    converged: NDArray[np.bool_]
    budgets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    history: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


class Sampler(Protocol):
    """A block of rows under estimation."""

    def extend(self, units: int) -> None:
        """Evaluate so many more units (coalitions, pairs, permutations) of each row."""

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Values and standard errors, each (rows, players, outputs)."""

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows under this mask only."""


@dataclass(frozen=True)
class Block:
    """Rows to estimate: their numbers in the user's input, the encoded rows, and grand minus null (n, outputs)."""

    value_function: ValueFunction
    numbers: Tensor
    x: Tensor
    null: Tensor
    total: Tensor

    def __getitem__(self, rows: Tensor) -> Block:
        return Block(self.value_function, self.numbers[rows], self.x[rows], self.null[rows], self.total[rows])


def estimate_by_sampling(
    name: str,
    value_function: ValueFunction,
    x: Tensor,
    start: Callable[[Block, torch.Generator, int], Sampler],
    *,
    unit: int,
    fewest: int,
    most: float = math.inf,
    budget: int | None,
    tol: float | None,
    history: bool | Sequence[int],
    random_state: int | None,
    progress: bool,
) -> Estimate:
    """Run a sampler on blocks of rows, within ``budget`` evaluations a row, until each row has converged.

    A unit costs ``unit`` evaluations; the method needs at least ``fewest`` units, and there are at most ``most``.
    ``start`` makes the sampler for a block, given the units it will be asked for. Without a budget there are 64
    evaluations a player.
    """
    players = value_function.players
    smallest = 2 + unit * fewest if players > 1 else 2
    budget = max(64 * players + 2, smallest) if budget is None else budget
    if budget < smallest:
        raise InputError(f"budget is {budget}: {name} needs at least {smallest} evaluations for {players} players")
    if tol is not None and not 0 < tol < 1:
        raise InputError(f"tol is {tol}: it must lie between 0 and 1")
    budgets = _budgets(history, smallest, budget)
    generator = torch.Generator(x.device)
    generator.seed() if random_state is None else generator.manual_seed(random_state)
    size = max(1, _MEMORY // (budget * (16 * players + 32 * value_function.outputs)))
    parts = []
    with tqdm(total=len(x) * budget, desc=name, unit="evaluation", disable=not progress) as bar:
        for numbers in torch.arange(len(x), device=x.device).split(size):
            rows = x[numbers]
            null, grand = (f(value_function, rows, numbers) for f in (null_values, grand_values))
            block = Block(value_function, numbers, rows, null, grand - null)
            if players == 1:
                parts.append(_one_player(block, len(budgets)))
            else:
                units, *stops = (int(min(most, (b - 2) // unit)) for b in (budget, *budgets))
                sampler = start(block, generator, units)
                looks = [] if tol is None else _looks(units, unit, fewest)
                parts.append(_run(sampler, block, units, stops, looks, unit, tol))
            bar.update(len(numbers) * budget)
    columns = [[part[i].cpu().numpy() for part in parts] for i in range(5)]
    values, stderr, spent, converged = (np.concatenate(column) for column in columns[:4])
    past = np.concatenate(columns[4], axis=1) if budgets else np.empty(0)
    return Estimate(values, stderr, spent, converged, np.array(budgets, dtype=np.int64), past)


def _budgets(history: bool | Sequence[int], smallest: int, budget: int) -> list[int]:
    if history is False:
        return []
    if history is True:
        steps = np.geomspace(smallest, budget, 16)
        return sorted({int(step) for step in steps[:-1]} | {budget})
    chosen = sorted(int(b) for b in history)
    if not chosen or chosen[0] < smallest or chosen[-1] > budget:
        raise InputError(f"history is {list(history)}: give budgets from {smallest} to {budget}")
    return chosen


def _one_player(block: Block, steps: int) -> tuple[Tensor, ...]:
    values = block.total[:, None]
    ones = torch.ones(len(values), dtype=torch.long, device=values.device)
    return values, torch.zeros_like(values), 2 * ones, ones.bool(), values.expand(steps, *values.shape)


def _run(
    sampler: Sampler,
    block: Block,
    units: int,
    stops: Sequence[int],
    looks: Sequence[int],
    unit: int,
    tol: float | None,
) -> tuple[Tensor, ...]:
    """Values, standard errors, evaluations spent, converged, and the values at each of ``stops``.

    Rows may converge at ``looks`` and at the end only, so that the history does not change what is returned.
    """
    shape = (len(block.x), block.value_function.players, block.value_function.outputs)
    values = block.null.new_zeros(shape)
    stderr = torch.zeros_like(values)
    spent = torch.zeros(shape[0], dtype=torch.long, device=values.device)
    converged = torch.zeros(shape[0], dtype=torch.bool, device=values.device)
    past: dict[int, Tensor] = {}
    active = torch.arange(shape[0], device=values.device)
    done = 0
    for stop in sorted({units, *stops, *looks}):
        if len(active):
            sampler.extend(stop - done)
            values[active], stderr[active] = sampler.estimate()
            spent[active] = 2 + unit * stop
        done = stop
        past[stop] = values.clone()
        if tol is not None and len(active) and stop in (*looks, units):
            spread = values[active].amax((1, 2)) - values[active].amin((1, 2))
            ready = stderr[active].amax((1, 2)) <= tol * spread
            converged[active[ready]] = True
            active = active[~ready]
            sampler.keep(~ready)
    steps = [past[stop] for stop in stops]
    return values, stderr, spent, converged, torch.stack(steps) if steps else values.new_zeros(0)


def _looks(units: int, unit: int, fewest: int) -> list[int]:
    """When to look whether rows have converged: at a geometric rate, once there is something to judge by."""
    looks = []
    look = max(fewest, 8, _FIRST_LOOK // unit)
    while look < units:
        looks.append(look)
        look = max(look + 1, look * 3 // 2)
    return looks
