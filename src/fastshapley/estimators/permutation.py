"""Shapley values by sampling orders in which the players join."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastshapley.estimators.sampling import Block, Estimate, estimate_by_sampling
from fastshapley.value_functions.protocol import ValueFunction, evaluate

_EVALUATIONS = 1 << 16  # coalitions times rows in one evaluation


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
    """Shapley values of each row of ``x`` from at most ``budget`` evaluations, null and grand included.

    A player's value is its mean contribution when it joins those before it. An order of the players takes
    ``players - 1`` evaluations; with ``antithetic`` each comes with its reverse. ``budget``, ``tol`` and
    ``history`` are as for `kernel`.
    """
    players = value_function.players
    return estimate_by_sampling(
        "the permutation estimator",
        value_function,
        x,
        lambda block, generator, units: _Orders(block, generator, antithetic=antithetic),
        unit=(players - 1) * (2 if antithetic else 1),
        fewest=2,  # one would have no standard error
        budget=budget,
        tol=tol,
        history=history,
        random_state=random_state,
        progress=progress,
    )


class _Orders:
    """Rows and the sums over their orders so far; meets `Sampler`."""

    def __init__(self, block: Block, generator: torch.Generator, *, antithetic: bool) -> None:
        self.block, self.generator, self.antithetic = block, generator, antithetic
        shape = (len(block.x), block.value_function.players, block.value_function.outputs)
        self.count = 0
        self.mean = block.null.new_zeros(shape)
        self.squares = block.null.new_zeros(shape)  # of the deviations from the mean

    def extend(self, units: int) -> None:
        per_call = max(1, _EVALUATIONS // (2 * self.block.value_function.players * max(1, len(self.block.x))))
        while units > 0:
            values = self._contributions(min(units, per_call))
            fresh = values.shape[1]
            units -= fresh
            # Welford's update, for numbers that are large beside their spread
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
        """What each player adds in each of so many fresh orders (pairs of orders), (n, units, players, outputs)."""
        n, players = len(self.block.x), self.block.value_function.players
        keys = torch.rand(n, units, players, generator=self.generator, device=self.generator.device)
        position = keys.argsort(2)  # of each player, from 0
        if self.antithetic:
            position = torch.cat([position, players - 1 - position], dim=1)
        joined = torch.arange(1, players, device=position.device)
        s = position[:, :, None] < joined[:, None]  # (n, orders, players - 1, players)
        parts = []
        size = max(1, _EVALUATIONS // (s.shape[1] * s.shape[2]))
        for x, c, numbers in zip(
            self.block.x.split(size), s.split(size), self.block.numbers.split(size), strict=True
        ):
            parts.append(evaluate(self.block.value_function, x, c.flatten(1, 2), numbers))
        v = torch.cat(parts).unflatten(1, s.shape[1:3])
        ends = (self.block.null, self.block.null + self.block.total)
        first, last = (end[:, None, None].expand(-1, v.shape[1], -1, -1) for end in ends)
        added = torch.cat([first, v, last], dim=2).diff(dim=2)  # by position
        index = position[..., None].expand(*position.shape, added.shape[-1])
        values = added.gather(2, index)
        return (values[:, :units] + values[:, units:]) / 2 if self.antithetic else values
