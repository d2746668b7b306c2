"""Games of the user's own model: what is hidden is replaced, and the model's outputs are averaged."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import ModelFunction, Scale, trial_rows
from fastshapley.data.players import Partition
from fastshapley.data.table_schema import Schema, Table
from fastshapley.errors import InputError, ModelError
from fastshapley.training.run import Run
from fastshapley.value_functions.protocol import BaseGame, Link, Problem, apply_link

MEMORY = 1 << 27  # bytes of mixed rows built at once


class Removal(BaseGame, ABC):
    """v(x, s) = link(mean over b of f(x_s, b)): hidden entries are taken from fixed rows b, all of one row."""

    rows_: Tensor

    def assemble(self, model: ModelFunction, rows: Tensor, players: Partition, link: Link) -> Self:
        y = model(rows)
        apply_link(link, y)  # outputs that it does not fit are reported here, before they are averaged
        null = apply_link(link, y.mean(0))
        return self.restore(model, rows, model.schema, players, link, null, model.scale)

    def restore(
        self,
        model: ModelFunction | None,
        rows: Tensor,
        schema: Schema | ImageSchema,
        players: Partition,
        link: Link,
        null: Tensor,
        scale: Scale,
    ) -> Self:
        """The fitted game from its parts; without the model it can be kept, but not evaluated."""
        self.model_, self.rows_, self.schema_, self.partition_ = model, rows, schema, players
        self.link, self.null, self.scale = link, null, scale
        self.players, self.outputs, self.cost = len(players), len(null), len(rows)
        return self

    def grand(self, x: Tensor) -> Tensor:
        return apply_link(self.link, self.predict(x))

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        first, which = _distinct(s)  # a coalition that a row has twice is evaluated once
        shown = self.partition_.mask(s).flatten(0, 1)[first]
        row = torch.arange(len(x), device=x.device).repeat_interleave(s.shape[1])[first]
        chunk = max(1, MEMORY // (8 * self.rows_.numel()))
        means = []
        for show, number in zip(shown.split(chunk), row.split(chunk), strict=True):
            mixed = torch.where(show[:, None], x[number][:, None], self.rows_)
            means.append(self.predict(mixed.flatten(0, 1)).unflatten(0, mixed.shape[:2]).mean(1))
        return apply_link(self.link, torch.cat(means))[which].unflatten(0, s.shape[:2])

    def predict(self, x: Tensor) -> Tensor:
        """The model's outputs for encoded rows."""
        if self.model_ is None:
            raise ModelError(
                f"the {type(self).__name__.lower()} value function calls the model, which a file does not hold: "
                "use FastSHAP.load(path, model=model), or --model on the command line"
            )
        return self.model_(x)


class Marginal(Removal):
    """Hidden entries come from background rows, and the outputs are averaged over them.

    ``background`` is how many training rows to draw, or a table of the user's own.
    """

    def __init__(self, background: int | Table = 128) -> None:
        self.background = background

    def fit(self, problem: Problem, run: Run) -> Self:
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


class Baseline(Removal):
    """Hidden entries take fixed values.

    ``values`` maps columns to values, or is a table of one row. A column that it does not name takes its
    mean, or its most frequent value where it holds categories or booleans. Of images, ``values`` is one image, and
    by default hidden pixels take the players' ``fill``.
    """

    def __init__(self, values: Mapping[str, Any] | Table | None = None) -> None:
        self.values = values

    def fit(self, problem: Problem, run: Run) -> Self:
        return self.assemble(problem.model, self._row(problem), problem.players, problem.link)

    def _row(self, problem: Problem) -> Tensor:
        schema, x = problem.model.schema, problem.x
        if isinstance(schema, ImageSchema) and self.values is None:
            return problem.players.filling(x[:1]).expand_as(x[:1]).contiguous()
        if self.values is not None and not isinstance(self.values, Mapping):
            rows = schema.encode(self.values, "values")
            if len(rows) != 1:
                raise InputError(f"values has {len(rows)} rows: pass one row, or a mapping from columns to values")
            return rows[:].to(x.device)
        if isinstance(schema, ImageSchema) or not isinstance(x, Tensor):
            raise InputError("values is a mapping from columns to values, and there are images: pass one image")
        row = torch.stack([_centre(x[:, j], column.discrete) for j, column in enumerate(schema.columns)])
        for key, value in (self.values or {}).items():
            if str(key) not in schema.names:
                raise InputError(f"values names {key!r}, which is not a column; there are {list(schema.names)}")
            j = schema.names.index(str(key))
            row[j] = schema.encode_cell(j, value)
        return row[None]


class Missing(Removal):
    """Hidden entries go missing, for a model that was trained on rows with gaps.

    ``model`` stands in for the user's model, as a surrogate; by default it is that model itself.
    """

    def __init__(self, model: Any = None) -> None:
        self.model = model

    def fit(self, problem: Problem, run: Run) -> Self:
        model = problem.model
        if isinstance(model.schema, ImageSchema):
            raise InputError(
                "a pixel does not go missing: use Baseline(), which gives hidden ones the players' fill"
            )
        if self.model is not None:
            model = ModelFunction(self.model, model.schema, trial_rows(problem.x))
            if model.outputs != problem.model.outputs:
                raise ModelError(
                    f"the surrogate has {model.outputs} outputs where the model has {problem.model.outputs}"
                )
        gaps = torch.full_like(problem.x[:1], torch.nan)
        return self.assemble(model, gaps, problem.players, problem.link)


def _distinct(s: Tensor) -> tuple[Tensor, Tensor]:
    """Of coalitions (n, m, players), flattened: the first of each row's equal ones, and which of these each is."""
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


def _centre(values: Tensor, discrete: bool) -> Tensor:
    present = values[~values.isnan()]
    if len(present) == 0:
        return values.new_tensor(torch.nan)
    return present.mode().values if discrete else present.mean()
