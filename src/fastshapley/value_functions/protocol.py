"""What every value function is, and how one is evaluated."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fastshapley.errors import InputError

_NAMED_ROWS = 20  # rows that an error message names


@runtime_checkable
class ValueFunction(Protocol):
    """A game for each row: ``v(x, s)``.

    An object of the user's needs only ``players``, ``outputs`` and ``__call__(x, s)``, where x is (n, ...), s is
    boolean (n, m, players), and the result is (n, m, outputs). Two optional members save evaluations: ``null``, a
    tensor (outputs,), if v(x, 0) is the same for every row, and ``grand(x)``, which returns v(x, 1), (n, outputs).
    """

    @property
    def players(self) -> int:
        """The number of players."""

    @property
    def outputs(self) -> int:
        """The number of outputs."""

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return v(x, s), (n, m, outputs)."""


def null_values(value_function: ValueFunction, x: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Return v(x, 0) for each row.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor
        Encoded rows (n, ...).
    numbers : Tensor, optional
        The numbers of the rows in the user's data, (n,), by which an error message names them.

    Returns
    -------
    Tensor
        (n, outputs), float64.

    Raises
    ------
    InputError
        If the game returns another shape, or values that are not finite.
    """
    null = getattr(value_function, "null", None)
    if isinstance(null, Tensor):
        if null.shape != (value_function.outputs,):
            raise InputError(
                f"value_function.null has shape {tuple(null.shape)} where ({value_function.outputs},) is expected"
            )
        return null.to(x.device, torch.float64).expand(len(x), -1)
    return _constant_coalition(value_function, x, False, numbers)


def grand_values(value_function: ValueFunction, x: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Return v(x, 1) for each row, (n, outputs), float64; arguments and errors are those of `null_values`."""
    grand = getattr(value_function, "grand", None)
    if grand is not None:
        where = f"value_function.grand of x {tuple(x.shape)}"
        with torch.no_grad():
            return _checked(grand(x), (len(x), value_function.outputs), where, numbers)
    return _constant_coalition(value_function, x, True, numbers)


def total_values(value_function: ValueFunction, x: Tensor) -> Tensor:
    """Return grand minus null for each row, (n, outputs), float64: the sum of the row's values."""
    return grand_values(value_function, x) - null_values(value_function, x)


def evaluate(value_function: ValueFunction, x: Tensor, s: Tensor, numbers: Tensor | None = None) -> Tensor:
    """Return v(x, s), checked.

    Parameters
    ----------
    value_function : ValueFunction
        The game.
    x : Tensor
        Encoded rows (n, ...).
    s : Tensor
        Coalitions (n, m, players), boolean.
    numbers : Tensor, optional
        The numbers of the rows in the user's data, (n,), by which an error message names them.

    Returns
    -------
    Tensor
        (n, m, outputs), float64.

    Raises
    ------
    InputError
        If the game returns another shape, or values that are not finite.
    """
    with torch.no_grad():
        v = value_function(x, s)
    where = f"value_function of x {tuple(x.shape)} and s {tuple(s.shape)}"
    return _checked(v, (*s.shape[:2], value_function.outputs), where, numbers)


def _constant_coalition(value_function: ValueFunction, x: Tensor, member: bool, numbers: Tensor | None) -> Tensor:
    s = torch.full((len(x), 1, value_function.players), member, device=x.device)
    return evaluate(value_function, x, s, numbers)[:, 0]


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
        raise InputError(f"{where} is not finite for {len(rows)} rows, numbers {rows[:_NAMED_ROWS]}")
    return v
