"""Samplers that expect hidden entries by linear regression on the known ones."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from fastshapley.value_functions.column_scores import ColumnScale, ColumnScores, StandardScores
from fastshapley.value_functions.samplers.conditional_sampler import (
    ConditionalSampler,
    Donors,
    Draws,
    ScoredDonors,
    leading_output,
)

RIDGE = 1e-3  # share of the diagonal in a covariance
FEW_COLUMNS = 12  # columns up to which the matrices of all sets of known columns are kept
MATRIX_ENTRIES = 1 << 20  # entries of the matrices that are factorised at once, unless a single one has more


class MaskedRegression:
    """Linear regression of all columns on any of them.

    It factorises the covariance of the known columns or the precision of the hidden ones, whichever is smaller.

    Parameters
    ----------
    covariance : Tensor of shape (columns, columns)
        The covariance, which must be positive definite.
    """

    def __init__(self, covariance: Tensor) -> None:
        self.covariance = covariance
        self.precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        self._kept = self._all_sets() if len(covariance) <= FEW_COLUMNS else None

    @classmethod
    def fitted(cls, x: Tensor) -> MaskedRegression:
        """Return the regression for rows (n, columns), with a small ridge for columns that depend on each other."""
        centred = x - x.mean(0)
        covariance = centred.T @ centred / len(centred)
        variance = covariance.diagonal()
        ridge = torch.where(variance > 1e-6, variance, 1.0)  # A constant column has no variance.
        return cls((1 - RIDGE) * covariance + RIDGE * torch.diag(ridge))

    def __call__(self, known: Tensor, given: Tensor) -> Tensor:
        """Return the expectation of hidden columns.

        Parameters
        ----------
        known : Tensor of shape (n, columns)
            Which columns are known.
        given : Tensor of shape (n, draws, columns)
            The differences of the known ones from their means. Those of the others are ignored.

        Returns
        -------
        Tensor of shape (n, draws, columns)
            The expected differences of the hidden columns. Those of known columns have no meaning.
        """
        if not known.numel():
            return torch.zeros_like(given)
        if self._kept is not None:
            places = 1 << torch.arange(known.shape[1], device=known.device)
            return (given * known[:, None]) @ self._kept[(known * places).sum(1)]
        return self._solved_sets(known, given)

    def _all_sets(self) -> Tensor:
        """Return the matrix that maps known columns to expectations, for each set of them."""
        columns = len(self.covariance)
        device = self.covariance.device
        sets = torch.arange(1 << columns, device=device)
        known = (sets[:, None] >> torch.arange(columns, device=device)) % 2 == 1
        unit = torch.eye(columns, dtype=self.covariance.dtype, device=device)
        return self._solved_sets(known, unit.expand(len(sets), -1, -1))

    def _solved_sets(self, known: Tensor, given: Tensor) -> Tensor:
        """Return the expectations by solving the equations of each row's known columns."""
        size = int(torch.minimum(known.sum(1).max(), (~known).sum(1).max()))
        parts = max(1, MATRIX_ENTRIES // max(1, size * size))
        pairs = zip(known.split(parts), given.split(parts), strict=True)
        return torch.cat([self._expected(*pair) for pair in pairs])

    def _expected(self, known: Tensor, given: Tensor) -> Tensor:
        given = given * known[:, None]
        if known.sum(1).max() <= (~known).sum(1).max():
            return _solved(self.covariance, known, given) @ self.covariance
        return -_solved(self.precision, ~known, given @ self.precision)


def _solved(matrix: Tensor, member: Tensor, right: Tensor) -> Tensor:
    """Solve ``matrix[m, m] u[m] = right[m]`` for the members m of each row.

    Parameters
    ----------
    matrix : Tensor of shape (columns, columns)
        A positive definite matrix.
    member : Tensor of shape (n, columns)
        The members.
    right : Tensor of shape (n, draws, columns)
        The right sides.

    Returns
    -------
    Tensor of shape (n, draws, columns)
        The solutions, 0 for columns that are not members.
    """
    size = int(member.sum(1).max())
    if size == 0:
        return torch.zeros_like(right)
    inside, columns = member.to(torch.uint8).sort(dim=1, descending=True, stable=True)
    inside, columns = inside[:, :size].to(matrix), columns[:, :size]
    square = matrix[columns[:, :, None], columns[:, None]]
    if not bool(inside.all()):  # Smaller sets are filled up with columns that depend on nothing.
        square = square * inside[:, :, None] * inside[:, None] + torch.diag_embed(1 - inside)
    places = columns[:, None].expand(-1, right.shape[1], -1)
    wanted = (right.gather(2, places) * inside[:, None]).transpose(1, 2)
    solution = torch.cholesky_solve(wanted, torch.linalg.cholesky(square)).transpose(1, 2)
    return torch.zeros_like(right).scatter(2, places, solution * inside[:, None])


class RegressionSampler(ConditionalSampler):
    """Hidden entries are those of a donor, shifted on a scale by the difference of the expectations.

    The expectations of row and donor are linear in the known scores, so their difference is the expectation for the
    difference of the known scores. For rows that are normal on the scale, the draws have the exact conditional
    distribution. A gap of the row counts as hidden; one of a donor has the mean as its score, and stays a gap.
    """

    centred = True

    def _prepare(self, donors: Donors, seed: int) -> None:
        super()._prepare(donors, seed)
        self._scored = ScoredDonors.of(donors.rows, self._scale(donors), seed)
        self.regression = MaskedRegression.fitted(self._scored.expected)
        self._slopes = self._scored.slopes(donors.outputs)

    @staticmethod
    @abstractmethod
    def _scale(donors: Donors) -> ColumnScale:
        """Return the scale of the columns."""

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        scores = self._scored.scale.encode(x)
        known = self.donors.players.mask(s) & ~scores.isnan()
        row = scores.nan_to_num()[:, None]
        shifts = self.regression(known, torch.cat([row - self._scored.expected[numbers], row], dim=1))
        drawn, expected = shifts[:, :-1] + self._scored.spread[numbers], shifts[:, -1:]
        return Draws(self._scored.decoded(drawn, numbers), drawn - expected)


class CopulaSampler(RegressionSampler):
    """The Gaussian copula: normal scores are expected by linear regression on the known ones.

    Drawn numbers stay within the range of the donors.
    """

    kind = "copula"

    @staticmethod
    def _scale(donors: Donors) -> ColumnScale:
        return ColumnScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)


class NormalSampler(RegressionSampler):
    """Numbers are expected by linear regression on the known ones, as they are; categories by their normal scores.

    It is more precise than the copula for columns that are normal and highly correlated. Columns with many ties are
    treated as categories. Drawn numbers are clamped to the range of the donors, because a model extrapolates badly.
    """

    kind = "normal"

    @staticmethod
    def _scale(donors: Donors) -> ColumnScale:
        return StandardScores.fitted(donors.rows, leading_output(donors.outputs), donors.schema.discrete)
