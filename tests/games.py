"""Value functions whose Shapley values are known in closed form."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class KnownGame(Protocol):
    """A value function that can generate rows and compute their exact Shapley values."""

    @property
    def players(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    def __call__(self, x: Tensor, s: Tensor) -> Tensor: ...

    def rows(self, count: int, seed: int = 0) -> Tensor: ...

    def shapley(self, x: Tensor) -> Tensor:
        """Return the exact values, (n, players, outputs)."""


class Additive:
    """v(x, s) = bias + sum over s of weight * x: the value of each player is its own term."""

    def __init__(self, players: int, outputs: int = 1, seed: int = 0) -> None:
        self.players, self.outputs = players, outputs
        self.weight = _normal(seed, players, outputs)
        self.bias = _normal(seed + 1, outputs)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return self.bias + (x[:, None] * s) @ self.weight

    def rows(self, count: int, seed: int = 0) -> Tensor:
        return _normal(seed, count, self.players)

    def shapley(self, x: Tensor) -> Tensor:
        return x[:, :, None] * self.weight


class Glove:
    """One player owns a left glove, the others own right ones; x (n, 1) is the price of a pair.

    The left glove adds the price unless it comes first, so its share is rights / (rights + 1).
    """

    outputs = 1

    def __init__(self, players: int) -> None:
        self.players = players

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        pair = s[..., :1] & s[..., 1:].any(-1, keepdim=True)
        return x[:, None] * pair

    def rows(self, count: int, seed: int = 0) -> Tensor:
        return _normal(seed, count, 1).abs()

    def shapley(self, x: Tensor) -> Tensor:
        rights = self.players - 1
        share = torch.full((self.players, 1), 1 / (rights * (rights + 1)), dtype=torch.float64)
        share[0] = rights / (rights + 1)
        return x[:, None] * share


class Voting:
    """A motion passes when the weights in favour reach a quota. There is one output for each of two motions.

    The first motion needs a simple majority of equal players, so all have the same power. The second is the apex
    game: the first player needs one of the others, or all of the others need each other. The first player is
    pivotal unless it comes first or last.
    """

    outputs = 2

    def __init__(self, players: int) -> None:
        if players < 3 or players % 2 == 0:
            raise ValueError(f"players is {players}: voting needs an odd number, at least 3")
        self.players = players
        self.weight = torch.ones(players, 2, dtype=torch.float64)
        self.weight[0, 1] = players - 2
        self.quota = torch.tensor([(players + 1) // 2, players - 1])

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return (s.double() @ self.weight >= self.quota).double()

    def rows(self, count: int, seed: int = 0) -> Tensor:
        return torch.zeros(count, 1, dtype=torch.float64)

    def shapley(self, x: Tensor) -> Tensor:
        d = self.players
        power = torch.tensor([[1 / d, 2 / (d * (d - 1))]], dtype=torch.float64).repeat(d, 1)
        power[0, 1] = (d - 2) / d
        return power.expand(len(x), -1, -1)


class Moebius:
    """v(x, s) = sum of the dividends of the coalitions inside s. Members share a dividend evenly.

    Parameters
    ----------
    members : Tensor of shape (terms, players)
        The coalitions.
    dividends : Tensor of shape (terms, outputs)
        Their dividends, which x of shape (n, terms) scales.
    """

    def __init__(self, members: Tensor, dividends: Tensor) -> None:
        self.members, self.dividends = members.double(), dividends.double()
        self.players, self.outputs = members.shape[1], dividends.shape[1]

    @classmethod
    def random(
        cls, players: int, outputs: int = 1, terms: int = 20, order: int | None = None, seed: int = 0
    ) -> Moebius:
        """Draw coalitions of up to ``order`` players, with normally distributed dividends."""
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.randint(1, (order or players) + 1, (terms,), generator=generator)
        ranks = torch.rand(terms, players, generator=generator).argsort(1)
        return cls(ranks < sizes[:, None], _normal(seed, terms, outputs))

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        inside = s.double() @ self.members.T == self.members.sum(1)
        return (inside * x[:, None]) @ self.dividends

    def rows(self, count: int, seed: int = 0) -> Tensor:
        return 1 + _normal(seed, count, len(self.members))

    def shapley(self, x: Tensor) -> Tensor:
        share = self.members / self.members.sum(1, keepdim=True)
        return torch.einsum("nt,tp,tk->npk", x, share, self.dividends)


GAMES: dict[str, KnownGame] = {
    "additive": Additive(6, outputs=2),
    "glove": Glove(5),
    "voting": Voting(7),
    "moebius": Moebius.random(7, outputs=3),
}
