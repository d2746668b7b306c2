"""The model's outputs that a surrogate learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastshapley.data.stream import Rows, some
from fastshapley.training.run import Run
from fastshapley.value_functions.base_game import Problem

SAVE_SECONDS = 60.0  # time after which the outputs so far are saved
LABEL_SECONDS = 180.0  # longest time for calling the model with the rows, however many there are
_FASTEST = 1e-12  # seconds per row, at least


@dataclass(frozen=True)
class LabelledRows:
    """Training and validation rows with the model's outputs.

    Attributes
    ----------
    x, x_val : Tensor or Stream, Tensor
        Encoded rows (n, ...).
    y, y_val : Tensor
        Outputs (n, outputs), float64.
    """

    x: Rows
    y: Tensor
    x_val: Tensor
    y_val: Tensor


def label_rows(problem: Problem, run: Run, most_validation_rows: float) -> LabelledRows:
    """Call the model with all rows, or with as many as the budgets allow.

    The outputs are saved with the unfinished work of the run, part by part, because the model may be slow.

    Parameters
    ----------
    problem : Problem
        The model and the rows.
    run : Run
        The seed, the time and the place for unfinished work.
    most_validation_rows : float
        The largest number of validation rows.
    """
    x, x_val, model = problem.x, problem.x_val, problem.model
    pace = max(model.pace, _FASTEST)
    saved: dict[str, Any] | None = run.checkpoint.load("outputs")
    if saved is None:
        affordable = min(problem.evaluations, min(problem.label_time * run.clock.left(), LABEL_SECONDS) / pace)
        share = min(1.0, affordable / (len(x) + len(x_val)))
        share_val = min(share, most_validation_rows / len(x_val))
        generator = run.generator("labelled rows")
        rows, rows_val = _draw(len(x), share, generator), _draw(len(x_val), share_val, generator)
        none = torch.zeros(0, model.outputs, dtype=torch.float64)
        saved = {"rows": rows.cpu(), "y": none, "rows_val": rows_val.cpu(), "y_val": none}
    for source, outputs, rows in ((x, "y", saved["rows"]), (x_val, "y_val", saved["rows_val"])):
        while (done := len(saved[outputs])) < len(rows):
            part = rows[done : done + max(1, int(SAVE_SECONDS / pace))].to(x.device)
            saved[outputs] = torch.cat([saved[outputs], model(some(source, part)).cpu()])
            run.checkpoint.save("outputs", saved)
    rows, y, rows_val, y_val = (saved[name].to(x.device) for name in ("rows", "y", "rows_val", "y_val"))
    return LabelledRows(some(x, rows), y, x_val[rows_val], y_val)


def _draw(rows: int, share: float, generator: torch.Generator) -> Tensor:
    """Return the numbers of a random share of the rows; all of them keep their order."""
    if share >= 1:
        return torch.arange(rows, device=generator.device)
    return torch.randperm(rows, generator=generator, device=generator.device)[: max(1, int(share * rows))]
