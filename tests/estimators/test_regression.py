"""The least squares behind KernelSHAP, against solutions by NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fastshapley.coalitions import enumerate_coalitions, sample_kernel
from fastshapley.estimators.regression import Stratum, draw_weights, solve_pairs, solve_with_errors

PLAYERS, OUTPUTS = 5, 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def pairs(rows: int, draws: int) -> Tensor:
    """Return z = 2s - 1 of random coalitions, (rows, draws, players)."""
    return 2 * sample_kernel(rows, draws, PLAYERS, generator(), paired=False).double() - 1


def one_stratum(draws: int) -> list[Stratum]:
    return [(torch.arange(draws), 1.0, math.inf)]


def least_squares(z: Tensor, u: Tensor, total: Tensor, weight: Tensor) -> Tensor:
    """Fit the deviation from an even split by NumPy, and make it sum to zero."""
    solutions = []
    for a, b, t in zip(z.numpy(), u.numpy(), total.numpy(), strict=True):
        even = np.tile(t / PLAYERS, (PLAYERS, 1))
        root = np.sqrt(weight.numpy())[:, None]
        deviation = np.linalg.lstsq(root * a, root * (b - a @ even), rcond=None)[0]
        solutions.append(even + deviation - deviation.mean(0))
    return torch.from_numpy(np.stack(solutions))


def test_values_that_explain_all_pairs_are_found() -> None:
    z, phi = pairs(3, 40), normal(3, PLAYERS, OUTPUTS)
    found = solve_pairs(z, z @ phi, phi.sum(1))
    torch.testing.assert_close(found, phi, atol=1e-4, rtol=0)  # The least squares are solved in float32.
    values, stderr = solve_with_errors(z, z @ phi, phi.sum(1), one_stratum(40), paired=True)
    torch.testing.assert_close(values, phi, atol=1e-8, rtol=0)
    assert stderr.max() < 1e-8


@pytest.mark.parametrize("weighted", [False, True])
def test_pairs_are_solved_as_by_numpy(weighted: bool) -> None:
    z, u, total = pairs(3, 40), normal(3, 40, OUTPUTS), normal(3, OUTPUTS, seed=1)
    weight = torch.linspace(0.5, 1.5, 40, dtype=torch.float64)
    expected = least_squares(z, u, total, weight if weighted else torch.ones(40, dtype=torch.float64))
    found = solve_pairs(z, u, total, weight if weighted else None)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("draws", [6, 40])
def test_values_sum_to_the_total(draws: int, paired: bool) -> None:
    z, u, total = pairs(3, draws), normal(3, draws, OUTPUTS), normal(3, OUTPUTS, seed=1)
    design = z if paired else (z + 1) / 2
    values, stderr = solve_with_errors(design, u, total, one_stratum(draws), paired=paired)
    torch.testing.assert_close(values.sum(1), total)
    assert stderr.isfinite().all()


def test_single_coalitions_are_solved_under_the_constraint() -> None:
    """The constrained solution has no smaller residual in any direction that keeps the sum."""
    s = sample_kernel(1, 60, PLAYERS, generator(), paired=False).double()
    y, total = normal(1, 60, 1), normal(1, 1, seed=1)
    values, _ = solve_with_errors(s, y, total, one_stratum(60), paired=False)
    gradient = (s.transpose(1, 2) @ (y - s @ values))[0, :, 0]
    torch.testing.assert_close(gradient, gradient.mean().expand(PLAYERS), atol=1e-6, rtol=0)


def test_standard_errors_are_those_of_leaving_out_one_draw() -> None:
    """The jackknife by hand: one regression for each draw that is left out."""
    draws = 60
    z, u, total = pairs(1, draws), normal(1, draws, 1), normal(1, 1, seed=1)
    _, stderr = solve_with_errors(z, u, total, one_stratum(draws), paired=True)
    ones = torch.ones(draws - 1, dtype=torch.float64)
    left_out = torch.cat(
        [
            least_squares(z[:, keep], u[:, keep], total, ones)
            for keep in (torch.arange(draws) != draw for draw in range(draws))
        ]
    )
    jackknife = ((left_out - left_out.mean(0)).square().sum(0) * (draws - 1) / draws).sqrt()
    ratio = stderr[0] / jackknife
    # Both divide by slightly different counts, which differ by one in 60.
    assert ((ratio - 1).abs() < 2 / draws).all()


def test_an_exhausted_stratum_has_no_error() -> None:
    s = enumerate_coalitions(4)[1:8]  # One coalition of each of the 7 pairs of four players.
    z = (2 * s.double() - 1)[None]
    u, total = normal(1, 7, 1), normal(1, 1, seed=1)
    strata: list[Stratum] = [(torch.tensor([0, 1, 3, 6]), 0.5, 4.0), (torch.tensor([2, 4, 5]), 0.5, 3.0)]
    _, exhausted = solve_with_errors(z, u, total, strata, paired=True)
    assert exhausted.max() == 0
    open_strata: list[Stratum] = [(draws, share, 100.0) for draws, share, _ in strata]
    _, uncertain = solve_with_errors(z, u, total, open_strata, paired=True)
    assert uncertain.min() > 0


def test_tiny_games_have_standard_errors_of_their_own_size() -> None:
    z, u, total = pairs(1, 40), normal(1, 40, 1), normal(1, 1, seed=1)
    _, usual = solve_with_errors(z, u, total, one_stratum(40), paired=True)
    _, tiny = solve_with_errors(z, 1e-30 * u, 1e-30 * total, one_stratum(40), paired=True)
    torch.testing.assert_close(tiny * 1e30, usual, rtol=1e-4, atol=0)


def test_fewer_draws_than_players_give_finite_values() -> None:
    z, u, total = pairs(2, 2), normal(2, 2, 1), normal(2, 1, seed=1)
    values = solve_pairs(z, u, total)
    assert values.isfinite().all()
    torch.testing.assert_close(values.sum(1), total, atol=1e-5, rtol=0)


def test_weights_give_each_stratum_its_share() -> None:
    strata: list[Stratum] = [(torch.tensor([0, 2]), 0.75, math.inf), (torch.tensor([1, 3, 4]), 0.25, math.inf)]
    weight = draw_weights(strata, 5, torch.device("cpu"))
    assert float(weight.mean()) == pytest.approx(1)
    assert float(weight[[0, 2]].sum()) == pytest.approx(0.75 * 5)
    assert weight[0] == weight[2]
    assert weight[1] == weight[3] == weight[4]
