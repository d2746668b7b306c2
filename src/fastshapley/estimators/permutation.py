"""Shapley values by sampling orders in which the players join."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastshapley.estimators import memory
from fastshapley.estimators.estimate import Estimate
from fastshapley.estimators.sampling import Block, SamplingMethod, SamplingOptions, estimate_by_sampling
from fastshapley.value_functions.protocol import ValueFunction, evaluate


def permutation(
    value_function: ValueFunction,
    x: Tensor,
    *,
    budget: int | None = None,
    tol: float | None = None,
    antithetic: bool = True,
    history: bool | Sequence[int] = False,
    random_state: int | None = None,
    progress: bool = False,
) -> Estimate:
    """Estimate the Shapley values of each row of ``x`` from random orders of the players.

    A player's value is its mean contribution when it joins the players before it. An order takes ``players - 1``
    evaluations.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    budget : int or None, default=None
        The largest number of evaluations per row, null and grand included. By default there are 64 per player.
    tol : float or None, default=None
        A row stops as soon as its largest standard error is at most ``tol`` times the range of its values.
    antithetic : bool, default=True
        Whether each order is evaluated together with its reverse.
    history : bool or sequence of int, default=False
        Whether to keep the values at intermediate budgets, or the budgets at which to keep them.
    random_state : int or None, default=None
        The seed of the orders.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    Estimate
        Values, standard errors, evaluations and convergence of each row.

    Raises
    ------
    InputError
        If the budget is too small, ``tol`` does not lie between 0 and 1, or ``history`` lies outside the budget.
    """
    method = SamplingMethod(
        name="the permutation estimator",
        unit_cost=(value_function.players - 1) * (2 if antithetic else 1),
        fewest=2,  # A single order would have no standard error.
        start=lambda block, generator, units: _Orders(block, generator, antithetic=antithetic),
    )
    options = SamplingOptions(budget, tol, history, random_state, progress)
    return estimate_by_sampling(method, value_function, x, options)


class _Orders:
    """The rows of a block and the sums over their orders so far. It implements `Sampler`."""

    def __init__(self, block: Block, generator: torch.Generator, *, antithetic: bool) -> None:
        self.block, self.generator, self.antithetic = block, generator, antithetic
        shape = (len(block.x), block.value_function.players, block.value_function.outputs)
        self.count = 0
        self.mean = block.null.new_zeros(shape)
        self.squares = block.null.new_zeros(shape)  # The sum of squared deviations from the mean.

    def extend(self, units: int) -> None:
        players = self.block.value_function.players
        per_call = max(1, memory.EVALUATIONS_PER_CALL // (2 * players * max(1, len(self.block.x))))
        while units > 0:
            values = self._contributions(min(units, per_call))
            fresh = values.shape[1]
            units -= fresh
            # Welford's update is accurate for values that are large compared with their variation.
            mean = values.mean(1)
            change = mean - self.mean
            both = self.count + fresh
            self.squares += (values - mean[:, None]).square().sum(1)
            self.squares += change.square() * (self.count * fresh / both)
            self.mean += change * (fresh / both)
            self.count = both

    def estimate(self) -> tuple[Tensor, Tensor]:
        return self.mean.clone(), (self.squares / ((self.count - 1) * self.count)).sqrt()

    def keep(self, rows: Tensor) -> None:
        self.block, self.mean, self.squares = self.block[rows], self.mean[rows], self.squares[rows]

    def _contributions(self, units: int) -> Tensor:
        """Return each player's contribution in each of ``units`` new orders, (n, units, players, outputs).

        With ``antithetic``, a unit is an order and its reverse, and the contribution is the mean of both.
        """
        n, players = len(self.block.x), self.block.value_function.players
        keys = torch.rand(n, units, players, generator=self.generator, device=self.generator.device)
        position = keys.argsort(2)  # The position of each player in the order, from 0.
        if self.antithetic:
            position = torch.cat([position, players - 1 - position], dim=1)
        joined = torch.arange(1, players, device=position.device)
        s = position[:, :, None] < joined[:, None]  # (n, orders, players - 1, players)
        parts = []
        size = max(1, memory.EVALUATIONS_PER_CALL // (s.shape[1] * s.shape[2]))
        for x, c, numbers in zip(
            self.block.x.split(size), s.split(size), self.block.numbers.split(size), strict=True
        ):
            parts.append(evaluate(self.block.value_function, x, c.flatten(1, 2), numbers))
        v = torch.cat(parts).unflatten(1, s.shape[1:3])
        ends = (self.block.null, self.block.null + self.block.total)
        first, last = (end[:, None, None].expand(-1, v.shape[1], -1, -1) for end in ends)
        added = torch.cat([first, v, last], dim=2).diff(dim=2)  # Contributions by position in the order.
        index = position[..., None].expand(*position.shape, added.shape[-1])
        values = added.gather(2, index)
        return (values[:, :units] + values[:, units:]) / 2 if self.antithetic else values
