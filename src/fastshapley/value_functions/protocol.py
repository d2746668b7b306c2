"""What every value function is, and the parts that several share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.model_adapter import ModelFunction, Scale
from fastshapley.data.players import Partition
from fastshapley.data.stream import Rows
from fastshapley.data.table_schema import Schema
from fastshapley.errors import InputError
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run

Link = Literal["identity", "logit", "log"]
LINKS = ("identity", "logit", "log")
_CLIP = 1e-7  # probabilities are kept this far from 0 and 1 before a logit, or a logarithm


@runtime_checkable
class ValueFunction(Protocol):
    """A game for each row: ``v(x, s)`` with x (n, ...) and s (n, m, players), boolean, to (n, m, outputs).

    An object of the user's needs no more than this. Two optional members save evaluations where a game has
    them: ``null``, a tensor (outputs,), if v(x, 0) is the same for every row, and ``grand(x)``, (n, outputs).
    """

    @property
    def players(self) -> int: ...

    @property
    def outputs(self) -> int: ...

    def __call__(self, x: Tensor, s: Tensor) -> Tensor: ...


class BaseGame(BaseEstimator, ABC):
    """What the value functions of this package share beyond the protocol.

    ``scale`` and ``link`` say what the outputs are, ``cost`` how many rows the model is called with for one
    evaluation, ``concurrent`` whether several threads may evaluate it at once; ``schema_`` and ``partition_`` are
    the columns and players that the game was fitted to.
    """

    concurrent: bool = False

    players: int
    outputs: int
    null: Tensor
    scale: Scale
    link: Link
    cost: int
    schema_: Schema | ImageSchema
    partition_: Partition

    @abstractmethod
    def fit(self, problem: Problem, run: Run) -> BaseGame:
        """Learn from the problem's rows; the result is the game."""

    @abstractmethod
    def grand(self, x: Tensor) -> Tensor:
        """v(x, 1), (n, outputs)."""

    @abstractmethod
    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """v(x, s), (n, m, outputs)."""

    def __sklearn_clone__(self) -> Self:
        # scikit-learn's clone would empty a fitted model among the parameters
        return type(self)(**self.get_params(deep=False))


@dataclass(frozen=True)
class Problem:
    """What a value function of ours is fitted to: a model, encoded rows (n, columns) or images, and the players.

    ``recipe`` says how networks are trained; by default it is the default one. The model may be called with
    ``evaluations`` more rows.
    """

    model: ModelFunction
    x: Rows
    x_val: Rows
    players: Partition
    link: Link = "identity"
    recipe: Recipe | None = None
    evaluations: float = math.inf


def cost(value_function: ValueFunction) -> int:
    """How many rows the model, or a network in its place, is called with for one evaluation."""
    return value_function.cost if isinstance(value_function, BaseGame) else 1


def null_values(value_function: ValueFunction, x: Tensor, numbers: Tensor | None = None) -> Tensor:
    """v(x, 0) for each row, (n, outputs), float64; ``numbers`` as for `evaluate`."""
    null = getattr(value_function, "null", None)
    if isinstance(null, Tensor):
        if null.shape != (value_function.outputs,):
            raise InputError(
                f"value_function.null has shape {tuple(null.shape)} where ({value_function.outputs},) is expected"
            )
        return null.to(x.device, torch.float64).expand(len(x), -1)
    return _constant_coalition(value_function, x, False, numbers)


def grand_values(value_function: ValueFunction, x: Tensor, numbers: Tensor | None = None) -> Tensor:
    """v(x, 1) for each row, (n, outputs), float64; ``numbers`` as for `evaluate`."""
    grand = getattr(value_function, "grand", None)
    if grand is not None:
        where = f"value_function.grand of x {tuple(x.shape)}"
        with torch.no_grad():
            return _checked(grand(x), (len(x), value_function.outputs), where, numbers)
    return _constant_coalition(value_function, x, True, numbers)


def total_values(value_function: ValueFunction, x: Tensor) -> Tensor:
    """Grand minus null for each row, which the values sum to, (n, outputs), float64."""
    return grand_values(value_function, x) - null_values(value_function, x)


def _constant_coalition(value_function: ValueFunction, x: Tensor, member: bool, numbers: Tensor | None) -> Tensor:
    s = torch.full((len(x), 1, value_function.players), member, device=x.device)
    return evaluate(value_function, x, s, numbers)[:, 0]


def evaluate(value_function: ValueFunction, x: Tensor, s: Tensor, numbers: Tensor | None = None) -> Tensor:
    """v(x, s) as float64, checked: a shape or a number that is wrong is reported here, once.

    ``numbers`` are those of the rows in the user's input, by which an error names them.
    """
    with torch.no_grad():
        v = value_function(x, s)
    where = f"value_function of x {tuple(x.shape)} and s {tuple(s.shape)}"
    return _checked(v, (*s.shape[:2], value_function.outputs), where, numbers)


def _checked(v: Any, expected: tuple[int, ...], where: str, numbers: Tensor | None = None) -> Tensor:
    if not isinstance(v, Tensor) or tuple(v.shape) != expected:
        got = tuple(v.shape) if isinstance(v, Tensor) else f"a {type(v).__name__}"
        meaning = "rows, coalitions, outputs" if len(expected) == 3 else "rows, outputs"
        raise InputError(f"{where} returned {got}: expected a tensor of shape {expected} ({meaning})")
    v = v.to(torch.float64)
    finite = v.isfinite().flatten(1).all(1)
    if not finite.all():
        bad = (~finite).nonzero()[:, 0]
        rows = (bad if numbers is None else numbers[bad]).tolist()
        raise InputError(f"{where} is not finite for {len(rows)} rows, numbers {rows[:20]}")
    return v


def apply_link(link: Link, y: Tensor) -> Tensor:
    """The link of the model's output, applied once, inside the value function.

    >>> apply_link("logit", torch.tensor([0.5]))
    tensor([0.])
    """
    if link == "identity":
        return y
    if link not in LINKS:
        raise InputError(f"link is {link!r}: use one of {LINKS}")
    if ((y < -1e-6) | (y > 1 + 1e-6)).any():
        raise InputError(
            f"link is {link!r}, but the model's outputs are not probabilities: use link='identity', or logits=True "
            "if they are logits"
        )
    return linked(link, y)


def linked(link: Link, y: Tensor) -> Tensor:
    """The link of outputs that it is known to fit."""
    if link == "identity":
        return y
    if link == "log":
        return y.double().clamp(min=_CLIP).log().to(y.dtype)
    return torch.logit(y.double(), eps=_CLIP).to(y.dtype)
