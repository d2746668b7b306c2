"""The driver of the sampling estimators: budgets, blocks of rows, history and convergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.errors import InputError
from fastshapley.estimators import memory
from fastshapley.estimators.estimate import Estimate, check_tolerance, within_tolerance
from fastshapley.value_functions.protocol import ValueFunction, grand_values, null_values

DEFAULT_EVALUATIONS_PER_PLAYER = 64  # The budget per row and player when the caller names none.
FIRST_CHECK_EVALUATIONS = 64  # Evaluations of a row before its first check for convergence.
FIRST_CHECK_UNITS = 8  # Units of a row before its first check, however many evaluations a unit takes.
CHECK_GROWTH = (3, 2)  # Each check for convergence comes at 3/2 times the units of the check before.
HISTORY_STEPS = 16  # Budgets that ``history=True`` keeps, the last one included.


@dataclass(frozen=True)
class SamplingOptions:
    """What a caller asks of a sampling estimator.

    Parameters
    ----------
    budget : int or None, default=None
        The largest number of evaluations per row, null and grand included. By default there are 64 per player.
    tol : float or None, default=None
        A row stops as soon as its largest standard error is at most ``tol`` times the range of its values.
    history : bool or sequence of int, default=False
        Whether to keep the values at intermediate budgets, or the budgets at which to keep them.
    random_state : int or None, default=None
        The seed of the drawn coalitions.
    progress : bool, default=False
        Whether to show a progress bar.

    Raises
    ------
    InputError
        If ``tol`` does not lie between 0 and 1.
    """

    budget: int | None = None
    tol: float | None = None
    history: bool | Sequence[int] = False
    random_state: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        check_tolerance(self.tol)

    def generator(self, device: torch.device) -> torch.Generator:
        """Return a generator in the state that ``random_state`` asks for."""
        generator = torch.Generator(device)
        generator.seed() if self.random_state is None else generator.manual_seed(self.random_state)
        return generator

    def resolve_budget(self, method: SamplingMethod, players: int) -> int:
        """Return the budget for a method and a number of players.

        Raises
        ------
        InputError
            If the budget is smaller than the method needs.
        """
        smallest = method.smallest_budget(players)
        if self.budget is None:
            return max(DEFAULT_EVALUATIONS_PER_PLAYER * players + 2, smallest)
        if self.budget < smallest:
            raise InputError(
                f"budget is {self.budget}: {method.name} needs at least {smallest} evaluations for {players} "
                "players"
            )
        return self.budget

    def history_budgets(self, smallest: int, budget: int) -> list[int]:
        """Return the budgets, in increasing order, at which values are kept.

        Raises
        ------
        InputError
            If ``history`` names a budget below ``smallest`` or above ``budget``, or none.
        """
        if self.history is False:
            return []
        if self.history is True:
            steps = np.geomspace(smallest, budget, HISTORY_STEPS)
            return sorted({int(step) for step in steps[:-1]} | {budget})
        chosen = sorted(int(b) for b in self.history)
        if not chosen or chosen[0] < smallest or chosen[-1] > budget:
            raise InputError(f"history is {list(self.history)}: give budgets from {smallest} to {budget}")
        return chosen


class Sampler(Protocol):
    """A block of rows whose values are being estimated."""

    def extend(self, units: int) -> None:
        """Evaluate ``units`` more units (coalitions, pairs or permutations) of each row."""

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Return values and standard errors, each (rows, players, outputs)."""

    def keep(self, rows: Tensor) -> None:
        """Continue with the rows under this mask only."""


@dataclass(frozen=True)
class Block:
    """Rows whose values are estimated together.

    Attributes
    ----------
    value_function : ValueFunction
        The game.
    numbers : Tensor of shape (n,)
        The numbers of the rows in the user's input, for error messages.
    x : Tensor of shape (n, ...)
        The encoded rows.
    null, total : Tensor of shape (n, outputs)
        The value of the empty coalition, and the grand coalition's value minus it.
    """

    value_function: ValueFunction
    numbers: Tensor
    x: Tensor
    null: Tensor
    total: Tensor

    def __getitem__(self, rows: Tensor) -> Block:
        return Block(self.value_function, self.numbers[rows], self.x[rows], self.null[rows], self.total[rows])


@dataclass(frozen=True)
class SamplingMethod:
    """How one estimator samples.

    Parameters
    ----------
    name : str
        Its name in error messages and progress bars.
    unit_cost : int
        The number of evaluations of one unit (a coalition, a pair, a permutation).
    fewest, most : int, float
        The smallest number of units that it needs, and the number of units that exist.
    start : callable
        Returns the `Sampler` of a block, given a generator and the number of units that it will be asked for.
    """

    name: str
    unit_cost: int
    fewest: int
    start: Callable[[Block, torch.Generator, int], Sampler]
    most: float = math.inf

    def smallest_budget(self, players: int) -> int:
        """Return the smallest number of evaluations per row, null and grand included."""
        return 2 + self.unit_cost * self.fewest if players > 1 else 2

    def units(self, budget: int) -> int:
        """Return the number of units that a budget pays for."""
        return int(min(self.most, (budget - 2) // self.unit_cost))

    def checks(self, units: int) -> list[int]:
        """Return the numbers of units, below ``units``, at which rows are checked for convergence.

        They grow geometrically. The first one is large enough for the standard errors to be meaningful.
        """
        checks = []
        check = max(self.fewest, FIRST_CHECK_UNITS, FIRST_CHECK_EVALUATIONS // self.unit_cost)
        numerator, denominator = CHECK_GROWTH
        while check < units:
            checks.append(check)
            check = max(check + 1, check * numerator // denominator)
        return checks


def estimate_by_sampling(
    method: SamplingMethod, value_function: ValueFunction, x: Tensor, options: SamplingOptions
) -> Estimate:
    """Run a sampling method on blocks of rows until each row has converged or spent its budget.

    Parameters
    ----------
    method : SamplingMethod
        How units are drawn and values are computed from them.
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    options : SamplingOptions
        What the caller asks for.

    Returns
    -------
    Estimate
        Values, standard errors, evaluations and convergence of each row.

    Raises
    ------
    InputError
        If the budget is too small for the method, or a budget of the history lies outside it.
    """
    players = value_function.players
    budget = options.resolve_budget(method, players)
    budgets = options.history_budgets(method.smallest_budget(players), budget)
    generator = options.generator(x.device)
    size = max(1, memory.BLOCK_BYTES // (budget * (16 * players + 32 * value_function.outputs)))
    parts = []
    with tqdm(total=len(x) * budget, desc=method.name, unit="evaluation", disable=not options.progress) as bar:
        for numbers in torch.arange(len(x), device=x.device).split(size):
            rows = x[numbers]
            null, grand = (f(value_function, rows, numbers) for f in (null_values, grand_values))
            block = Block(value_function, numbers, rows, null, grand - null)
            if players == 1:
                parts.append(_one_player(block, len(budgets)))
            else:
                units, *stops = (method.units(b) for b in (budget, *budgets))
                sampler = method.start(block, generator, units)
                parts.append(_run(sampler, block, method, _Schedule(units, stops, options.tol)))
            bar.update(len(numbers) * budget)
    columns = [[part[i].cpu().numpy() for part in parts] for i in range(5)]
    values, stderr, spent, converged = (np.concatenate(column) for column in columns[:4])
    past = np.concatenate(columns[4], axis=1) if budgets else np.empty(0)
    return Estimate(values, stderr, spent, converged, np.array(budgets, dtype=np.int64), past)


def _one_player(block: Block, steps: int) -> tuple[Tensor, ...]:
    """Give the only player the whole total; the result is that of `_run`."""
    values = block.total[:, None]
    ones = torch.ones(len(values), dtype=torch.long, device=values.device)
    return values, torch.zeros_like(values), 2 * ones, ones.bool(), values.expand(steps, *values.shape)


@dataclass(frozen=True)
class _Schedule:
    """The number of units to draw, the numbers at which values are kept, and the tolerance."""

    units: int
    stops: Sequence[int]
    tol: float | None


def _run(sampler: Sampler, block: Block, method: SamplingMethod, schedule: _Schedule) -> tuple[Tensor, ...]:
    """Return values, standard errors, evaluations, convergence, and the values at each of the schedule's stops.

    Rows may converge at the method's checks and at the end only, so that a history does not change the result.
    """
    shape = (len(block.x), block.value_function.players, block.value_function.outputs)
    values = block.null.new_zeros(shape)
    stderr = torch.zeros_like(values)
    spent = torch.zeros(shape[0], dtype=torch.long, device=values.device)
    converged = torch.zeros(shape[0], dtype=torch.bool, device=values.device)
    units, stops, tol = schedule.units, schedule.stops, schedule.tol
    checks = [] if tol is None else [*method.checks(units), units]
    past: dict[int, Tensor] = {}
    active = torch.arange(shape[0], device=values.device)
    done = 0
    for stop in sorted({units, *stops, *checks}):
        if len(active):
            sampler.extend(stop - done)
            values[active], stderr[active] = sampler.estimate()
            spent[active] = 2 + method.unit_cost * stop
        done = stop
        past[stop] = values.clone()
        if tol is not None and len(active) and stop in checks:
            ready = within_tolerance(values[active], stderr[active], tol)
            converged[active[ready]] = True
            active = active[~ready]
            sampler.keep(~ready)
    steps = [past[stop] for stop in stops]
    return values, stderr, spent, converged, torch.stack(steps) if steps else values.new_zeros(0)
