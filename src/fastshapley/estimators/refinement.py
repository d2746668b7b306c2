"""From a network's values to the exact ones: evaluations are spent where they are most needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from fastshapley.coalitions import curvature
from fastshapley.errors import InputError
from fastshapley.estimators.exact import MAX_PLAYERS, exact
from fastshapley.estimators.kernel import draw_pairs, sampling_variance
from fastshapley.estimators.sampling import Estimate
from fastshapley.value_functions.protocol import ValueFunction

_ENTRIES = 1 << 24  # of the matrices that are kept at once
_EVALUATIONS = 1 << 16  # coalitions times rows in one part
_FEWEST, _MOST = 0.25, 16.0  # pairs of a row, relative to the mean
_STEP = 2**0.25  # rows have one of these many pairs, for evaluating them together
_TINY = 1e-30
_GROWTH = 1.5  # of the pairs of rows that are not close enough yet


@dataclass(frozen=True)
class Prior:
    """What is known of rows before any evaluation.

    values: (n, players, outputs), which sum to grand minus null. variance: of each, of the same shape.
    noise, profile: of what a pair leaves unexplained, (n, outputs), and by size, (players // 2,): see `Residuals`.
    """

    values: Tensor
    variance: Tensor
    noise: Tensor
    profile: Tensor

    def __getitem__(self, rows: Tensor) -> Prior:
        return Prior(self.values[rows], self.variance[rows], self.noise[rows], self.profile)


def refine(
    value_function: ValueFunction,
    x: Tensor,
    prior: Prior,
    *,
    budget: int | None = None,
    tol: float | None = None,
    random_state: int | None = None,
    progress: bool = False,
) -> Estimate:
    """Shapley values of each row of ``x``: those of the prior, corrected by pairs of coalitions.

    budget: evaluations a row, on average over the rows, null and grand included; a row gets the more of them the
        larger its error is thought to be. With all coalitions in its budget a row is exact.
    tol: a row stops as soon as its largest standard error is below ``tol`` times the range of its values; one of
        the prior that is, is left as it is. With a budget too, at most that is spent on a row.

    Values are the mean of the posterior: least squares with the Shapley kernel's weights, drawn towards the prior
    by each value's own variance. What is evaluated outweighs the prior in the end.
    """
    players = value_function.players
    most = _all_pairs(players)
    if budget is None and tol is None:
        raise InputError("refining needs a budget of evaluations a row, or a tol")
    given: Any
    for argument, given in (("budget", budget), ("tol", tol)):
        if given is not None and not (isinstance(given, Real) and math.isfinite(given)):
            raise InputError(f"{argument} is {given!r}: pass a finite number")
    if budget is not None and budget < 4:
        raise InputError(f"budget is {budget}: a row takes at least 4 evaluations, for null, grand and a pair")
    if tol is not None and not 0 < tol < 1:
        raise InputError(f"tol is {tol}: it must lie between 0 and 1")
    generator = torch.Generator(x.device)
    generator.seed() if random_state is None else generator.manual_seed(random_state)
    mean = math.inf if budget is None else (budget - 2) // 2
    if players == 1 or len(x) == 0:
        planned = torch.zeros(len(x), dtype=torch.long, device=x.device)
    elif tol is None:
        planned = allocate(prior, mean, most)
    else:
        planned = torch.full((len(x),), int(min(mean, most)), device=x.device)
    parts = []
    with tqdm(total=len(x), desc="refining", unit="row", disable=not progress) as bar:
        for numbers in torch.arange(len(x), device=x.device).split(max(1, _ENTRIES // players**2)):
            block = _Block(value_function, x[numbers], prior[numbers], numbers, generator)
            if tol is None:
                block.draw(planned[numbers])
            else:
                block.draw_until(tol, planned[numbers])
            parts.append((*block.estimate(), 2 + 2 * block.pairs))
            bar.update(len(numbers))
    values, stderr, spent = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    converged = torch.ones(len(x), dtype=torch.bool) if tol is None else _close_enough(values, stderr, tol)
    return Estimate(values.numpy(), stderr.numpy(), spent.numpy(), converged.numpy())


def allocate(prior: Prior, mean: float, most: int) -> Tensor:
    """How many pairs each row gets, (n,): as many that, at the margin, none would gain more from one than another.

    How a row's variances fall with its pairs is known beforehand, or nearly. The mean is ``mean`` at most; each row
    has between a quarter and sixteen times that, or ``most``.
    """
    players = prior.values.shape[1]
    fewest, highest = min(max(1.0, _FEWEST * mean), most), min(_MOST * mean, most)
    steps = torch.arange(math.ceil(math.log(max(1.0, highest / fewest), _STEP)) + 1).double()
    levels = (fewest * _STEP**steps).clamp(max=highest).long().unique().to(prior.noise.device)
    before = 1 / prior.variance.clamp(min=_TINY)
    left = []
    for pairs in levels.tolist():
        sampling = sampling_variance(players, pairs, prior.profile.tolist())
        precision = before + 1 / (sampling * prior.noise[:, None]).clamp(min=_TINY)
        left.append((1 / precision).sum((1, 2)))
    variances, low, high = torch.stack(left), -700.0, 700.0
    for _ in range(60):  # for the price of a pair, by its logarithm, at which they come to their mean
        middle = (low + high) / 2
        pairs = _cheapest(levels, variances, middle)
        low, high = (middle, high) if float(pairs.double().mean()) > mean else (low, middle)
    return _cheapest(levels, variances, high)


def _cheapest(levels: Tensor, variances: Tensor, price: float) -> Tensor:
    """The level of each row at which its variances, and what the pairs cost, are least together."""
    return levels[(variances + math.exp(price) * levels[:, None]).argmin(0)]


class _Block:
    """Some rows, and the weighted least squares of what was evaluated for them so far."""

    def __init__(
        self, value_function: ValueFunction, x: Tensor, prior: Prior, numbers: Tensor, generator: torch.Generator
    ) -> None:
        self.game, self.x, self.prior, self.numbers, self.generator = value_function, x, prior, numbers, generator
        n, players, outputs = prior.values.shape
        self.gram = prior.values.new_zeros(n, players, players)
        self.right = prior.values.new_zeros(n, players, outputs)
        self.pairs = torch.zeros(n, dtype=torch.long, device=x.device)
        self.exact = prior.values.new_full(prior.values.shape, torch.nan)  # where all coalitions were evaluated
        self.most = _all_pairs(players)

    def draw(self, pairs: Tensor) -> None:
        """Evaluate so many more pairs of each row, (n,), or all that there are."""
        for count in pairs.unique().tolist():
            together = (pairs == count).nonzero()[:, 0]
            done = self.pairs[together] + count >= self.most
            if self.game.players <= MAX_PLAYERS and done.any():
                self._enumerate(together[done])
                together = together[~done]
            if count and len(together):
                for rows in together.split(max(1, _EVALUATIONS // (2 * count))):
                    self._add(rows, count)

    def draw_until(self, tol: float, most: Tensor) -> None:
        """Evaluate pairs until each row is close enough, or has so many, (n,)."""
        while True:
            open_rows = ~_close_enough(*self.estimate(), tol) & (self.pairs < most)
            if self.game.players == 1 or not open_rows.any():
                return
            wanted = (_GROWTH * self.pairs).long().clamp(min=self.game.players).minimum(most)
            self.draw(torch.where(open_rows, wanted - self.pairs, 0))

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Values and standard errors, each (n, players, outputs): the posterior's."""
        values, stderr = [], []
        for k in range(self.right.shape[2]):
            noise = self.prior.noise[:, k, None].clamp(min=_TINY)
            precision = self.gram / noise[..., None]
            precision = precision + torch.diag_embed(1 / self.prior.variance[:, :, k].clamp(min=_TINY))
            covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
            moved = (covariance @ (self.right[:, :, k] / noise)[..., None])[..., 0]
            towards = covariance.sum(2)  # values sum to grand minus null, before and after
            scale = towards.sum(1, keepdim=True)
            values.append(self.prior.values[:, :, k] + moved - towards * moved.sum(1, keepdim=True) / scale)
            left = covariance.diagonal(dim1=1, dim2=2) - towards.square() / scale
            stderr.append(left.clamp(min=0).sqrt())
        found = self.exact.isfinite()
        return (
            torch.where(found, self.exact, torch.stack(values, dim=2)),
            torch.where(found, 0.0, torch.stack(stderr, dim=2)),
        )

    def _add(self, rows: Tensor, count: int) -> None:
        drawn = draw_pairs(self.game, self.x[rows], count, self.generator, self.numbers[rows])
        players = self.game.players
        variance = max(sampling_variance(players, count, self.prior.profile.tolist()), _TINY)
        z = drawn.z.double()
        rest = drawn.u - z @ self.prior.values[rows]
        # the mean of the weighted z z' is four times the curvature: their sum is made the precision that they bring
        weight = drawn.weight / (4 * curvature(players) * count * variance)
        z = _without_size(z, weight)
        weighted = (z * weight[:, None]).transpose(1, 2)
        self.gram[rows] += weighted @ z
        self.right[rows] += weighted @ rest
        self.pairs[rows] += count

    def _enumerate(self, rows: Tensor) -> None:
        found = exact(self.game, self.x[rows])
        self.exact[rows] = torch.from_numpy(found.values).to(self.exact)
        self.pairs[rows] = self.most


def _all_pairs(players: int) -> int:
    """How many pairs there are, as far as whole numbers of a tensor go."""
    return (1 << min(players - 1, 62)) - 1


def _without_size(z: Tensor, weight: Tensor) -> Tensor:
    """The design z (n, pairs, players) with what depends on the coalitions' sizes alone taken out.

    A game's values rise with the size in a way that no values of players explain, which would be noise; and size
    tells nothing of what sets the players apart. An odd polynomial is enough of it.
    """
    share = z.mean(2, keepdim=True)
    size = torch.cat([share, share**3], dim=2)
    weighted = (size * weight[:, None]).transpose(1, 2)
    return z - size @ (torch.linalg.pinv(weighted @ size, hermitian=True) @ (weighted @ z))


def _close_enough(values: Tensor, stderr: Tensor, tol: float) -> Tensor:
    """Whether each row's largest standard error is below ``tol`` times the range of its values, (n,)."""
    spread = values.amax((1, 2)) - values.amin((1, 2))
    return stderr.amax((1, 2)) <= tol * spread
