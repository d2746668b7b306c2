"""The parameters of an explainer as one value, and the checks that need no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fastshapley.data.players import Players
from fastshapley.training import recipes
from fastshapley.value_functions import BaseGame
from fastshapley.value_functions.base_game import is_fitted
from fastshapley.value_functions.links import LINKS, Link
from fastshapley.value_functions.registry import AUTO, SHORT_NAMES

Normalize = Literal["always", "inference", "never"]


@dataclass(frozen=True)
class Settings:
    """The parameters of `FastSHAP`, which documents them."""

    model: Any = None
    value_function: Any = AUTO
    players: Players | None = None
    link: Link = "identity"
    logits: bool = False
    network: Any = None
    normalize: Normalize = "always"
    penalty: float = 0.0
    output_names: Sequence[str] | None = None
    recipe: Any = "default"
    time_budget: float | None = None
    evaluation_budget: int | None = None
    device: str | torch.device | None = None
    random_state: Any = None
    progress: bool = True

    def check(self, game: Any) -> None:
        """Check that the parameters make sense for a value function, before anything is computed.

        Parameters
        ----------
        game : object
            The value function: a name, an instance that is fitted or not, or an object of the user's.

        Raises
        ------
        ValueError
            If a parameter does not make sense.
        """
        if self.normalize not in ("always", "inference", "never"):
            raise ValueError(f"normalize is {self.normalize!r}: use 'always', 'inference' or 'never'")
        if self.link not in LINKS:
            raise ValueError(f"link is {self.link!r}: use one of {LINKS}")
        if not isinstance(self.penalty, float | int | np.number) or not self.penalty >= 0:
            raise ValueError(f"penalty is {self.penalty!r}: use a number that is not negative")
        if not isinstance(self.players, Players | None):
            raise ValueError(
                f"players is {self.players!r}: use Groups({{'name': [columns]}}), Features() or "
                "Superpixels(grid=14)"
            )
        self._check_game(game)
        self._check_output_names()
        recipes.check_recipe(self.recipe)
        for name in ("time_budget", "evaluation_budget"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, float | int | np.number) and value > 0):
                raise ValueError(f"{name} is {value!r}: use a positive number, or None")

    def _check_game(self, game: Any) -> None:
        if not (
            game in (AUTO, *SHORT_NAMES) if isinstance(game, str) else isinstance(game, BaseGame) or is_fitted(game)
        ):
            raise ValueError(
                f"value_function is {game!r}: use one of {[AUTO, *sorted(SHORT_NAMES)]}, an instance of a class in "
                "fastshapley.value_functions, or an object with players, outputs and __call__(x, s)"
            )
        if self.model is None and not is_fitted(game):
            raise ValueError("model is None: pass the model to explain, or a fitted value function")
        if isinstance(game, BaseGame) and is_fitted(game) and self.link not in ("identity", game.link):
            raise ValueError(f"link is {self.link!r}, but the value function was fitted with link {game.link!r}")

    def _check_output_names(self) -> None:
        names = self.output_names
        if names is None:
            return
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise ValueError(f"output_names is {names!r}: use a list of strings, one for each output of the model")
        if len(set(names)) < len(names):
            raise ValueError(f"output_names is {names!r}: each name must be different")

    def resolved_device(self) -> torch.device:
        """Return where the networks run: by default a GPU if there is one."""
        if self.device is not None:
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
