"""Mixtures of normal distributions, and what they expect of the hidden columns of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastshapley.value_functions.samplers.mixture import Mixture

PRIOR_SCALE = 0.5  # the prior expectation of a component's covariance, as a share of the mean one
RIDGE = 1e-3  # share of the diagonal in a covariance
MATRIX_ENTRIES = 1 << 21  # entries of the matrices and right sides that are solved at once


@dataclass(frozen=True)
class NormalMixture(Mixture):
    """A mixture of normal distributions. For normal rows, several components are much less precise than one.

    Attributes
    ----------
    shares : Tensor of shape (components,)
        The probabilities of the components.
    means : Tensor of shape (components, columns)
        Their means.
    covariances : Tensor of shape (components, columns, columns)
        Their covariances, which must be positive definite.
    """

    most_entries = 256  # Each component costs a solution per evaluation.
    clearly = 2.0
    least_gain = 1e-3

    means: Tensor
    covariances: Tensor

    @classmethod
    def of_members(cls, z: Tensor, membership: Tensor) -> NormalMixture:
        """Return the mixture whose components have the moments of their members.

        Covariances are drawn towards the mean covariance within components, as by an inverse Wishart prior.

        Parameters
        ----------
        z : Tensor of shape (n, columns)
            Rows.
        membership : Tensor of shape (n, components)
            The probability that a row belongs to a component.
        """
        (n, columns), components = z.shape, membership.shape[1]
        size = membership.sum(0).clamp(min=1e-9)
        means = membership.T @ z / size[:, None]
        pairs = zip(means, membership.T, strict=True)
        scatter = torch.stack([(z - mean).T @ ((z - mean) * member[:, None]) for mean, member in pairs])
        strength = columns + 2 if components > 1 else 0
        prior = PRIOR_SCALE * scatter.sum(0) / n
        covariances = (scatter + strength * prior) / (size + strength)[:, None, None]
        variances = covariances.diagonal(dim1=1, dim2=2)
        ridge = torch.where(variances > 1e-6, variances, 1.0)  # A constant column has no variance.
        return cls(
            (size + 1) / (n + components), means, (1 - RIDGE) * covariances + RIDGE * torch.diag_embed(ridge)
        )

    def joint_log_density(self, z: Tensor) -> Tensor:
        """Return the log-density of rows (n, columns) and components, (n, components), up to a constant."""
        root = torch.linalg.cholesky(self.covariances)
        differences = (z - self.means[:, None]).transpose(1, 2)
        distance = torch.linalg.solve_triangular(root, differences, upper=False).square().sum(1)
        return self.shares.log() - root.diagonal(dim1=1, dim2=2).log().sum(1) - distance.T / 2


class Regressions:
    """The regressions of all columns on the known ones, for rows that share few sets of known columns.

    Parameters
    ----------
    mixture : NormalMixture
        The distribution of the rows.
    known : Tensor of shape (sets, columns)
        Which columns are known.
    """

    def __init__(self, mixture: NormalMixture, known: Tensor) -> None:
        self.mixture = mixture
        size = int(known.sum(1).max())
        inside, columns = known.to(torch.uint8).sort(dim=1, descending=True, stable=True)
        self._inside, self._columns = inside[:, :size].to(mixture.means), columns[:, :size]
        square = mixture.covariances[:, self._columns[:, :, None], self._columns[:, None]]
        if not bool(self._inside.all()):  # Smaller sets are filled up with columns that depend on nothing.
            square = square * self._inside[:, :, None] * self._inside[:, None] + torch.diag_embed(1 - self._inside)
        self._roots = torch.linalg.cholesky(square)  # (components, sets, size, size)
        self._to_all = mixture.covariances[:, self._columns] * self._inside[..., None]

    def expected(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is expected of rows.

        Parameters
        ----------
        z : Tensor of shape (sets, n, columns)
            The rows of each set. Hidden entries are ignored.

        Returns
        -------
        shares : Tensor of shape (sets, n, components)
            The probability that a row belongs to a component, given its known entries.
        expectations : Tensor of shape (components, sets, n, columns)
            What each component expects of the columns; known entries have no meaning.
        """
        means = self.mixture.means
        away = self._known(z) - means[:, self._columns][:, :, None] * self._inside[:, None]
        half = torch.linalg.solve_triangular(self._roots, away.transpose(2, 3), upper=False)
        volume = self._roots.diagonal(dim1=2, dim2=3).log().sum(2)
        joint = self.mixture.shares.log()[:, None, None] - volume[..., None] - half.square().sum(2) / 2
        solved = torch.linalg.solve_triangular(self._roots.transpose(2, 3), half, upper=True)
        return joint.softmax(0).movedim(0, 2), means[:, None, None] + solved.transpose(2, 3) @ self._to_all

    def shifts(self, differences: Tensor, component: Tensor) -> Tensor:
        """Return the expected differences of all columns between two rows.

        Parameters
        ----------
        differences : Tensor of shape (sets, n, columns)
            The differences of the rows. Those of hidden entries are ignored.
        component : Tensor of shape (sets, n)
            The component that both rows belong to.

        Returns
        -------
        Tensor of shape (sets, n, columns)
            The differences; those of known entries have no meaning.
        """
        right = self._known(differences).transpose(1, 2)
        solved = torch.cholesky_solve(right.expand(len(self._roots), -1, -1, -1), self._roots)
        found = solved.transpose(2, 3) @ self._to_all
        if len(found) == 1:
            return found[0]
        return found.gather(0, component[None, ..., None].expand(1, *differences.shape))[0]

    def _known(self, values: Tensor) -> Tensor:
        """Return the known columns of values (sets, n, columns), (sets, n, size)."""
        places = self._columns[:, None].expand(-1, values.shape[1], -1)
        return values.gather(2, places) * self._inside[:, None]


def rows_by_set(known: Tensor, entries: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield sets of known columns, and the rows that have them, in blocks that can be solved at once.

    Parameters
    ----------
    known : Tensor of shape (n, columns)
        Which columns of each row are known.
    entries : int
        The numbers that each row takes in the largest array.

    Yields
    ------
    sets : Tensor of shape (sets, columns)
        Different sets.
    rows : Tensor of shape (sets, most)
        The numbers of their rows. Where a set has fewer rows than another, its last one is repeated.
    """
    bits = np.packbits(known.cpu().numpy(), axis=1)
    keys = np.ascontiguousarray(bits).view(np.dtype((np.void, bits.shape[1])))[:, 0]
    _, first, which, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    rows = np.argsort(which, kind="stable")
    starts = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")  # Sets with similar numbers of rows go together.
    done, columns = 0, known.shape[1]
    while done < len(order):
        most = int(counts[order[done]])
        sets = order[done : done + max(1, MATRIX_ENTRIES // max(columns * columns, most * entries))]
        place = starts[sets, None] + np.minimum(np.arange(most), counts[sets, None] - 1)
        yield known[torch.from_numpy(first[sets])], torch.from_numpy(rows[place]).to(known.device)
        done += len(sets)
