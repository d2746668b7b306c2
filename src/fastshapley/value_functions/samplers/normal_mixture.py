"""Mixtures of normal distributions, and what they expect of the hidden columns of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

COMPONENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of components that are tried
MOST_ENTRIES = 256  # components times columns, at most: each component costs a solution per evaluation
FEWEST_ROWS = 20  # held-out rows without which there is one component
ROWS_PER_COMPONENT = 10  # rows, at least
CLEARLY = 2.0  # standard errors by which a larger number of components must be better
TRIES = 2  # larger numbers of components that are tried after the best one
STEPS = 60  # of expectation-maximisation, at most
LEAST_GAIN = 1e-3  # of the mean log-density, below which it stops
PRIOR_SCALE = 0.5  # the prior expectation of a component's covariance, as a share of the mean one
RIDGE = 1e-3  # share of the diagonal in a covariance
MATRIX_ENTRIES = 1 << 21  # entries of the matrices and right sides that are solved at once


@dataclass(frozen=True)
class NormalMixture:
    """A mixture of normal distributions.

    Attributes
    ----------
    shares : Tensor of shape (components,)
        The probabilities of the components.
    means : Tensor of shape (components, columns)
        Their means.
    covariances : Tensor of shape (components, columns, columns)
        Their covariances, which must be positive definite.
    """

    shares: Tensor
    means: Tensor
    covariances: Tensor

    def __len__(self) -> int:
        return len(self.shares)

    @classmethod
    def fitted(cls, z: Tensor, z_val: Tensor, seed: int) -> NormalMixture:
        """Return the mixture with the number of components that describes held-out rows best.

        A larger number must be better by more than two standard errors of the difference: for normal rows, a
        mixture is much less precise than one normal distribution.

        Parameters
        ----------
        z, z_val : Tensor of shape (n, columns)
            Rows to learn from, and held-out rows.
        seed : int
            The seed of the first assignment of rows to components.
        """
        best = cls.with_components(z, 1, seed)
        if len(z_val) < FEWEST_ROWS or z.shape[1] < 2:
            return best
        density, failures = best.log_density(z_val), 0
        for number in COMPONENTS:
            too_many = number * z.shape[1] > MOST_ENTRIES or number * ROWS_PER_COMPONENT > len(z)
            if too_many or failures == TRIES:
                break
            found = cls.with_components(z, number, seed)
            gain = found.log_density(z_val) - density
            if float(gain.mean()) > CLEARLY * float(gain.std()) / len(gain) ** 0.5:
                best, density, failures = found, density + gain, 0
            else:
                failures += 1
        return best

    @classmethod
    def with_components(cls, z: Tensor, number: int, seed: int) -> NormalMixture:
        """Return the mixture of a number of components, by expectation-maximisation."""
        centres = z[:1]
        if number > 1:
            centres = torch.from_numpy(kmeans_plusplus(z.cpu().numpy(), number, random_state=seed)[0]).to(z)
        nearest = torch.cdist(z, centres).argmin(1)
        found = cls.of_members(z, torch.nn.functional.one_hot(nearest, number).to(z))
        last = -torch.inf
        for _ in range(STEPS if number > 1 else 0):
            joint = found.joint_log_density(z)
            mean = float(joint.logsumexp(1).mean())
            if mean - last < LEAST_GAIN:
                break
            found, last = cls.of_members(z, joint.softmax(1)), mean
        return found

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

    def log_density(self, z: Tensor) -> Tensor:
        """Return the log-density of rows (n, columns), (n,), up to a constant."""
        return self.joint_log_density(z).logsumexp(1)


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
