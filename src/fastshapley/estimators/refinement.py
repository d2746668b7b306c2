"""Refinement of a network's values towards the exact ones, with evaluations spent where they are most needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.coalitions import curvature, pair_count
from fastshapley.errors import InputError
from fastshapley.estimators import memory
from fastshapley.estimators.estimate import Estimate, check_tolerance, within_tolerance
from fastshapley.estimators.exact import MAX_PLAYERS, exact
from fastshapley.estimators.kernel import draw_pairs, sampling_variance
from fastshapley.value_functions.protocol import ValueFunction

SMALLEST_BUDGET = 4  # Evaluations of a row: null, grand and one pair.
LARGEST_COUNT = (1 << 62) - 1  # Pairs are counted in 64-bit integers, and sums of two counts must fit.
FEWEST_PAIRS, MOST_PAIRS = 0.25, 16.0  # The bounds of a row's pairs, relative to the mean over rows.
LEVEL_STEP = 2**0.25  # The ratio of neighbouring numbers of pairs; rows with equal numbers are evaluated together.
GROWTH = 1.5  # The factor by which pairs grow, round by round, for rows that are not within the tolerance.
PRICE_STEPS = 60  # Steps of the bisection for the price of a pair.
LOG_PRICE_BOUND = 700.0  # The largest magnitude of its logarithm; exp(710) is not finite.
_TINY = 1e-30  # Stands for zero where a variance is divided by.


@dataclass(frozen=True)
class RefinementOptions:
    """What a caller asks of `refine`. A budget, a tolerance or both are needed.

    Parameters
    ----------
    budget : int or None, default=None
        The mean number of evaluations per row, null and grand included. Rows whose error is thought to be larger
        get more. A row with all coalitions in its budget is exact.
    tol : float or None, default=None
        A row stops as soon as its largest standard error is at most ``tol`` times the range of its values; rows of
        the prior that already meet it stay as they are. Together with a budget, no row gets more than the budget.
    random_state : int or None, default=None
        The seed of the coalitions.
    progress : bool, default=False
        Whether to show a progress bar.

    Raises
    ------
    InputError
        If both are missing, or one is not a finite number within its range.
    """

    budget: int | None = None
    tol: float | None = None
    random_state: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.budget is None and self.tol is None:
            raise InputError("budget and tol are both None: pass a budget of evaluations per row, or a tol")
        given: Any
        for argument, given in (("budget", self.budget), ("tol", self.tol)):
            if given is not None and not (isinstance(given, Real) and math.isfinite(given)):
                raise InputError(f"{argument} is {given!r}: pass a finite number")
        if self.budget is not None and self.budget < SMALLEST_BUDGET:
            raise InputError(
                f"budget is {self.budget}: a row takes at least {SMALLEST_BUDGET} evaluations, for null, grand and "
                "a pair"
            )
        check_tolerance(self.tol)

    def mean_pairs(self) -> float:
        """Return the mean number of pairs per row that the budget pays for; infinite without a budget."""
        return math.inf if self.budget is None else (self.budget - 2) // 2


@dataclass(frozen=True)
class Prior:
    """What is known about rows before any evaluation.

    Attributes
    ----------
    values : Tensor of shape (n, players, outputs)
        The values to start from. They must sum to grand minus null.
    variance : Tensor of shape (n, players, outputs)
        The variance of each value.
    noise : Tensor of shape (n, outputs)
        The variance of what exact values leave unexplained of a pair (see `Residuals`).
    profile : Tensor of shape (players // 2,)
        That variance by size, relative to ``noise``.
    """

    values: Tensor
    variance: Tensor
    noise: Tensor
    profile: Tensor

    def __getitem__(self, rows: Tensor) -> Prior:
        return Prior(self.values[rows], self.variance[rows], self.noise[rows], self.profile)


def refine(value_function: ValueFunction, x: Tensor, prior: Prior, options: RefinementOptions) -> Estimate:
    """Correct the values of a prior by evaluating pairs of coalitions.

    The result is the mean of the posterior: least squares with the Shapley kernel's weights, shrunk towards the
    prior by each value's own variance. With more evaluations the prior matters less.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor of shape (n, ...)
        The encoded rows.
    prior : Prior
        Values of these rows, and how uncertain they are.
    options : RefinementOptions
        The budget or the tolerance, and the seed.

    Returns
    -------
    Estimate
        Values, standard errors, evaluations and convergence of each row.
    """
    players, tol = value_function.players, options.tol
    generator = torch.Generator(x.device)
    generator.seed() if options.random_state is None else generator.manual_seed(options.random_state)
    planned = _plan(prior, len(x), options)
    parts = []
    with tqdm(total=len(x), desc="refining", unit="row", disable=not options.progress) as bar:
        for numbers in torch.arange(len(x), device=x.device).split(max(1, memory.ENTRIES_PER_BLOCK // players**2)):
            block = _Block(value_function, x[numbers], prior[numbers], numbers, generator)
            if tol is None:
                block.draw(planned[numbers])
            else:
                block.draw_until(tol, planned[numbers])
            parts.append((*block.estimate(), 2 + 2 * block.pairs))
            bar.update(len(numbers))
    values, stderr, spent = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    converged = torch.ones(len(x), dtype=torch.bool) if tol is None else within_tolerance(values, stderr, tol)
    return Estimate(values.numpy(), stderr.numpy(), spent.numpy(), converged.numpy())


def allocate(prior: Prior, mean: float, most: int) -> Tensor:
    """Divide pairs among rows so that one more pair would reduce the variance of every row by the same amount.

    The fall of a row's variances with its pairs is nearly known beforehand.

    Parameters
    ----------
    prior : Prior
        The variances and the noise of each row.
    mean : float
        The largest mean number of pairs per row. Each row gets between a quarter and sixteen times that.
    most : int
        The number of pairs that exist.

    Returns
    -------
    Tensor of shape (n,)
        The number of pairs of each row.
    """
    players = prior.values.shape[1]
    fewest, highest = min(max(1.0, FEWEST_PAIRS * mean), most), min(MOST_PAIRS * mean, most)
    steps = torch.arange(math.ceil(math.log(max(1.0, highest / fewest), LEVEL_STEP)) + 1).double()
    levels = (fewest * LEVEL_STEP**steps).clamp(max=highest).long().unique().to(prior.noise.device)
    before = 1 / prior.variance.clamp(min=_TINY)
    after = []
    for pairs in levels.tolist():
        sampling = sampling_variance(players, pairs, prior.profile.tolist())
        precision = before + 1 / (sampling * prior.noise[:, None]).clamp(min=_TINY)
        after.append((1 / precision).sum((1, 2)))
    variances, low, high = torch.stack(after), -LOG_PRICE_BOUND, LOG_PRICE_BOUND
    for _ in range(PRICE_STEPS):  # Find the logarithm of the price of a pair at which rows take ``mean`` pairs.
        middle = (low + high) / 2
        pairs = _cheapest(levels, variances, middle)
        low, high = (middle, high) if float(pairs.double().mean()) > mean else (low, middle)
    return _cheapest(levels, variances, high)


def _cheapest(levels: Tensor, variances: Tensor, log_price: float) -> Tensor:
    """Return for each row the level at which the sum of its variances and of the price of its pairs is smallest."""
    return levels[(variances + math.exp(log_price) * levels[:, None]).argmin(0)]


def _existing_pairs(players: int) -> int:
    """Return the number of pairs that exist, or the largest number that a tensor can count."""
    return min(pair_count(players), LARGEST_COUNT)


def _plan(prior: Prior, rows: int, options: RefinementOptions) -> Tensor:
    """Return the number of pairs of each row, (rows,): planned without a tolerance, and a limit with one."""
    players, device = prior.values.shape[1], prior.values.device
    existing, mean = _existing_pairs(players), options.mean_pairs()
    if players == 1 or rows == 0:
        return torch.zeros(rows, dtype=torch.long, device=device)
    if options.tol is None:
        return allocate(prior, mean, existing)
    return torch.full((rows,), int(min(mean, existing)), device=device)


class _Block:
    """Some rows, and the weighted least squares over the pairs that were evaluated for them so far."""

    def __init__(
        self, value_function: ValueFunction, x: Tensor, prior: Prior, numbers: Tensor, generator: torch.Generator
    ) -> None:
        self.game, self.x, self.prior, self.numbers, self.generator = value_function, x, prior, numbers, generator
        n, players, outputs = prior.values.shape
        self.gram = prior.values.new_zeros(n, players, players)
        self.right = prior.values.new_zeros(n, players, outputs)
        self.pairs = torch.zeros(n, dtype=torch.long, device=x.device)
        self.exact = prior.values.new_full(
            prior.values.shape, torch.nan
        )  # Set where all coalitions were evaluated.
        self.existing = _existing_pairs(players)

    def draw(self, pairs: Tensor) -> None:
        """Evaluate ``pairs`` (n,) more pairs of each row, or all coalitions if that is as many."""
        for count in pairs.unique().tolist():
            together = (pairs == count).nonzero()[:, 0]
            done = self.pairs[together] + count >= self.existing
            if self.game.players <= MAX_PLAYERS and done.any():
                self._enumerate(together[done])
                together = together[~done]
            if count and len(together):
                for rows in together.split(max(1, memory.EVALUATIONS_PER_CALL // (2 * count))):
                    self._add(rows, count)

    def draw_until(self, tol: float, most: Tensor) -> None:
        """Evaluate pairs until each row is within the tolerance, or has as many as ``most`` (n,) allows."""
        while True:
            open_rows = ~within_tolerance(*self.estimate(), tol) & (self.pairs < most)
            if self.game.players == 1 or not open_rows.any():
                return
            wanted = (GROWTH * self.pairs).long().clamp(min=self.game.players).minimum(most)
            self.draw(torch.where(open_rows, wanted - self.pairs, 0))

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Return the values and standard errors of the posterior, each (n, players, outputs)."""
        values, stderr = [], []
        for k in range(self.right.shape[2]):
            noise = self.prior.noise[:, k, None].clamp(min=_TINY)
            precision = self.gram / noise[..., None]
            precision = precision + torch.diag_embed(1 / self.prior.variance[:, :, k].clamp(min=_TINY))
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
            moved = (covariance @ (self.right[:, :, k] / noise)[..., None])[..., 0]
            towards = covariance.sum(2)  # Keeps the sum of the values at grand minus null.
            scale = towards.sum(1, keepdim=True)
            values.append(self.prior.values[:, :, k] + moved - towards * moved.sum(1, keepdim=True) / scale)
            variance = covariance.diagonal(dim1=1, dim2=2) - towards.square() / scale
            stderr.append(variance.clamp(min=0).sqrt())
        known = self.exact.isfinite()
        return (
            torch.where(known, self.exact, torch.stack(values, dim=2)),
            torch.where(known, 0.0, torch.stack(stderr, dim=2)),
        )

    def _add(self, rows: Tensor, count: int) -> None:
        """Evaluate ``count`` pairs of each of some rows, and add them to the least squares."""
        drawn = draw_pairs(self.game, self.x[rows], count, self.generator, self.numbers[rows])
        players = self.game.players
        variance = max(sampling_variance(players, count, self.prior.profile.tolist()), _TINY)
        z = drawn.z.double()
        rest = drawn.u - z @ self.prior.values[rows]
        # The mean of the weighted z z' is four times the curvature. This makes their sum the pairs' precision.
        weight = drawn.weight / (4 * curvature(players) * count * variance)
        z = _without_size(z, weight)
        weighted = (z * weight[:, None]).transpose(1, 2)
        self.gram[rows] += weighted @ z
        self.right[rows] += weighted @ rest
        self.pairs[rows] += count

    def _enumerate(self, rows: Tensor) -> None:
        """Evaluate all coalitions of some rows."""
        found = exact(self.game, self.x[rows])
        self.exact[rows] = torch.from_numpy(found.values).to(self.exact)
        self.pairs[rows] = self.existing


def _without_size(z: Tensor, weight: Tensor) -> Tensor:
    """Remove from the design z (n, pairs, players) what depends on the coalitions' sizes alone.

    A game's output changes with the size in a way that no values of players explain, which would be noise, and the
    size says nothing about differences between players. An odd cubic polynomial of the size is enough.
    """
    share = z.mean(2, keepdim=True)
    size = torch.cat([share, share**3], dim=2)
    weighted = (size * weight[:, None]).transpose(1, 2)
    return z - size @ (torch.linalg.pinv(weighted @ size, hermitian=True) @ (weighted @ z))
