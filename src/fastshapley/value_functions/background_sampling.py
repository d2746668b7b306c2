"""A marginal game at a fraction of its cost, right on average: what targets are learnt from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fastshapley.coalitions import pair_count
from fastshapley.estimators.kernel import leverage_values
from fastshapley.training.recipes import Targets
from fastshapley.training.run import Run
from fastshapley.value_functions import Removal, ValueFunction
from fastshapley.value_functions.protocol import cost
from fastshapley.value_functions.removal import MEMORY

logger = logging.getLogger(__name__)

Thin = Callable[[int, torch.Generator], ValueFunction]  # the game for so many coalitions a row, and a generator
_SHARE = 0.025  # of the evaluations, for each of two looks at what background rows add
_COALITIONS = 8  # a player, at each look


class Thinned:
    """A game of the model that averages over few of its background rows, drawn anew for each evaluation.

    Its expectation is the game, whose link must be the identity. ``added`` (background, players, outputs) is what
    each player of a background row is thought to add to the output; less the mean over rows, it is taken off for
    the players that come from the background. Right or wrong, that leaves the expectation as it is; as good as the
    background rows' Shapley values, it takes off most of the noise.
    """

    def __init__(self, game: Removal, rows: int, generator: torch.Generator, added: Tensor | None = None) -> None:
        self.game, self.cost, self.generator = game, rows, generator
        self.players, self.outputs, self.null, self.grand = game.players, game.outputs, game.null, game.grand
        self.added = None if added is None else added - added.mean(0)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
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


def cost_of(value_function: ValueFunction) -> int:
    """How many rows the model is called with for one evaluation of a game, thinned or not."""
    return value_function.cost if isinstance(value_function, Thinned) else cost(value_function)


def can_be_thinned(value_function: ValueFunction) -> TypeGuard[Removal]:
    """Whether a game averages the model's outputs over several rows, and nothing is made of the average."""
    game = value_function
    if not isinstance(game, Removal) or type(game).__call__ is not Removal.__call__:  # or a user's own average
        return False
    return game.link == "identity" and len(game.rows_) > 1


def thinning(value_function: ValueFunction, options: Targets | None, added: Tensor | None = None) -> Thin:
    """How to thin a game; one that cannot be thinned, or need not be for these ``options``, stays as it is.

    An evaluation takes one background row; where there are fewer coalitions than are asked for, it takes more.
    """
    if options is None or not can_be_thinned(value_function):
        return lambda coalitions, generator: value_function
    game = value_function

    def thin(coalitions: int, generator: torch.Generator) -> ValueFunction:
        rows = max(1, coalitions >> game.players)
        return Thinned(game, rows, generator, added) if rows < len(game.rows_) else game

    return thin


def background_values(
    value_function: ValueFunction, options: Targets | None, pace: float, run: Run
) -> Tensor | None:
    """What each player of each background row adds, for `Thinned`; None for a game that needs none, or if too dear.

    ``pace`` is the seconds that a row takes which the model is called with.
    """
    if options is None or not can_be_thinned(value_function):
        return None
    saved: dict[str, Any] | None = run.checkpoint.load("background")
    if saved is None:
        found = _background_values(value_function, options, pace, run)
        saved = {"added": None if found is None else found.cpu()}
        run.checkpoint.save("background", saved)
    added: Tensor | None = saved["added"]
    return None if added is None else added.to(value_function.rows_.device)


def _background_values(game: Removal, options: Targets, pace: float, run: Run) -> Tensor | None:
    """By the kernel estimator: once, and once more with the noise off that the first look takes off."""
    calls = min(options.evaluations, min(options.seconds, run.clock.left()) / max(pace, 1e-12))
    pairs = min(_COALITIONS * game.players // 2, pair_count(game.players))
    rows = int(_SHARE * calls / (len(game.rows_) * 2 * pairs))
    if rows < 1:
        logger.info("evaluations are dear: targets keep the noise of the background")
        return None
    generator, added = run.generator("background values"), None
    if rows >= len(game.rows_):
        return leverage_values(game, game.rows_, pairs, generator)[0]
    for _ in range(2):
        added, _ = leverage_values(Thinned(game, rows, generator, added), game.rows_, pairs, generator)
    return added
