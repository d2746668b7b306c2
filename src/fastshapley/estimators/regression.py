"""The least squares behind KernelSHAP, for many rows and outputs at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# relative to the number of coalitions: it matters only where they leave a value undetermined
_RIDGE = {torch.float32: 1e-7, torch.float64: 1e-10}
Stratum = tuple[Tensor, float, float]  # numbers of its draws, its share of the kernel, its population
_LEVERAGE = 1e-2  # one minus the largest leverage that is believed


def solve_pairs(z: Tensor, u: Tensor, total: Tensor, weight: Tensor | None = None) -> Tensor:
    """The values (n, players, outputs) that sum to ``total`` (n, outputs) and fit u ~ z . phi best.

    A pair of a coalition s and its complement enters as z = 2s - 1, (n, pairs, players), and
    u = v(s) - v(1 - s), (n, pairs, outputs), with a ``weight`` (pairs,).
    """
    fit, _, projection = _regress(z.float(), u, total, weight, paired=True)
    return _project(fit, total, projection)


def draw_weights(strata: Sequence[Stratum], draws: int, device: torch.device) -> Tensor:
    """The weight of each draw, (draws,), of mean one if all shares are there."""
    weight = torch.empty(draws, dtype=torch.float64, device=device)
    for numbers, share, _ in strata:
        weight[numbers] = share / len(numbers) * draws
    return weight


def solve_with_errors(
    design: Tensor, y: Tensor, total: Tensor, strata: Sequence[Stratum], *, paired: bool
) -> tuple[Tensor, Tensor]:
    """Values and standard errors, each (n, players, outputs).

    ``paired``: design and y are z and u of `solve_pairs`. Otherwise they are coalitions s and v(s) - v(0).
    Each stratum holds the numbers of its draws, its share of the Shapley kernel, and how many it could have
    drawn without repeating itself (infinity for draws with replacement); within it draws are uniform.

    The errors are the regression's own, by the jackknife: leaving out a draw moves the coefficients by its row of
    Z G^-1 times its residual over one minus its leverage. No common variance is assumed, and a stratum that is
    exhausted has none.
    """
    weight = draw_weights(strata, design.shape[1], design.device)
    uniform = len(strata) == 1
    d = design.double()
    fit, factor, projection = _regress(d, y, total, None if uniform else weight, paired=paired)
    values, inverse = _project(fit, total, projection), torch.cholesky_inverse(factor)
    # residuals and leverages are those of the regression that was made: pairs are fitted before the projection
    residual = (y - d @ (fit if paired else values)) * weight[:, None]
    d = d.float()  # errors need few digits
    influence, projected = d @ inverse.float(), d @ (inverse @ projection).float()
    leverage = ((influence if paired else projected) * d).sum(2, keepdim=True) * weight[:, None]
    residual = residual / (1 - leverage).clamp(min=_LEVERAGE)
    unit = residual.abs().amax((1, 2), keepdim=True).clamp(min=1e-300)  # squares of tiny numbers vanish in float32
    residual = (residual / unit).float()
    variance = torch.zeros_like(values)
    for draws, _, population in strata:
        count = len(draws)
        if count < population:
            a, r = (projected, residual) if uniform else (projected[:, draws], residual[:, draws])
            squares = a.square().transpose(1, 2) @ r.square()
            sums = a.transpose(1, 2) @ r
            spread = (squares - sums.square() / count).clamp(min=0) * count / max(1, count - 1)
            variance += (1 - count / population) * spread
    return values, variance.sqrt() * unit


def _regress(
    d: Tensor, y: Tensor, total: Tensor, weight: Tensor | None, *, paired: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The free fit, the gram matrix's Cholesky factor, and what projects columns to values that sum to zero.

    The unknown is the deviation from an even split. With pairs enough it is fitted freely and made to sum to zero
    afterwards, which is as consistent as fitting it under that constraint, and less noisy; with few, a soft
    constraint is less noisy (and two players leave the sum open). Without pairs the constraint is exact.
    """
    draws, players = d.shape[1:]
    even = (total / players)[:, None].double()
    weighted = d if weight is None else d * weight[:, None].to(d.dtype)
    gram = (weighted.transpose(1, 2) @ d).double()
    gram += _RIDGE[d.dtype] * draws * torch.eye(players, dtype=gram.dtype, device=d.device)
    if paired and (draws < 4 * players or players == 2):
        gram += draws
    rest = y - d.sum(2, keepdim=True) * even
    right = (weighted.transpose(1, 2) @ rest.to(d.dtype)).double()
    factor = _cholesky(gram)
    eye, ones = torch.eye(players, dtype=gram.dtype, device=d.device), gram.new_ones(players, 1)
    if paired:
        projection = (eye - 1 / players).expand_as(gram)
    else:
        towards = torch.cholesky_solve(ones.expand(len(gram), -1, -1), factor)
        projection = eye - ones @ towards.transpose(1, 2) / towards.sum((1, 2), keepdim=True)
    return even + torch.cholesky_solve(right, factor), factor, projection


def _cholesky(gram: Tensor) -> Tensor:
    """The lower factors; of matrices that rounding has left without one, those with more of a ridge."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed.any():
        rows = failed > 0
        size = gram[rows].diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        factor[rows] = torch.linalg.cholesky(gram[rows] + 1e-5 * size * torch.eye(gram.shape[1]).to(gram))
    return factor


def _project(fit: Tensor, total: Tensor, projection: Tensor) -> Tensor:
    even = (total / fit.shape[1])[:, None]
    return even + projection.transpose(1, 2) @ (fit - even)
