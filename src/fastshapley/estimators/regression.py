"""The least squares behind KernelSHAP, for many rows and outputs at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The ridge relative to the number of coalitions. It matters only where they leave a value undetermined.
_RIDGE = {torch.float32: 1e-7, torch.float64: 1e-10}
_REPAIR_RIDGE = 1e-5  # The ridge, relative to the mean diagonal, for matrices that rounding left without a factor.
_SMALLEST_COMPLEMENT = 1e-2  # Leverages above one minus this are rounding errors, and are clipped.
_SOFT_CONSTRAINT_BELOW = 4  # Pairs per player below which a soft constraint is less noisy than a projection.

# Draws within one stratum are uniform. A stratum is a tuple of
# - the positions of its draws among all draws (a tensor),
# - its share of the Shapley kernel,
# - the number of distinct draws that it has; infinity for draws with replacement.
Stratum = tuple[Tensor, float, float]


def solve_pairs(z: Tensor, u: Tensor, total: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the values phi that sum to ``total`` and fit u = z . phi best.

    Parameters
    ----------
    z : Tensor of shape (n, pairs, players)
        2s - 1 for each pair of a coalition s and its complement.
    u : Tensor of shape (n, pairs, outputs)
        v(s) - v(1 - s).
    total : Tensor of shape (n, outputs)
        Grand minus null.
    weight : Tensor of shape (pairs,) or None
        The weight of each pair; by default they are equal.

    Returns
    -------
    Tensor of shape (n, players, outputs)
        The values.
    """
    fit, _, projection = _regress(z.float(), u, total, weight, paired=True)
    return _project(fit, total, projection)


def draw_weights(strata: Sequence[Stratum], draws: int, device: torch.device) -> Tensor:
    """Return the weight of each draw, (draws,). Their mean is one if the shares of the strata sum to one."""
    weight = torch.empty(draws, dtype=torch.float64, device=device)
    for numbers, share, _ in strata:
        weight[numbers] = share / len(numbers) * draws
    return weight


def solve_with_errors(
    design: Tensor, y: Tensor, total: Tensor, strata: Sequence[Stratum], *, paired: bool
) -> tuple[Tensor, Tensor]:
    """Return the values that fit best, and their standard errors by the jackknife.

    Leaving out a draw moves the coefficients by its row of Z G^-1 times its residual over one minus its leverage.
    No common variance is assumed. An exhausted stratum contributes no variance.

    Parameters
    ----------
    design : Tensor of shape (n, draws, players)
        With ``paired``, z of `solve_pairs`; otherwise coalitions s.
    y : Tensor of shape (n, draws, outputs)
        With ``paired``, u of `solve_pairs`; otherwise v(s) - v(0).
    total : Tensor of shape (n, outputs)
        Grand minus null.
    strata : sequence of Stratum
        Which draws belong to which stratum.
    paired : bool
        Whether a draw is a pair.

    Returns
    -------
    values, stderr : Tensor of shape (n, players, outputs)
        The values and their standard errors.
    """
    weight = draw_weights(strata, design.shape[1], design.device)
    uniform = len(strata) == 1
    d = design.double()
    fit, factor, projection = _regress(d, y, total, None if uniform else weight, paired=paired)
    values, inverse = _project(fit, total, projection), torch.cholesky_inverse(factor)
    # Residuals and leverages are those of the regression itself: pairs are fitted before the projection.
    residual = (y - d @ (fit if paired else values)) * weight[:, None]
    d = d.float()  # Standard errors need few digits.
    influence, projected = d @ inverse.float(), d @ (inverse @ projection).float()
    leverage = ((influence if paired else projected) * d).sum(2, keepdim=True) * weight[:, None]
    residual = residual / (1 - leverage).clamp(min=_SMALLEST_COMPLEMENT)
    # Squares of tiny numbers would vanish in float32, so residuals are taken relative to the largest one.
    unit = residual.abs().amax((1, 2), keepdim=True).clamp(min=1e-300)
    residual = (residual / unit).float()
    variance = torch.zeros_like(values)
    for draws, _, population in strata:
        count = len(draws)
        if count < population:
            a, r = (projected, residual) if uniform else (projected[:, draws], residual[:, draws])
            squares = a.square().transpose(1, 2) @ r.square()
            sums = a.transpose(1, 2) @ r
            deviations = (squares - sums.square() / count).clamp(min=0) * count / max(1, count - 1)
            variance += (1 - count / population) * deviations
    return values, variance.sqrt() * unit


def _regress(
    d: Tensor, y: Tensor, total: Tensor, weight: Tensor | None, *, paired: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the free fit, the Cholesky factor of the Gram matrix, and a projection to values that sum to zero.

    The unknown is the deviation from an even split. With enough pairs it is fitted freely and projected to sum to
    zero afterwards, which is as consistent as fitting it under that constraint, and less noisy. With few pairs, a
    soft constraint is less noisy. Two players leave the sum undetermined, so they get the soft constraint too.
    Without pairs the constraint is exact.
    """
    draws, players = d.shape[1:]
    even = (total / players)[:, None].double()
    weighted = d if weight is None else d * weight[:, None].to(d.dtype)
    gram = (weighted.transpose(1, 2) @ d).double()
    gram += _RIDGE[d.dtype] * draws * torch.eye(players, dtype=gram.dtype, device=d.device)
    if paired and (draws < _SOFT_CONSTRAINT_BELOW * players or players == 2):
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
    """Return the lower factors. Matrices that rounding left without one get a larger ridge first."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed.any():
        rows = failed > 0
        size = gram[rows].diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        factor[rows] = torch.linalg.cholesky(gram[rows] + _REPAIR_RIDGE * size * torch.eye(gram.shape[1]).to(gram))
    return factor


def _project(fit: Tensor, total: Tensor, projection: Tensor) -> Tensor:
    """Return the fitted values, projected so that they sum to ``total``."""
    even = (total / fit.shape[1])[:, None]
    return even + projection.transpose(1, 2) @ (fit - even)
