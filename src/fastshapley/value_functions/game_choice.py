"""Which game describes the model best, for each size of coalition: a weighted mean of two games.

The games are the surrogate, and the model's mean output over sampled rows. For any game v, the mean of
(f(x) - v(x, s))^2 over held-out rows is a constant plus the mean squared distance of v to the true conditional
expectation. This is the game's MSEv. It needs no truth, so games can be compared by it, and averaged with the
weights that make it smallest.

There is a usual sampler (see `sampler_choice`). Where the MSEv of another one is clearly lower, that one is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastshapley.coalitions import subsets

DRAWS = 8  # draws of each of two samples for one coalition
COALITIONS = 8  # coalitions per held-out row and size, at most
EVALUATED = 4096  # coalitions of one size, at most
FEWEST = 32  # coalitions of one size below which nothing is compared
SPREAD = 0.15  # standard deviation, a priori, of the change of the weight from all players to none
DIGITS = 6  # of the weights
SWEEPS = 60  # passes over the sizes, after which the weights have settled
ROW_COALITIONS = 2  # coalitions of one row that count as independent; more of them tell little more
DIFFERENT = 2.0  # standard errors by which a sampler must be better than the usual one, or than two together

LEAST_GAIN = 0.05  # share of the sampling variance that a control must take off to be used


@dataclass(frozen=True)
class SampleMeans:
    """Means over two samples of drawn rows for each coalition.

    Attributes
    ----------
    outputs : Tensor of shape (n, 2, outputs)
        The mean outputs of the model.
    controls : Tensor of shape (n, 2, outputs) or None
        The mean controls of the sampler, if it has any.
    """

    outputs: Tensor
    controls: Tensor | None = None

    def control(self) -> float:
        """Return the multiple of the controls that takes most of the sampling noise off the outputs; 0 for none."""
        if self.controls is None:
            return 0.0
        # The difference of two samples of one coalition is nothing but noise.
        noise, control = self.outputs.diff(dim=1), self.controls.diff(dim=1)
        total, squares = float(noise.square().sum()), float(control.square().sum())
        if not total > 0 or not squares > 0:
            return 0.0
        along = float((noise * control).sum())
        gain = along**2 / squares / total
        return round(min(1.0, along / squares), DIGITS) if along > 0 and gain >= LEAST_GAIN else 0.0


SampledOutputs = Callable[[Tensor, Tensor, Tensor], SampleMeans]  # rows, coalitions (n, players), starts (n, 2)


@dataclass(frozen=True)
class SizeScore:
    """The MSEv of games for coalitions of one size, in units of the variance of the model's output.

    Several outputs that are not probabilities count equally, each in units of its own variance.

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
    doubts : tuple of float
        The estimated mean squared distance of the chosen game to the true conditional expectation, for each output,
        in units of its variance. It has two parts. If the errors of the surrogate and of the sampler are unrelated,
        the distance follows from how far the two games are apart and from which is closer to the model. And a
        regression on k columns from n rows leaves an error of k / n of the unexplained variance, which both games
        share.
    sampler : int
        The number of the chosen sampler.
    weight : float
        The weight of the sampled game in the mean. The surrogate has the rest.
    control : float
        The multiple of the sampler's controls that takes most of the sampling noise off.
    """

    size: int
    surrogate: float
    sampled: tuple[float, ...]
    chosen: float
    error: float
    doubts: tuple[float, ...]
    sampler: int
    weight: float
    control: float = 0.0

    @classmethod
    def from_dict(cls, saved: dict[str, object]) -> SizeScore:
        """Return the score that `dataclasses.asdict` made a dictionary of."""
        return cls(**{**saved, "sampled": tuple(saved["sampled"]), "doubts": tuple(saved["doubts"])})  # type: ignore


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

    def unit(self, *, together: bool) -> Tensor:
        """Return what errors of each output are measured in, (outputs,), so that a constant has the MSEv 1.

        Outputs are in the same units if they count together, as probabilities do; else each counts equally.
        """
        variances = (self.y - self.y.mean(0)).square().mean(0)
        if together:
            return variances.sum().clamp(min=1e-300).sqrt().expand_as(variances)
        return torch.where(variances > 0, variances * (variances > 0).sum(), torch.inf).sqrt()


def compare_games(
    expectation: Callable[[Tensor, Tensor], Tensor],
    samplers: Sequence[SampledOutputs],
    rows: HeldOut,
    generator: torch.Generator,
    *,
    usual: int = 0,
    together: bool = False,
) -> tuple[SizeScore, ...]:
    """Compare the surrogate and the games of samplers on held-out rows.

    Parameters
    ----------
    expectation : callable
        The surrogate's estimates, (n, m, outputs), for rows and coalitions.
    samplers : sequence of callable
        The mean outputs of the model over two samples of drawn rows.
    rows : HeldOut
        The rows, and the number of coalitions.
    generator : torch.Generator
        The source of random numbers.
    usual : int
        The number of the sampler that is taken unless another one is clearly better.
    together : bool
        Whether all outputs are in the same units, as probabilities are.

    Returns
    -------
    tuple of SizeScore
        One for each of the `knots`; empty if there are too few coalitions.
    """
    x, y = rows.x, rows.y
    count = min(rows.coalitions, EVALUATED, COALITIONS * len(x))
    if count < min(FEWEST, len(x)) or not samplers:
        return ()
    unit = rows.unit(together=together)
    sizes, by_size = knots(rows.players), []
    for size in sizes:
        chosen = torch.randperm(COALITIONS * len(x), generator=generator, device=x.device)[:count] % len(x)
        s = subsets(torch.full((count, 1), size, device=x.device), rows.players, generator)
        surrogate = expectation(x[chosen], s)[:, 0].double()
        starts = torch.rand(count, 2, generator=generator, device=x.device, dtype=torch.float64)
        drawn = [sample(x[chosen], s[:, 0], starts) for sample in samplers]
        by_size.append([_Games(y[chosen], surrogate, each, unit) for each in drawn])
    places = [size / rows.players for size in sizes]
    by_sampler = [_smooth_weights(games, places, len(x)) for games in zip(*by_size, strict=True)]
    found = [
        _Comparison(size, games, weights)
        for size, games, weights in zip(sizes, by_size, zip(*by_sampler, strict=True), strict=True)
    ]
    return tuple(each.score(usual, rows.learnt_from) for each in found)


class _Games:
    """The surrogate and the game of one sampler at one size, in units of the deviation of the outputs.

    ``missed`` (n, outputs) is the model's output minus the surrogate's estimate. ``steps`` (2, n, outputs) are the
    sampled game minus the surrogate's, for two samples.
    """

    def __init__(self, y: Tensor, surrogate: Tensor, means: SampleMeans, unit: Tensor) -> None:
        self.missed = (y - surrogate) / unit
        self.steps = (means.outputs - surrogate[:, None]).movedim(1, 0) / unit
        self.control = means.control()
        self.shares = (y - y.mean(0)).div(unit).square().mean(0).clamp(min=1e-12)  # of the outputs in the MSEv

    def products(self, weight: float) -> Tensor:
        """Return an unbiased estimate of the MSEv of a mean of the games from each coalition, (n,)."""
        first, second = self.missed - weight * self.steps
        return (first * second).sum(1)

    @property
    def apart(self) -> float:
        """The mean squared distance of the games; two samples cancel the sampling noise."""
        return float(self.steps.prod(0).sum(1).mean())

    @property
    def along(self) -> float:
        """The mean product of the step from the surrogate to the sampled game and the step to the model's output.

        For a weight w, the MSEv is w^2 ``apart`` - 2 w ``along`` plus a constant.
        """
        return float((self.missed * self.steps.mean(0)).sum(1).mean())

    @property
    def noise(self) -> float:
        """The variance that a coalition's part in ``along`` has, in units of the squared steps."""
        return float(self.missed.square().sum(1).mean())

    def doubts(self, weight: float, left: float) -> Tensor:
        """Return the estimated squared distance of the game to the truth, (outputs,).

        It is that of the best mean of surrogate and sampled game, and a share ``left`` of the MSEv that the game
        with the given weight has.
        """
        apart = self.steps.prod(0).mean(0)
        along = (self.missed * self.steps.mean(0)).mean(0)
        best = torch.where(apart > 1e-12, along / apart, 0.0).clamp(0, 1)
        first, second = self.missed - weight * self.steps
        return best * (1 - best) * apart.clamp(min=0) + left * (first * second).mean(0).clamp(min=0)


def _smooth_weights(games: Sequence[_Games], places: Sequence[float], rows: int) -> list[float]:
    """Return the weights with the smallest MSEv for each size, where neighbouring sizes have similar ones.

    The MSEv of small coalitions is mostly noise, which says little about weights. So the weights are a random walk
    over the sizes, a priori. It starts at 1 for the grand coalition, where the sampled game is the model itself.

    Parameters
    ----------
    games : sequence of _Games
        The games of one sampler at each size.
    places : sequence of float
        The share of the players that each size has.
    rows : int
        The number of held-out rows.
    """
    weights = [1.0] * (len(games) + 1)
    apart, along = [each.apart for each in games], [each.along for each in games]
    # Few rows may happen to have little noise at one size, so all sizes share their mean noise.
    noise = sum(each.noise for each in games) / len(games)
    evidence = min(len(games[0].missed), ROW_COALITIONS * rows) * SPREAD**2
    gaps = torch.tensor([*places, 1.0]).diff().clamp(min=1e-9).tolist()
    pulls = [noise / (evidence * gap) for gap in gaps]  # towards the next larger size
    for _ in range(SWEEPS):
        for k in reversed(range(len(games))):
            below, pull = (weights[k - 1], pulls[k - 1]) if k else (0.0, 0.0)
            bend = max(0.0, apart[k]) + pulls[k] + pull
            if bend > 0:
                best = (along[k] + pulls[k] * weights[k + 1] + pull * below) / bend
                weights[k] = min(1.0, max(0.0, best))
    # Sums of floating-point numbers depend on where they lie in memory. The same seed must give the same weights.
    return [round(weight, DIGITS) for weight in weights[:-1]]


class _Comparison:
    """The games of all samplers at one size."""

    def __init__(self, size: int, games: Sequence[_Games], weights: Sequence[float]) -> None:
        self.size, self.games, self.weights = size, games, weights
        self.products = [each.products(weight) for each, weight in zip(games, weights, strict=True)]

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
            surrogate=games.noise,
            sampled=tuple(float(each.products(1.0).mean()) for each in self.games),
            chosen=mean,
            error=float(products.std() / len(products) ** 0.5),
            doubts=tuple(games.doubts(self.weights[best], self.size / learnt_from).div(games.shares).tolist()),
            sampler=best,
            weight=self.weights[best],
            control=games.control,
        )


@dataclass(frozen=True)
class SizePlan:
    """How coalitions of each size are evaluated.

    Attributes
    ----------
    samplers : tuple of int
        The number of the sampler for each size from 0 to all players.
    weights : tuple of float
        The weight of the sampled game for each size; 1 for all players, where it is the model's output.
    controls : tuple of float
        The multiple of the sampler's controls for each size.
    """

    samplers: tuple[int, ...]
    weights: tuple[float, ...]
    controls: tuple[float, ...]

    @classmethod
    def of(cls, scores: Sequence[SizeScore], players: int) -> SizePlan:
        """Return the plan between the sizes that were compared; the surrogate alone if none were."""
        sizes = range(players + 1)
        if not scores:
            return cls((0,) * (players + 1), (*(0.0,) * players, 1.0), (0.0,) * (players + 1))
        nearest = [min(scores, key=lambda each: abs(each.size - size)) for size in sizes]
        places, known = [each.size for each in scores], [each.weight for each in scores]
        weights = np.interp(sizes, [*places, players], [*known, 1.0]).tolist()
        return cls(tuple(each.sampler for each in nearest), tuple(weights), tuple(each.control for each in nearest))
