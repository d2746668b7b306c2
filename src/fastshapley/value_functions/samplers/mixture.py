"""Mixtures of distributions: how many components they have, and which donors belong to each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

COMPONENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of components that are tried
FEWEST_ROWS = 20  # held-out rows without which there is one component
ROWS_PER_COMPONENT = 10  # rows, at least
TRIES = 2  # larger numbers of components that are tried after the best one
STEPS = 100  # of expectation-maximisation, at most


@dataclass(frozen=True)
class Mixture(ABC):
    """A mixture of distributions of one family.

    Attributes
    ----------
    shares : Tensor of shape (components,)
        The probabilities of the components.
    """

    most_entries: ClassVar[int]  # components times columns, at most
    clearly: ClassVar[float]  # standard errors by which a larger number of components must be better
    least_gain: ClassVar[float]  # expectation-maximisation stops where a step raises the mean log-density by less

    shares: Tensor

    def __len__(self) -> int:
        return len(self.shares)

    @classmethod
    def fitted(cls, z: Tensor, z_val: Tensor, seed: int) -> Self:
        """Return the mixture with the number of components that describes held-out rows best.

        A larger number must be better by more than ``clearly`` standard errors of the difference.

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
            too_many = number * z.shape[1] > cls.most_entries or number * ROWS_PER_COMPONENT > len(z)
            if too_many or failures == TRIES:
                break
            found = cls.with_components(z, number, seed)
            gain = found.log_density(z_val) - density
            if float(gain.mean()) > cls.clearly * float(gain.std()) / len(gain) ** 0.5:
                best, density, failures = found, density + gain, 0
            else:
                failures += 1
        return best

    @classmethod
    def with_components(cls, z: Tensor, number: int, seed: int) -> Self:
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
            if mean - last < cls.least_gain:
                break
            found, last = cls.of_members(z, joint.softmax(1)), mean
        return found

    @classmethod
    @abstractmethod
    def of_members(cls, z: Tensor, membership: Tensor) -> Self:
        """Return the mixture whose components describe their members.

        Parameters
        ----------
        z : Tensor of shape (n, columns)
            Rows.
        membership : Tensor of shape (n, components)
            The probability that a row belongs to a component.
        """

    @abstractmethod
    def joint_log_density(self, z: Tensor) -> Tensor:
        """Return the log-density of rows (n, columns) and components, (n, components), up to a constant."""

    def log_density(self, z: Tensor) -> Tensor:
        """Return the log-density of rows (n, columns), (n,), up to a constant."""
        return self.joint_log_density(z).logsumexp(1)


class ComponentDonors:
    """The donors of each component of a mixture.

    Parameters
    ----------
    membership : Tensor of shape (donors, components)
        The probability that a donor belongs to a component.
    """

    def __init__(self, membership: Tensor) -> None:
        self.count, components = membership.shape
        shares = membership.cumsum(0) / membership.sum(0)
        # Donor and component in one list: the donors of each component, one component after the other.
        self._ends = (shares + torch.arange(components, device=shares.device)).T.flatten()

    def chosen(self, shares: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return donors and their components, given the probabilities of the components.

        Parameters
        ----------
        shares : Tensor of shape (..., components)
            The probability of each component.
        numbers : Tensor of shape (..., draws)
            Numbers of donors, as if there were one component.
        """
        if shares.shape[-1] == 1:
            return numbers, torch.zeros_like(numbers)
        place = ((numbers + 0.5) / self.count).to(shares)
        ends = shares.cumsum(-1)
        component = torch.searchsorted(ends, place).clamp(max=shares.shape[-1] - 1)
        share = shares.gather(-1, component)
        within = (place - ends.gather(-1, component) + share) / share.clamp(min=1e-12)
        number = torch.searchsorted(self._ends, component + within.clamp(0, 1))
        return (number - component * self.count).clamp(0, self.count - 1), component
