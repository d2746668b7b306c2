"""Self-checks of the truths that benchmarks/fidelity.py compares with: `python benchmarks/fidelity.py check`."""

from __future__ import annotations

import numpy as np
import torch
from fidelity_designs import (
    DESIGNS,
    Array,
    Categories,
    Design,
    Mask,
    Predict,
    coalitions,
    enumerate_values,
    sampled_values,
    true_values,
)
from torch import Tensor

from fastshapley.estimators import exact

ROWS = 4000


class RandomGame:
    """A number of its own for every coalition and row."""

    outputs = 1

    def __init__(self, players: int, rows: int) -> None:
        self.players = players
        self.table = torch.from_numpy(np.random.default_rng(0).standard_normal((rows, 1 << players)))

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        place = (s.long() << torch.arange(self.players)).sum(2)
        return self.table[x[:, 0].long()[:, None], place][..., None]


def check_enumeration() -> None:
    """Our enumeration gives the values of the library's."""
    game, x = RandomGame(5, 3), torch.arange(3.0)[:, None]
    place = 1 << np.arange(5)
    ours = enumerate_values(lambda s: game.table[:, int(place[s].sum())].numpy(), 5)
    np.testing.assert_allclose(ours, exact(game, x).values[:, :, 0], atol=1e-12)


def check_linear() -> None:
    """The closed form of A agrees with sampling."""
    design, rng = DESIGNS["A"](0.5), np.random.default_rng(0)
    weights, x = rng.standard_normal(10), design.draw(5, rng)
    truth = true_values(design, lambda rows: rows @ weights, x, 0, linear=True)
    sampled = sampled_values(design, lambda rows: rows @ weights, x, 64)
    gap = np.sqrt(np.square(sampled.values - truth.values).mean())
    assert gap < 3 * np.sqrt(np.square(sampled.stderr).mean()) < 0.1, gap


def check_categories() -> None:
    """Sums over the table of probabilities agree with a search through all cells, and with sampling."""
    design, rng = Categories(), np.random.default_rng(0)
    assert abs(design.probability.sum() - 1) < 1e-12
    output, x, probability = rng.standard_normal(len(design.cells)), design.draw(4, rng), design.probability.ravel()
    for s in coalitions(6)[::7]:
        brute = []
        for row in x:
            fits = (design.cells[:, s] == row[s]).all(1)
            brute.append(probability[fits] @ output[fits] / probability[fits].sum())
        np.testing.assert_allclose(design.conditional_mean(output, x, s), brute, atol=1e-12)

    predict = design.lookup(lambda rows: output)
    truth, sampled = true_values(design, predict, x, 0), sampled_values(design, predict, x, 256)
    gap = np.sqrt(np.square(sampled.values - truth.values).mean())
    assert gap < 3 * np.sqrt(np.square(sampled.stderr).mean()), gap


def check_conditionals(name: str, design: Design) -> None:
    """Drawing hidden columns again, given the shown ones, leaves the joint distribution as it is.

    The features compared include products and jumps of shown and hidden columns. Paired differences of 4000 rows,
    at most 4.5 standard errors: about 2500 comparisons.
    """
    rng = np.random.default_rng(0)
    x = design.draw(ROWS, rng)
    features = _features(x)
    for s in coalitions(design.columns)[1:-1:5]:
        again = np.concatenate([_again(design, part, s, rng) for part in np.array_split(x, ROWS)])
        assert (again[:, s] == x[:, s]).all()
        less = features(again) - features(x)
        error = less.std(0) / np.sqrt(ROWS)
        worst = np.abs(less.mean(0) / np.maximum(error, 1e-9))[error > 1e-9].max()
        assert worst < 4.5, (name, s, worst)


def _again(design: Design, x: Array, s: Mask, rng: np.random.Generator) -> Array:
    return design.sample(x, s, rng.uniform(1e-9, 1 - 1e-9, (1, 1 + design.columns)))[:, 0]


def _features(x: Array) -> Predict:
    low, middle, scale = np.quantile(x, 0.25, axis=0), np.median(x, axis=0), x.std(0)

    def features(rows: Array) -> Array:
        z = np.clip((rows - middle) / scale, -3, 3)
        products = np.einsum("ni,nj->nij", z, z).reshape(len(z), -1)
        jumps = np.einsum("ni,nj->nij", rows > middle, rows > low).reshape(len(z), -1)
        return np.concatenate([z, products, jumps], axis=1)

    return features


def run() -> None:
    check_enumeration()
    check_linear()
    check_categories()
    for name, make in DESIGNS.items():
        if name != "A":  # A has the rows of B.
            check_conditionals(name, make(0.5))
        print(f"{name}: checked", flush=True)
