"""Which game describes the model best, for each size of coalition: a weighted mean of three games.

The games are the surrogate, the model's mean output over sampled rows, and the surrogate plus the mean of what it
misses on sampled rows. For any game v, the mean of (f(x) - v(x, s))^2 over held-out rows is a constant plus the
mean squared distance of v to the true conditional expectation. This is the game's MSEv. It needs no truth, so games
can be compared by it, and averaged with the weights that make it smallest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastshapley.coalitions import subsets

DRAWS = 8  # draws of each of two samples for one coalition
COALITIONS = 8  # coalitions per held-out row and size, at most
EVALUATED = 4096  # coalitions of one size, at most
FEWEST = 32  # coalitions of one size below which nothing is compared
STEP = 0.15  # standard deviation, a priori, of the step between the weights of one size and of the next
DIGITS = 6  # of the weights
SWEEPS = 20  # passes over the sizes, after which the weights have settled
ROW_COALITIONS = 2  # coalitions of one row that count as independent; more of them tell little more
DIFFERENT = 2.0  # standard errors by which another sampler must be better to be chosen for one size

# rows, coalitions (n, players), starts (n, 2) -> two sample means of the model's and the surrogate's outputs, each
# (n, 2, outputs)
SampledOutputs = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Mix:
    """The weights of a mean of games.

    Attributes
    ----------
    sampled : float
        The weight of the model's mean output over sampled rows.
    corrected : float
        The weight of the surrogate plus the mean of what it misses on sampled rows. The surrogate alone has the
        rest.
    """

    sampled: float = 0.0
    corrected: float = 0.0

    @property
    def draws(self) -> bool:
        """Whether sampled rows have a part in the mean."""
        return self.sampled + self.corrected > 0

    def __call__(self, surrogate: Tensor, model_mean: Tensor, surrogate_mean: Tensor) -> Tensor:
        """Return the mean of the games.

        Parameters
        ----------
        surrogate : Tensor
            The surrogate's estimates.
        model_mean, surrogate_mean : Tensor
            The mean outputs of the model and of the surrogate over sampled rows.
        """
        return (
            (1 - self.sampled) * surrogate
            + (self.sampled + self.corrected) * model_mean
            - self.corrected * surrogate_mean
        )


@dataclass(frozen=True)
class SizeScore:
    """The MSEv of games for coalitions of one size, in units of the variance of the model's output.

    Attributes
    ----------
    size : int
        The number of known players.
    surrogate : float
        The surrogate's.
    sampled : tuple of float
        That of the model's mean output over the rows of each sampler.
    chosen : float
        That of the chosen mean of games.
    error : float
        The standard error of ``chosen``.
    doubt : float
        The estimated mean squared distance of the chosen game to the true conditional expectation, in the same
        units. It has two parts. If the errors of the surrogate and of the sampler are unrelated, the distance
        follows from how far the two games are apart and from which is closer to the model. And a regression on k
        columns from n rows leaves an error of k / n of the unexplained variance, which both games share.
    sampler : int
        The number of the chosen sampler.
    mix : Mix
        The weights of the games.
    """

    size: int
    surrogate: float
    sampled: tuple[float, ...]
    chosen: float
    error: float
    doubt: float
    sampler: int
    mix: Mix

    @classmethod
    def from_dict(cls, saved: dict[str, object]) -> SizeScore:
        """Return the score that `dataclasses.asdict` made a dictionary of."""
        return cls(**{**saved, "sampled": tuple(saved["sampled"]), "mix": Mix(**saved["mix"])})  # type: ignore


def knots(players: int) -> tuple[int, ...]:
    """Return the sizes at which games are compared: one player, quarters, and all but one."""
    sizes = {1, players // 4, players // 2, 3 * players // 4, players - 1}
    return tuple(sorted(size for size in sizes if 0 < size < players))


def calls_needed(samplers: int, players: int) -> int:
    """Return the model calls that comparing one coalition of each size takes."""
    return samplers * len(knots(players)) * 2 * DRAWS


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows on which games are compared.

    Attributes
    ----------
    x : Tensor of shape (n, columns)
        The rows.
    y : Tensor of shape (n, outputs)
        The model's outputs for them.
    players : int
        The number of players.
    coalitions : int
        The number of coalitions of each size.
    learnt_from : int
        The number of rows that the games have learnt from.
    """

    x: Tensor
    y: Tensor
    players: int
    coalitions: int
    learnt_from: int


def compare_games(
    expectation: Callable[[Tensor, Tensor], Tensor],
    samplers: Sequence[SampledOutputs],
    rows: HeldOut,
    generator: torch.Generator,
    *,
    linear: bool = True,
) -> tuple[SizeScore, ...]:
    """Compare the surrogate and the games of samplers on held-out rows.

    Parameters
    ----------
    expectation : callable
        The surrogate's estimates, (n, m, outputs), for rows and coalitions.
    samplers : sequence of callable
        The mean outputs over two samples of drawn rows.
    rows : HeldOut
        The rows, and the number of coalitions.
    generator : torch.Generator
        The source of random numbers.
    linear : bool
        Whether the corrected game may have a weight. Its values can leave the range of probabilities, which only
        the identity link allows.

    Returns
    -------
    tuple of SizeScore
        One for each of the `knots`; empty if there are too few coalitions.
    """
    x, y = rows.x, rows.y
    count = min(rows.coalitions, EVALUATED, COALITIONS * len(x))
    if count < min(FEWEST, len(x)) or not samplers:
        return ()
    variance = (y - y.mean(0)).square().sum(1).mean().clamp(min=1e-300)
    sizes, by_size = knots(rows.players), []
    for size in sizes:
        chosen = torch.randperm(COALITIONS * len(x), generator=generator, device=x.device)[:count] % len(x)
        s = subsets(torch.full((count, 1), size, device=x.device), rows.players, generator)
        surrogate = expectation(x[chosen], s)[:, 0].double()
        starts = torch.rand(count, 2, generator=generator, device=x.device, dtype=torch.float64)
        drawn = [sample(x[chosen], s[:, 0], starts) for sample in samplers]
        by_size.append([_Games(y[chosen], surrogate, *each, variance) for each in drawn])
    by_sampler = [_smooth_mixes(games, len(x), linear=linear) for games in zip(*by_size, strict=True)]
    found = [
        _Comparison(size, games, mixes)
        for size, games, mixes in zip(sizes, by_size, zip(*by_sampler, strict=True), strict=True)
    ]
    usual = _usual(found)
    return tuple(each.score(usual, rows.learnt_from) for each in found)


class _Games:
    """The games of one sampler at one size, as differences to the surrogate, in units of the output's deviation.

    ``missed`` (n, outputs) is the model's output minus the surrogate's estimate. ``steps`` (2, 2, n, outputs) are
    the sampled and the corrected game minus the surrogate's, for two samples.
    """

    def __init__(
        self, y: Tensor, surrogate: Tensor, model_means: Tensor, surrogate_means: Tensor, variance: Tensor
    ) -> None:
        unit = variance.sqrt()
        self.missed = (y - surrogate) / unit
        sampled, corrected = model_means - surrogate[:, None], model_means - surrogate_means
        self.steps = torch.stack([sampled, corrected]).movedim(2, 1) / unit

    def products(self, mix: Mix) -> Tensor:
        """Return an unbiased estimate of the MSEv of a mean of games from each coalition, (n,)."""
        first, second = (
            self.missed - mix.sampled * self.steps[0, i] - mix.corrected * self.steps[1, i] for i in (0, 1)
        )
        return (first * second).sum(1)

    def equations(self, games: int) -> tuple[Tensor, Tensor]:
        """Return G, a of the MSEv w G w - 2 a w + constant of weights w; two samples cancel the sampling noise."""
        first, second = self.steps[:games].flatten(2).unbind(1)  # (games, n * outputs) each
        gram = (first @ second.T + second @ first.T) / (2 * len(self.missed))
        along = (first + second) @ self.missed.flatten() / (2 * len(self.missed))
        return gram, along

    @property
    def noise(self) -> float:
        """The variance that a coalition's part in the second equation has, in units of the squared steps."""
        return float(self.missed.square().sum(1).mean())

    def doubt(self) -> float:
        """Return the estimated squared distance of the best mean of surrogate and sampled game to the truth."""
        one, two = self.steps[0]
        apart = float((one * two).sum(1).mean())
        along = float((self.missed * self.steps[0].mean(0)).sum(1).mean())
        if apart <= 1e-12:
            return 0.0
        weight = min(1.0, max(0.0, along / apart))
        return weight * (1 - weight) * apart


def _smooth_mixes(games: Sequence[_Games], rows: int, *, linear: bool) -> list[Mix]:
    """Return the weights with the smallest MSEv for each size, where neighbouring sizes have similar ones.

    The MSEv of small coalitions is mostly noise, which says little about weights. So the weights are a random walk
    over the sizes, a priori. It starts at the grand coalition, where the sampled games are the model itself.
    """
    count = 2 if linear else 1
    start = torch.full((count,), 1 / count, dtype=torch.float64)
    weights = [start] * len(games)
    equations = [[part.cpu() for part in each.equations(count)] for each in games]
    ridges = [each.noise / (min(len(each.missed), ROW_COALITIONS * rows) * STEP**2) for each in games]
    for _ in range(SWEEPS):
        for k in reversed(range(len(games))):
            near = [weights[k + 1] if k + 1 < len(games) else start, *weights[max(0, k - 1) : k]]
            gram, along = equations[k]
            pull = len(near) * ridges[k] * torch.eye(count, dtype=torch.float64)
            weights[k] = _within_simplex(gram + pull, along + ridges[k] * torch.stack(near).sum(0))
    # Sums of floating-point numbers depend on where they lie in memory. The same seed must give the same weights.
    return [Mix(*(round(weight, DIGITS) for weight in each.tolist())) for each in weights]


def _within_simplex(gram: Tensor, along: Tensor) -> Tensor:
    """Return the weights w, not negative and with a sum of at most 1, that make w G w - 2 a w smallest.

    The smallest value is inside of the triangle of weights, on one of its sides, or at a corner.
    """
    corners = torch.cat([torch.zeros_like(along)[None], torch.eye(len(along), dtype=along.dtype)])
    candidates = list(corners)
    for i, j in itertools.combinations(range(len(corners)), 2):
        side = corners[j] - corners[i]
        bend = side @ gram @ side
        if bend > 0:
            share = (side @ (along - gram @ corners[i]) / bend).clamp(0, 1)
            candidates.append(corners[i] + share * side)
    inner = torch.linalg.lstsq(gram, along).solution
    if (inner >= 0).all() and inner.sum() <= 1:
        candidates.append(inner)
    values = torch.stack([w @ gram @ w - 2 * along @ w for w in candidates])
    return candidates[int(values.argmin())]


class _Comparison:
    """The games of all samplers at one size."""

    def __init__(self, size: int, games: Sequence[_Games], mixes: Sequence[Mix]) -> None:
        self.size, self.games, self.mixes = size, games, mixes
        self.products = [each.products(mix) for each, mix in zip(games, mixes, strict=True)]

    def best(self, usual: int) -> int:
        """Return the best sampler, which is the usual one unless another is clearly better."""
        found, lowest = usual, 0.0
        for number, products in enumerate(self.products):
            difference = products - self.products[usual]
            gain = float(difference.mean() + DIFFERENT * difference.std() / len(difference) ** 0.5)
            if gain < lowest:
                found, lowest = number, gain
        return found

    def score(self, usual: int, learnt_from: int) -> SizeScore:
        """Return the score of this size."""
        best = self.best(usual)
        products, games = self.products[best], self.games[best]
        mean = float(products.mean())
        return SizeScore(
            self.size,
            surrogate=float(games.missed.square().sum(1).mean()),
            sampled=tuple(float(each.products(Mix(1.0, 0.0)).mean()) for each in self.games),
            chosen=mean,
            error=float(products.std() / len(products) ** 0.5),
            doubt=games.doubt() + max(0.0, mean) * self.size / learnt_from,
            sampler=best,
            mix=self.mixes[best],
        )


def _usual(comparisons: Sequence[_Comparison]) -> int:
    """Return the sampler that is best for all sizes together."""
    if not comparisons:
        return 0
    totals = [
        sum(float(each.products[j].mean()) for each in comparisons) for j in range(len(comparisons[0].products))
    ]
    return min(range(len(totals)), key=totals.__getitem__)


@dataclass(frozen=True)
class SizePlan:
    """How coalitions of each size are evaluated.

    Attributes
    ----------
    samplers : tuple of int
        The number of the sampler for each size from 0 to all players.
    mixes : tuple of Mix
        The weights of the games for each size.
    """

    samplers: tuple[int, ...]
    mixes: tuple[Mix, ...]

    @classmethod
    def of(cls, scores: Sequence[SizeScore], players: int) -> SizePlan:
        """Return the plan between the sizes that were compared; the surrogate alone if none were."""
        sizes = range(players + 1)
        if not scores:
            return cls((0,) * (players + 1), (Mix(),) * (players + 1))
        nearest = [min(scores, key=lambda each: abs(each.size - size)) for size in sizes]
        return cls(tuple(each.sampler for each in nearest), tuple(_interpolated(scores, size) for size in sizes))


def _interpolated(scores: Sequence[SizeScore], size: int) -> Mix:
    """Return the weights at a size, which lie on the line between those of the two sizes next to it."""
    below = [each for each in scores if each.size <= size] or [scores[0]]
    above = [each for each in scores if each.size >= size] or [scores[-1]]
    low, high = below[-1], above[0]
    share = (size - low.size) / (high.size - low.size) if high.size > low.size else 0.0
    return Mix(
        low.mix.sampled + share * (high.mix.sampled - low.mix.sampled),
        low.mix.corrected + share * (high.mix.corrected - low.mix.corrected),
    )
