"""The baseline game: hidden entries take fixed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor

from fastshapley.data.table_schema import Table
from fastshapley.errors import InputError
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import Problem
from fastshapley.value_functions.removal import Removal


class Baseline(Removal):
    """Hidden entries take fixed values.

    Parameters
    ----------
    values : mapping or table, optional
        The values of some columns, or a table of one row. A column without a value takes its mean, or its most
        frequent value if it holds categories or booleans. For images, ``values`` is one image; by default hidden
        pixels take the players' ``fill``.
    """

    kind = "baseline"
    has_short_name = True

    def __init__(self, values: Mapping[str, Any] | Table | None = None) -> None:
        self.values = values

    def fit(self, problem: Problem, run: Run) -> Self:
        """Find the values of all columns, and return the game.

        Raises
        ------
        InputError
            If ``values`` does not fit the data, or the outputs do not suit the link.
        """
        return self.assemble(problem.model, self._row(problem), problem.players, problem.link)

    def _row(self, problem: Problem) -> Tensor:
        schema, x = problem.model.schema, problem.x
        if self.values is None or isinstance(self.values, Mapping):
            return schema.baseline_row(x, problem.players, self.values)
        rows = schema.encode(self.values, "values")
        if len(rows) != 1:
            raise InputError(f"values has {len(rows)} rows: pass one row, or a mapping from columns to values")
        return rows[:].to(x.device)
