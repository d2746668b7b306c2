"""Find the names that a user chose among those there are, and say which ones are missing."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastshapley.errors import InputError


def chosen_outputs(names: Sequence[str], outputs: Sequence[str | int] | None) -> tuple[int, ...]:
    """Return the positions of the chosen outputs.

    Parameters
    ----------
    names : sequence of str
        The names of all outputs.
    outputs : sequence of str or int, or None
        The chosen outputs by name or by position; None for all.

    Raises
    ------
    InputError
        If ``outputs`` names an unknown output, none, or one twice.

    Examples
    --------
    >>> chosen_outputs(["no", "perhaps", "yes"], ["yes", 0])
    (2, 0)
    """
    names = list(names)
    if outputs is None:
        return tuple(range(len(names)))
    if isinstance(outputs, str) or np.ndim(outputs) != 1 or len(outputs) == 0:
        raise InputError(f"outputs is {outputs!r}: list one or more of {names}, each once")
    numbers = range(len(names))
    if unknown := [name for name in outputs if name not in names and name not in numbers]:
        raise InputError(f"outputs {unknown} are none of {names}")
    chosen = tuple(names.index(name) if name in names else int(name) for name in outputs)
    if len(set(chosen)) < len(chosen):
        raise InputError(f"outputs is {list(outputs)}: name one or more of {names}, each once")
    return chosen


def lacking(argument: str, missing: Sequence[Any], unknown: Sequence[Any]) -> str:
    """Return the message that a table lacks columns.

    Parameters
    ----------
    argument : str
        The name of the argument that holds the table.
    missing : sequence
        The columns that are missing.
    unknown : sequence
        The columns that the table has instead; one with a similar name is suggested.
    """
    near = {key: difflib.get_close_matches(str(key), [str(k) for k in unknown], 1) for key in missing}
    hints = [f"{key!r}" + (f" (renamed to {near[key][0]!r}?)" if near[key] else "") for key in missing]
    return f"{argument} lacks the column{'s' * (len(missing) > 1)} {', '.join(hints)}"
