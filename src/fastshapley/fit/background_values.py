"""What each player of each background row adds, which removes most of the noise of a thinned game."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

from fastshapley.coalitions import pair_count
from fastshapley.estimators.kernel import leverage_values
from fastshapley.fit.budget import BACKGROUND_EVALUATIONS
from fastshapley.training.recipes import Targets
from fastshapley.training.run import Run
from fastshapley.value_functions.background_sampling import SampledBackground
from fastshapley.value_functions.protocol import ValueFunction
from fastshapley.value_functions.removal import Removal

logger = logging.getLogger(__name__)

PLAYER_COALITIONS = 8  # coalitions per player in each pass
_FASTEST = 1e-12  # seconds per row, at least


def background_values(
    value_function: ValueFunction, options: Targets | None, pace: float, run: Run
) -> Tensor | None:
    """Estimate what each player of each background row adds, for `SampledBackground`.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    options : Targets or None
        How targets are estimated; None if there are no targets.
    pace : float
        The seconds per row that the model is called with.
    run : Run
        The seed, the time and the place for unfinished work.

    Returns
    -------
    Tensor or None
        (background, players, outputs); None if the game cannot be thinned, or if evaluations are too expensive.
    """
    if options is None or not (isinstance(value_function, Removal) and value_function.can_be_thinned):
        return None
    saved: dict[str, Any] | None = run.checkpoint.load("background")
    if saved is None:
        found = _estimate(value_function, options, pace, run)
        saved = {"added": None if found is None else found.cpu()}
        run.checkpoint.save("background", saved)
    added: Tensor | None = saved["added"]
    return None if added is None else added.to(value_function.rows_.device)


def _estimate(game: Removal, options: Targets, pace: float, run: Run) -> Tensor | None:
    """Use the kernel estimator twice; the second pass has less noise thanks to the first."""
    calls = min(options.evaluations, min(options.seconds, run.clock.left()) / max(pace, _FASTEST))
    pairs = min(PLAYER_COALITIONS * game.players // 2, pair_count(game.players))
    rows = int(BACKGROUND_EVALUATIONS * calls / (len(game.rows_) * 2 * pairs))
    if rows < 1:
        logger.info("evaluations are expensive: targets keep the noise of the background")
        return None
    generator, added = run.generator("background values"), None
    if rows >= len(game.rows_):
        return leverage_values(game, game.rows_, pairs, generator)[0]
    for _ in range(2):
        added, _ = leverage_values(SampledBackground(game, rows, generator, added), game.rows_, pairs, generator)
    return added
