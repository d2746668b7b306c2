"""Samplers of the user's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastshapley.errors import InputError
from fastshapley.value_functions.samplers.conditional_sampler import ConditionalSampler, Draws

Sample = Callable[[Tensor, Tensor, torch.Generator], Tensor]


class GivenSampler(ConditionalSampler):
    """A sampler of the user's own.

    Known entries that the function changes are restored. NaN is a gap, in columns of numbers and of categories.

    Parameters
    ----------
    sample : callable
        ``sample(x, s, generator)`` returns rows like ``x`` (n, columns), encoded, in which the entries of players
        that are not in ``s`` (n, players) have been drawn given the others. The seed of the generator follows from
        the numbers of the donors.
    """

    kind = "given"

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def _completed(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        completed = super()._completed(x, s, numbers)
        self._check(completed.rows)
        return completed

    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        draws = numbers.shape[1]
        rows, known = x.repeat_interleave(draws, 0), s.repeat_interleave(draws, 0)
        generator = torch.Generator(x.device).manual_seed(int(numbers.sum()))
        drawn = self.sample(rows, known, generator)
        if not isinstance(drawn, Tensor) or drawn.is_complex():
            raise InputError(
                f"the sampler {self._name} returned {_described(drawn)}: return a tensor of real numbers, as x is"
            )
        if drawn.shape != rows.shape:
            raise InputError(
                f"the sampler {self._name} returned a tensor of shape {tuple(drawn.shape)}: return one of shape "
                f"{tuple(rows.shape)}, as x has"
            )
        return Draws(drawn.detach().to(rows).unflatten(0, (len(x), draws)))

    def _check(self, completed: Tensor) -> None:
        """Refuse infinite numbers, and codes that are not those of a category."""
        schema = self.donors.schema
        if bool((infinite := completed.isinf().flatten(0, 1).any(0)).any()):
            name = schema.names[int(infinite.long().argmax())]
            raise InputError(
                f"the sampler {self._name} returned infinite values in column {name!r}: return finite numbers, or "
                "NaN for a gap"
            )
        for j, count in enumerate(schema.category_counts):
            codes = completed[..., j]
            if count and not bool(
                (codes.isnan() | ((codes == codes.round()) & (codes >= 0) & (codes < count))).all()
            ):
                raise InputError(
                    f"the sampler {self._name} returned values in column {schema.names[j]!r} that are not codes of "
                    f"its {count} categories: return whole numbers from 0 to {count - 1}, or NaN for a gap"
                )

    @property
    def _name(self) -> str:
        return repr(getattr(self.sample, "__name__", type(self.sample).__name__))


def _described(value: object) -> str:
    return "complex numbers" if isinstance(value, Tensor) else f"a {type(value).__name__}"
