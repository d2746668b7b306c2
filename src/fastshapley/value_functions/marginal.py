"""The marginal game: hidden entries come from background rows."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from fastshapley.data.table_schema import Table
from fastshapley.errors import InputError
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import Problem
from fastshapley.value_functions.removal import Removal


class Marginal(Removal):
    """Hidden entries come from background rows, and the outputs are averaged over these.

    Parameters
    ----------
    background : int or table
        The number of training rows to draw, or a table of the user's own.
    """

    kind = "marginal"
    has_short_name = True

    def __init__(self, background: int | Table = 128) -> None:
        self.background = background

    def fit(self, problem: Problem, run: Run) -> Self:
        """Draw the background rows, and return the game.

        Raises
        ------
        InputError
            If there are no background rows, or the outputs do not suit the link.
        """
        return self.assemble(problem.model, self._rows(problem, run), problem.players, problem.link)

    def _rows(self, problem: Problem, run: Run) -> Tensor:
        x = problem.x
        if isinstance(self.background, int | np.integer):
            if self.background < 1:
                raise InputError(f"background is {self.background}: use at least one row")
            generator = run.generator("background")
            return x[torch.randperm(len(x), generator=generator, device=x.device)[: int(self.background)]]
        rows = problem.model.schema.encode(self.background, "background")[:].to(x.device)
        if len(rows) == 0:
            raise InputError("background has no rows")
        return rows
