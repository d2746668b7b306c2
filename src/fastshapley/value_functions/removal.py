"""Games of the user's own model: hidden entries are replaced, and the model's outputs are averaged."""

from __future__ import annotations

import copy
from abc import ABC
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fastshapley.data.model_adapter import ModelFunction, Scale
from fastshapley.data.players import Partition
from fastshapley.data.schema import Schema
from fastshapley.errors import InputError, ModelError
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import BaseGame, GameContext, Problem
from fastshapley.value_functions.links import Link, apply_link

MEMORY = 1 << 27  # bytes of mixed rows that are built at once


class Removal(BaseGame, ABC):
    """v(x, s) = link(mean over b of f(x_s, b)): hidden entries come from fixed rows b, all of them from one row.

    Attributes
    ----------
    model_ : ModelFunction or None
        The model; None if the game was restored without it.
    rows_ : Tensor
        The rows b, (rows, ...).
    """

    calls_model = True

    model_: ModelFunction | None
    rows_: Tensor

    def assemble(self, model: ModelFunction, rows: Tensor, players: Partition, link: Link) -> Self:
        """Make this the game of a model, and return it.

        Parameters
        ----------
        model : ModelFunction
            The model.
        rows : Tensor
            The rows that hidden entries come from, (rows, ...).
        players : Partition
            The players.
        link : str
            The link.

        Raises
        ------
        InputError
            If the outputs do not suit the link.
        """
        y = model(rows)
        apply_link(link, y)  # Outputs that do not suit the link are reported before they are averaged.
        null = apply_link(link, y.mean(0))
        self._set(model, rows, model.schema, players, link, null, model.scale)
        return self

    def update(self, problem: Problem, run: Run) -> BaseGame:
        """Return the game of the model as it is now, with the same background rows and link.

        Raises
        ------
        InputError
            If the model has another number of outputs now.
        """
        if problem.model.outputs != self.outputs:
            raise InputError(
                f"the model has {problem.model.outputs} outputs now and had {self.outputs}: call fit instead"
            )
        return copy.copy(self).assemble(problem.model, self.rows_, problem.players, self.link)

    def describe(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the scale and the link, and the rows and the null values."""
        return {"kind": self.kind, "scale": self.scale, "link": self.link}, {"rows": self.rows_, "null": self.null}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor], context: GameContext) -> Self:
        """Return the fitted game; without a model it can be saved again, but not evaluated."""
        rows, model, schema = tensors["rows"], context.model, context.schema
        function = None if model is None else ModelFunction(model, schema, rows, context.logits)
        game = cls()
        game._set(function, rows, schema, context.partition, config["link"], tensors["null"], config["scale"])
        return game

    def _set(
        self,
        model: ModelFunction | None,
        rows: Tensor,
        schema: Schema,
        players: Partition,
        link: Link,
        null: Tensor,
        scale: Scale,
    ) -> None:
        self.model_, self.rows_, self.schema_, self.partition_ = model, rows, schema, players
        self.link, self.null, self.scale = link, null, scale
        self.players, self.outputs, self.cost = len(players), len(null), len(rows)

    @property
    def called_model(self) -> ModelFunction | None:
        """The model."""
        return self.model_

    @property
    def game_errors(self) -> tuple[float, ...]:
        """Zero: these games define their values."""
        return (0.0,) * self.outputs

    @property
    def can_be_thinned(self) -> bool:
        """Whether nothing is made of the average over several rows; a subclass may have an average of its own."""
        plain = type(self).__call__ is Removal.__call__
        return plain and self.link == "identity" and len(self.rows_) > 1

    def is_game_of(self, model: ModelFunction | None) -> bool:
        """Return whether this is the model that is called."""
        return self.model_ is model

    def grand(self, x: Tensor) -> Tensor:
        """Return the link of the model's outputs, (n, outputs)."""
        return apply_link(self.link, self.predict(x))

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs)."""
        first, which = _distinct(s)  # A coalition that a row has twice is evaluated once.
        shown = self.partition_.mask(s).flatten(0, 1)[first]
        row = torch.arange(len(x), device=x.device).repeat_interleave(s.shape[1])[first]
        chunk = max(1, MEMORY // (8 * self.rows_.numel()))
        means = []
        for show, number in zip(shown.split(chunk), row.split(chunk), strict=True):
            mixed = torch.where(show[:, None], x[number][:, None], self.rows_)
            means.append(self.predict(mixed.flatten(0, 1)).unflatten(0, mixed.shape[:2]).mean(1))
        return apply_link(self.link, torch.cat(means))[which].unflatten(0, s.shape[:2])

    def predict(self, x: Tensor) -> Tensor:
        """Return the model's outputs for encoded rows, (n, outputs).

        Raises
        ------
        ModelError
            If the game was restored without its model.
        """
        if self.model_ is None:
            raise ModelError(
                f"the {type(self).__name__.lower()} value function calls the model, which a file does not hold: "
                "use FastSHAP.load(path, model=model), or --model on the command line"
            )
        return self.model_(x)


def _distinct(s: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for coalitions (n, m, players), the first of each row's equal ones, and which of these each one is.

    Both are positions after the first two axes have been flattened.
    """
    n, m, players = s.shape
    bits = np.packbits(s.reshape(n * m, players).cpu().numpy(), axis=1)
    bits = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))
    keys = [*bits.view(np.uint64).T, np.arange(n * m) // m]
    order = np.lexsort(keys)
    new = np.zeros(n * m, dtype=bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[order[1:]] != key[order[:-1]]
    which = np.empty(n * m, dtype=np.int64)
    which[order] = new.cumsum() - 1
    return torch.from_numpy(order[new]).to(s.device), torch.from_numpy(which).to(s.device)
