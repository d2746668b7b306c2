"""Games at a fraction of their cost: few of their background rows, or few draws, for each evaluation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastshapley.value_functions.base_game import GameTraits, thinned
from fastshapley.value_functions.protocol import ValueFunction
from fastshapley.value_functions.removal import MEMORY, Removal

Thin = Callable[[int, torch.Generator], ValueFunction]  # coalitions per row, generator -> the game to evaluate


class SampledBackground(GameTraits):
    """A game that averages over a few random background rows of another; its expectation is that other game.

    Parameters
    ----------
    game : Removal
        The other game, whose link must be the identity.
    rows : int
        The number of background rows for each evaluation.
    generator : torch.Generator
        The source of random numbers.
    added : Tensor, optional
        An estimate of what each player of a background row adds to the output, (background, players, outputs).
        Less its mean over the background, it is subtracted for the players that come from the background. This
        leaves the expectation as it is, and removes most of the noise if the estimate is close to the Shapley
        values of the background rows.
    """

    def __init__(self, game: Removal, rows: int, generator: torch.Generator, added: Tensor | None = None) -> None:
        self.game, self.cost, self.generator = game, rows, generator
        self.players, self.outputs, self.null, self.grand = game.players, game.outputs, game.null, game.grand
        self.added = None if added is None else added - added.mean(0)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return an unbiased estimate of v(x, s), (n, m, outputs)."""
        width = x[:1].numel() if self.added is None else max(x[:1].numel(), self.players * self.outputs)
        most = max(1, MEMORY // (8 * self.cost * width))  # evaluations at once
        rows = max(1, most // s.shape[1])
        parts = zip(x.split(rows), s.split(rows), strict=True)
        return torch.cat([torch.cat([self._evaluate(a, c) for c in b.split(most, dim=1)], dim=1) for a, b in parts])

    def _evaluate(self, x: Tensor, s: Tensor) -> Tensor:
        background, shown = self.game.rows_, self.game.partition_.mask(s)
        size, device = (*s.shape[:2], self.cost), self.generator.device
        drawn = torch.randint(len(background), size, generator=self.generator, device=device)
        mixed = torch.where(shown[:, :, None], x[:, None, None], background[drawn])
        y = self.game.predict(mixed.flatten(0, 2)).unflatten(0, size)
        if self.added is not None:
            y = y - torch.einsum("nmp,nmbpo->nmbo", (~s).to(self.added), self.added[drawn])
        return y.mean(2)


def can_be_thinned(value_function: ValueFunction) -> bool:
    """Return whether a game is a plain average over rows, so that a few random ones are unbiased."""
    return isinstance(value_function, GameTraits) and value_function.can_be_thinned


def unthinned(value_function: ValueFunction) -> Thin:
    """Return how not to thin a game."""
    return lambda coalitions, generator: value_function


def thinning(value_function: ValueFunction, added: Tensor | None = None) -> Thin:
    """Return how to thin a game: the game to evaluate, given the number of coalitions per row and a generator.

    An evaluation uses one background row, or one draw; more if there are fewer coalitions than are asked for.

    Parameters
    ----------
    value_function : ValueFunction
        The game; one that cannot be thinned stays as it is.
    added : Tensor, optional
        As for `SampledBackground`.
    """
    if not can_be_thinned(value_function):
        return unthinned(value_function)
    game = value_function
    if not isinstance(game, Removal):
        return lambda coalitions, generator: thinned(game, coalitions, generator)

    def thin(coalitions: int, generator: torch.Generator) -> ValueFunction:
        rows = max(1, coalitions >> game.players)
        return SampledBackground(game, rows, generator, added) if rows < len(game.rows_) else game

    return thin
