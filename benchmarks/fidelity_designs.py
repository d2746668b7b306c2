"""Designs with known truth for benchmarks/fidelity.py: tables whose conditional distributions can all be sampled.

A design draws rows, gives their labels, and samples the hidden columns of a row given the shown ones, from the true
distribution. `true_values` enumerates the coalitions: the values of a model are then exact up to sampling, whose
standard error is measured. Linear models need conditional means only, and discrete tables are enumerated, so both
are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Predict = Callable[[Array], Array]  # encoded rows (n, d) -> outputs (n,)

REPLICATES = 4  # independent scramblings of the quasi-random points: their spread gives the standard error
NULL_DRAWS = 1 << 17
NOISE = 0.1


class Sampler(ABC):
    """Samples the hidden columns of rows given the shown ones."""

    @abstractmethod
    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        """Return rows (n, draws, d) that equal x (n, d) where s (d,) is true.

        u holds uniform numbers (draws, 1 + d): the first column chooses a part of a mixture, the others belong to
        the columns. The same numbers serve every coalition and row.
        """


class Design(Sampler):
    """A table with a known distribution."""

    columns: int

    @abstractmethod
    def draw(self, rows: int, rng: np.random.Generator) -> Array:
        """Return encoded rows (rows, columns)."""

    @abstractmethod
    def response(self, x: Array) -> Array:
        """Return the labels without noise."""

    def frame(self, x: Array) -> Any:
        """Return the table that models and explainers are given."""
        return x

    def labels(self, x: Array, rng: np.random.Generator) -> Array:
        return self.response(x) + NOISE * rng.standard_normal(len(x))


def fill(x: Array, s: Mask, hidden: Array) -> Array:
    """Return rows (n, draws, d): x where s is true, elsewhere hidden (n, draws, hidden columns)."""
    rows = np.broadcast_to(x[:, None], (len(x), hidden.shape[1], x.shape[1])).copy()
    rows[:, :, ~s] = hidden
    return rows


def conditional_normal(mean: Array, cov: Array, x: Array, s: Mask) -> tuple[Array, Array]:
    """Return the mean (n, hidden) and the covariance (hidden, hidden) of the hidden columns given the shown."""
    h = ~s
    if not s.any():
        return np.broadcast_to(mean, x.shape), cov
    weights = np.linalg.solve(cov[np.ix_(s, s)], cov[np.ix_(s, h)])
    return mean[h] + (x[:, s] - mean[s]) @ weights, cov[np.ix_(h, h)] - cov[np.ix_(h, s)] @ weights


def root(cov: Array) -> Array:
    """Return a matrix r with r @ r.T = cov, also if cov is singular."""
    values, vectors = np.linalg.eigh(cov)
    return vectors * np.sqrt(np.maximum(values, 0))


class Normal(Sampler):
    """Conditional normal distributions."""

    def __init__(self, mean: Array, cov: Array) -> None:
        self.mean, self.cov = mean, cov

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        mean, cov = conditional_normal(self.mean, self.cov, x, s)
        return fill(x, s, mean[:, None] + ndtri(u[:, 1:][:, ~s]) @ root(cov).T)


class Equicorrelated(Normal, Design):
    """Ten normal columns with equal correlation (Aas, Jullum and Løland 2021)."""

    columns = 10

    def __init__(self, rho: float, steps: bool) -> None:
        super().__init__(np.zeros(10), np.full((10, 10), rho) + (1 - rho) * np.eye(10))
        self.steps = steps

    def draw(self, rows: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((rows, 10)) @ np.linalg.cholesky(self.cov).T

    def response(self, x: Array) -> Array:
        """Return the sum of nine columns, or of signs, floors and parities of them."""
        if not self.steps:
            return x[:, :9].sum(1)
        floors = np.floor(x / 2)
        signs, parities = np.sign(x[:, [0, 3, 6]]), 1 - 2 * (floors[:, [2, 5, 8]] % 2)
        return signs.sum(1) + 2 * floors[:, [1, 4, 7]].sum(1) + parities.sum(1)


def smooth_and_steps(z: Array) -> Array:
    """Labels of the designs that are not normal, from columns of mean 0 and variance 1; the last has no part."""
    return z[:, 0] + 2 * (z[:, 1] > 0.3) + z[:, 2] * z[:, 3] + np.sin(2 * z[:, 4])


class Mixture(Design):
    """Three normal clusters with their own means and correlations."""

    columns = 6
    share = np.array([0.45, 0.35, 0.2])

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.means = 1.6 * rng.standard_normal((3, 6))
        mixes = rng.standard_normal((3, 6, 6)) / np.sqrt(6)
        self.covs = 0.5 * (mixes @ mixes.transpose(0, 2, 1)) + 0.15 * np.eye(6)
        self.mean = self.share @ self.means
        second = self.share @ (self.covs.diagonal(axis1=1, axis2=2) + self.means**2)
        self.sd = np.sqrt(second - self.mean**2)

    def draw(self, rows: int, rng: np.random.Generator) -> Array:
        part = rng.choice(3, rows, p=self.share)
        roots = np.linalg.cholesky(self.covs)
        return self.means[part] + np.einsum("nij,nj->ni", roots[part], rng.standard_normal((rows, 6)))

    def response(self, x: Array) -> Array:
        return smooth_and_steps((x - self.mean) / self.sd)

    def responsibilities(self, x: Array, s: Mask) -> Array:
        """Return the probability of each cluster given the shown columns, (n, 3)."""
        log = np.tile(np.log(self.share), (len(x), 1))
        if s.any():
            for c in range(3):
                log[:, c] += stats.multivariate_normal(self.means[c][s], self.covs[c][np.ix_(s, s)]).logpdf(x[:, s])
        weight = np.exp(log - log.max(1, keepdims=True))
        return weight / weight.sum(1, keepdims=True)

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        part = (u[None, :, :1] > np.cumsum(self.responsibilities(x, s), axis=1)[:, None, :2]).sum(2)
        noise, hidden = ndtri(u[:, 1:][:, ~s]), np.empty((len(x), len(u), int((~s).sum())))
        for c in range(3):
            mean, cov = conditional_normal(self.means[c], self.covs[c], x, s)
            hidden = np.where((part == c)[..., None], mean[:, None] + noise @ root(cov).T, hidden)
        return fill(x, s, hidden)


class Skewed(Design):
    """A normal copula with long-tailed margins: exponential, lognormal, and a cube."""

    columns = 6

    def __init__(self) -> None:
        distance = np.abs(np.arange(6)[:, None] - np.arange(6))
        self.latent = Normal(np.zeros(6), 0.8**distance)
        rows = self.draw(1 << 20, np.random.default_rng(2))
        self.mean, self.sd = rows.mean(0), rows.std(0)

    def forward(self, z: Array) -> Array:
        exponential, lognormal, cube = -np.log(ndtr(-z)), np.exp(0.8 * z), z * z * z
        kinds = [exponential, lognormal, cube]
        return np.stack([kinds[j % 3][..., j] for j in range(6)], axis=-1)

    def inverse(self, x: Array) -> Array:
        exponential, lognormal = -ndtri(np.exp(-np.abs(x))), np.log(np.maximum(x, 1e-300)) / 0.8
        kinds = [exponential, lognormal, np.cbrt(x)]
        return np.stack([kinds[j % 3][..., j] for j in range(6)], axis=-1)

    def draw(self, rows: int, rng: np.random.Generator) -> Array:
        return self.forward(rng.standard_normal((rows, 6)) @ np.linalg.cholesky(self.latent.cov).T)

    def response(self, x: Array) -> Array:
        return smooth_and_steps((x - self.mean) / self.sd)

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        rows = self.forward(self.latent.sample(self.inverse(x), s, u))
        return fill(x, s, rows[:, :, ~s])


class Curved(Design):
    """A curved surface: six columns are functions of two latent numbers, with noise of their own.

    Given the latent numbers the columns are independent, so that conditional distributions are sums over a fine
    grid of the latent numbers.
    """

    columns = 6
    spread = 0.3  # standard deviation of each column's noise

    def __init__(self) -> None:
        axis = np.arange(-4.5, 4.51, 0.06)
        self.grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        self.log_prior = -0.5 * np.square(self.grid).sum(1)
        self.centres = self.surface(self.grid)
        prior = np.exp(self.log_prior)
        prior /= prior.sum()
        self.mean = prior @ self.centres
        self.sd = np.sqrt(prior @ self.centres**2 - self.mean**2 + self.spread**2)

    @staticmethod
    def surface(latent: Array) -> Array:
        a, b = latent.T
        return np.stack([a, a * a - 1, np.sin(2 * a) + 0.5 * b, b, a * b, 1.5 * np.cos(b)], axis=1)

    def draw(self, rows: int, rng: np.random.Generator) -> Array:
        return self.surface(rng.standard_normal((rows, 2))) + self.spread * rng.standard_normal((rows, 6))

    def response(self, x: Array) -> Array:
        return smooth_and_steps((x - self.mean) / self.sd)

    def posterior(self, x: Array, s: Mask) -> Array:
        """Return the weights of the grid given the shown columns of one row x (d,)."""
        log = self.log_prior - 0.5 * np.square((x[s] - self.centres[:, s]) / self.spread).sum(1)
        weight = np.exp(log - log.max())
        return weight / weight.sum()

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        if not s.any():  # The same for every row.
            chosen = np.searchsorted(np.cumsum(self.posterior(x[0], s)), u[:, 0])
            point = np.broadcast_to(chosen, (len(x), len(u)))
        else:
            point = np.stack([np.searchsorted(np.cumsum(self.posterior(row, s)), u[:, 0]) for row in x])
        point = np.minimum(point, len(self.grid) - 1)
        return fill(x, s, (self.centres[point] + self.spread * ndtri(u[:, 1:]))[:, :, ~s])


class Categories(Design):
    """Four columns of categories and two of counts that all depend on each other; every cell has a probability.

    Columns depend on each other through five latent classes, and each on the column before it.
    """

    sizes = (3, 4, 5, 4, 8, 8)
    columns = 6

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        classes = 5
        joint = rng.dirichlet(np.full(classes, 4.0))  # axes: the latent class, then the columns
        for j, size in enumerate(self.sizes):
            table = self._table(rng, classes, self.sizes[j - 1] if j else 1, size, counts=j >= 4)
            shape = (classes,) + (1,) * max(0, j - 1) + ((self.sizes[j - 1],) if j else ()) + (size,)
            joint = joint[..., None] * table.reshape(shape)
        self.probability = joint.sum(0)
        self.cells = np.stack(np.unravel_index(np.arange(self.probability.size), self.sizes), 1).astype(float)
        self.effects = [rng.standard_normal(size) for size in self.sizes[:4]]
        self.pairs = rng.standard_normal(self.sizes[1:3])

    @staticmethod
    def _table(rng: np.random.Generator, classes: int, before: int, size: int, counts: bool) -> Array:
        """Return P(value | class, the column before), (classes, before, size)."""
        if counts:
            level = 0.4 * rng.random((classes, 1, 1)) + 0.6 * rng.random((1, before, 1))
            return stats.binom.pmf(np.arange(size), size - 1, np.clip(level, 0.05, 0.95))
        free, own = rng.dirichlet(np.full(size, 0.4), (classes, 1)), rng.dirichlet(np.full(size, 0.4), (1, before))
        return 0.35 * free + 0.65 * own

    def draw(self, rows: int, rng: np.random.Generator) -> Array:
        return self.cells[rng.choice(len(self.cells), rows, p=self.probability.ravel())]

    def response(self, x: Array) -> Array:
        code = x.astype(int)
        first = self.effects[0][code[:, 0]]
        own = first + self.effects[3][code[:, 3]] + 1.5 * (x[:, 4] > 3)
        return own + self.pairs[code[:, 1], code[:, 2]] + 0.3 * x[:, 5] * first

    def frame(self, x: Array) -> pd.DataFrame:
        names = [[f"{'abcd'[j]}{k}" for k in range(self.sizes[j])] for j in range(4)]
        columns: dict[str, Any] = {
            f"kind{j}": pd.Categorical.from_codes(x[:, j].astype(int), pd.Index(names[j])) for j in range(4)
        }
        return pd.DataFrame({**columns, "count4": x[:, 4], "count5": x[:, 5]})

    def lookup(self, predict: Predict) -> Predict:
        """Return the same function, which calls the model for each cell once."""
        output = predict(self.cells)
        return lambda x: output[np.ravel_multi_index(tuple(x.astype(int).T), self.sizes)]

    def conditional_mean(self, output: Array, x: Array, s: Mask) -> Array:
        """Return the mean of an output of all cells (cells,) given the shown columns of rows x, exactly."""
        hidden = tuple(np.flatnonzero(~s))
        weighted = (self.probability * output.reshape(self.sizes)).sum(hidden) / self.probability.sum(hidden)
        return weighted[tuple(x[:, j].astype(int) for j in np.flatnonzero(s))] * np.ones(len(x))

    def sample(self, x: Array, s: Mask, u: Array) -> Array:
        """Return draws by the inverse of the conditional distribution over all cells; `true_values` needs none."""
        rows = []
        for row in x:
            fits = (self.cells[:, s] == row[s]).all(1)
            cells, weight = self.cells[fits], self.probability.ravel()[fits]
            rows.append(cells[np.searchsorted(np.cumsum(weight / weight.sum())[:-1], u[:, 0])])
        return np.stack(rows)


DESIGNS: dict[str, Callable[[float], Design]] = {
    "A": lambda rho: Equicorrelated(rho, steps=False),
    "B": lambda rho: Equicorrelated(rho, steps=True),
    "mixture": lambda rho: Mixture(),
    "skewed": lambda rho: Skewed(),
    "categories": lambda rho: Categories(),
    "curved": lambda rho: Curved(),
}


@dataclass(frozen=True)
class Values:
    """Shapley values (n, players), and the standard error of each."""

    values: Array
    stderr: Array


def coalitions(players: int) -> Mask:
    return (np.arange(1 << players)[:, None] >> np.arange(players) & 1).astype(bool)


def shapley_weights(s: Mask) -> Array:
    """Return the weight of each coalition's value in each player's value, (coalitions, players)."""
    d, size = s.shape[1], s.sum(1)[:, None]
    joining = np.array([0.0, *(1 / (d * comb(d - 1, k - 1)) for k in range(1, d + 1))])
    leaving = np.array([*(1 / (d * comb(d - 1, k)) for k in range(d)), 0.0])
    return np.where(s, joining[size], -leaving[size])


def uniforms(draws: int, columns: int, seed: int) -> Array:
    """Return quasi-random uniform numbers (draws, 1 + columns), strictly between 0 and 1."""
    points = qmc.Sobol(1 + columns, rng=np.random.default_rng(seed)).random(draws)
    return np.clip(points, 1e-12, 1 - 1e-12)


def enumerate_values(game: Callable[[Mask], Array], players: int) -> Array:
    """Return the Shapley values of a game that gives (n, ...) for a coalition, as (n, players, ...)."""
    s = coalitions(players)
    total: Any = 0
    for coalition, weight in zip(s, shapley_weights(s), strict=True):
        v = game(coalition)
        total = total + weight.reshape(-1, *[1] * (v.ndim - 1)) * v[:, None]
    return total


def sampled_values(sampler: Sampler, predict: Predict, x: Array, draws: int, seed: int = 0) -> Values:
    """Return the values of the game that averages the model over a sampler's rows, and their standard errors.

    The draws are split among independent scramblings. Their Shapley values differ by sampling alone, which gives
    the standard error. Small coalitions, which have large weights and much to sample, get up to eight times the
    draws, those with few hidden columns half; the empty coalition, whose value all rows share, has NULL_DRAWS.
    """
    d = x.shape[1]
    points = {
        m: np.concatenate([uniforms(m // REPLICATES, d, seed + r) for r in range(REPLICATES)])
        for m in (draws // 2, draws, 2 * draws, 4 * draws, 8 * draws, NULL_DRAWS)
    }

    def number(size: int) -> int:
        few = draws // 2 if d - size <= d // 3 else draws
        return {0: NULL_DRAWS, 1: 8 * draws, 2: 4 * draws, 3: 2 * draws}.get(size, few)

    def game(s: Mask) -> Array:
        if s.all():
            return np.repeat(predict(x)[:, None], REPLICATES, axis=1)
        n, u = len(x) if s.any() else 1, points[number(int(s.sum()))]
        output = predict(sampler.sample(x[:n], s, u).reshape(-1, d))
        return np.broadcast_to(output.reshape(n, REPLICATES, -1).mean(2), (len(x), REPLICATES))

    values = enumerate_values(game, d)
    return Values(values.mean(2), values.std(2, ddof=1) / np.sqrt(REPLICATES))


def true_values(design: Design, predict: Predict, x: Array, draws: int, linear: bool = False) -> Values:
    """Return the Shapley values of a model's true conditional expectations for rows x (n, d)."""
    zero = np.zeros_like(x)
    if isinstance(design, Categories):
        output = predict(design.cells)
        return Values(enumerate_values(lambda s: design.conditional_mean(output, x, s), x.shape[1]), zero)
    if isinstance(design, Normal) and linear:  # The mean of a linear model is the model of the mean.
        mean, cov = design.mean, design.cov

        def game(s: Mask) -> Array:
            rows = x.copy()
            if not s.all():
                rows[:, ~s] = conditional_normal(mean, cov, x, s)[0]
            return predict(rows)

        return Values(enumerate_values(game, x.shape[1]), zero)
    return sampled_values(design, predict, x, draws)
