"""What all samplers have in common: donors, and known entries that stay as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fastshapley.data.players import Partition
from fastshapley.data.table_schema import TableSchema
from fastshapley.training.recipes import Recipe
from fastshapley.training.run import Run
from fastshapley.value_functions.column_scores import BLOCK_ENTRIES, ColumnScale

SLOPE_RIDGE = 1e-3  # share of the diagonal that is added in the regression of outputs on scores


@dataclass(frozen=True)
class Donors:
    """The rows that samplers take hidden entries from.

    Attributes
    ----------
    rows : Tensor of shape (n, columns)
        Encoded rows.
    outputs : Tensor of shape (n, outputs)
        The model's outputs for them.
    schema : TableSchema
        The layout of the rows.
    players : Partition
        The players.
    """

    rows: Tensor
    outputs: Tensor
    schema: TableSchema
    players: Partition

    @classmethod
    def in_order(cls, rows: Tensor, outputs: Tensor, schema: TableSchema, players: Partition) -> Donors:
        """Return rows in the order of their outputs, so that evenly spaced donors stand for all of them."""
        order = leading_output(outputs).argsort(stable=True)
        return cls(rows[order], outputs[order], schema, players)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class SamplerRows:
    """The rows that samplers learn from.

    Attributes
    ----------
    x, x_val : Tensor of shape (n, columns)
        Encoded rows for training and for validation.
    """

    x: Tensor
    x_val: Tensor


@dataclass(frozen=True)
class Draws:
    """Drawn rows, and how they differ from what was expected.

    Attributes
    ----------
    rows : Tensor of shape (n, draws, columns)
        The rows.
    surprise : Tensor of shape (n, draws, columns) or None
        The scores of drawn entries less their expectation, which is zero on average over the donors. None if the
        sampler knows no expectation.
    """

    rows: Tensor
    surprise: Tensor | None = None


def leading_output(outputs: Tensor) -> Tensor:
    """Return one number per row that varies as much as possible: the first principal component of the outputs.

    Parameters
    ----------
    outputs : Tensor of shape (n, outputs)
        The model's outputs.
    """
    centred = outputs - outputs.mean(0)
    if outputs.shape[1] == 1:
        return centred[:, 0]
    vectors = torch.linalg.eigh(centred.T @ centred).eigenvectors
    return centred @ vectors[:, -1]


@dataclass(frozen=True)
class ScoredDonors:
    """Donors on a scale.

    Attributes
    ----------
    rows : Tensor of shape (n, columns)
        The encoded rows.
    scale : ColumnScale
        The scale.
    expected : Tensor of shape (n, columns)
        The scores that regressions see: equal values have equal scores, and gaps have the score 0.
    spread : Tensor of shape (n, columns)
        The scores that are shifted: ties are broken at random.
    """

    rows: Tensor
    scale: ColumnScale
    expected: Tensor
    spread: Tensor

    @classmethod
    def of(cls, rows: Tensor, scale: ColumnScale, seed: int) -> ScoredDonors:
        """Return the scores of rows, with ties broken by a seed."""
        generator = torch.Generator(rows.device).manual_seed(seed)
        return cls(rows, scale, scale.encode(rows).nan_to_num(), scale.spread(rows, generator).nan_to_num())

    def slopes(self, outputs: Tensor) -> Tensor:
        """Return the coefficients of a linear regression of outputs (n, outputs) on scores, (columns, outputs).

        They are zero where numbers are too large to compute them.
        """
        scores, y = self.expected - self.expected.mean(0), outputs - outputs.mean(0)
        products = scores.T @ scores
        ridge = torch.diag(SLOPE_RIDGE * products.diagonal().clamp(min=1e-6))
        return torch.linalg.solve(products + ridge, scores.T @ y.to(scores)).nan_to_num(0.0, 0.0, 0.0)

    def encoded(self, x: Tensor) -> Tensor:
        """Return the scores of rows (n, columns). Equal rows next to each other are encoded once."""
        same = (x[1:] == x[:-1]) | (x[1:].isnan() & x[:-1].isnan())
        new = torch.cat([torch.ones_like(x[:1, 0], dtype=torch.bool), ~same.all(1)])
        return self.scale.encode(x[new])[new.cumsum(0) - 1]

    def decoded(self, scores: Tensor, numbers: Tensor) -> Tensor:
        """Return the values of shifted scores (n, draws, columns). A gap of a donor stays a gap."""
        given = self.rows[numbers]
        return torch.where(given.isnan(), given, self.scale.decode(scores))


class ConditionalSampler(ABC):
    """Completes rows whose hidden entries are unknown.

    Drawn rows are an array of shape (n, draws, columns), which is the largest one for up to 2000 columns: a sampler
    works on blocks of rows, so that its own arrays stay below about 256 MB. For more columns, the rows of one
    evaluation are the limit.

    Attributes
    ----------
    kind : str
        The name of the sampler.
    centred : bool
        Whether surprises are zero on average over the donors by construction, up to the choice of donors of the
        components of a mixture. What a network expects is zero on average only as far as it has learnt well.
    donors : Donors
        The rows that hidden entries come from.
    """

    kind: ClassVar[str]
    centred: bool = False
    donors: Donors
    _slopes: Tensor | None = None  # of the model's outputs along the surprises

    @property
    def has_control(self) -> bool:
        """Whether `draw` returns controls."""
        return self._slopes is not None

    def suits(self, donors: Donors) -> bool:
        """Return whether the sampler is worth trying for rows like the donors."""
        return True

    def fit(self, donors: Donors, rows: SamplerRows, recipe: Recipe, run: Run) -> None:
        """Learn how columns depend on each other.

        Parameters
        ----------
        donors : Donors
            The rows that hidden entries come from.
        rows : SamplerRows
            The rows to learn from.
        recipe : Recipe
            How networks are trained.
        run : Run
            The seed, the time and the place for unfinished work.
        """
        self._prepare(donors, run.seed)
        self._learn(rows, recipe, run)

    def restore(self, donors: Donors, tensors: dict[str, Tensor], config: dict[str, Any], seed: int) -> None:
        """Become the fitted sampler that `tensors` and `config` described.

        Parameters
        ----------
        donors : Donors
            The rows that the sampler was fitted with.
        tensors, config : dict
            What `tensors` and `config` of the fitted sampler returned.
        seed : int
            The seed of the run in which it was fitted.
        """
        self._prepare(donors, seed)
        self._load(tensors, config)

    def __call__(self, x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
        """Complete rows.

        Parameters
        ----------
        x : Tensor of shape (n, columns)
            Encoded rows.
        s : Tensor of shape (n, players)
            The known players of each.
        numbers : Tensor of shape (n, draws)
            The numbers of the donors.

        Returns
        -------
        Tensor of shape (n, draws, columns)
            The rows, with drawn values in place of the hidden ones.
        """
        return self._joined(x, s, numbers, lambda *part: self._completed(*part).rows)

    def draw(self, x: Tensor, s: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor | None]:
        """Complete rows, and return a control for the model's outputs too.

        Outputs less their control have the same mean over all donors, and mostly a smaller variance.

        Parameters
        ----------
        x, s, numbers : Tensor
            As for a call.

        Returns
        -------
        rows : Tensor of shape (n, draws, columns)
            The rows.
        control : Tensor of shape (n, draws, outputs) or None
            What a linear regression makes of the surprise in the drawn entries. None if there is none.
        """
        slopes = self._slopes
        if slopes is None:
            return self(x, s, numbers), None

        def drawn(x: Tensor, s: Tensor, numbers: Tensor) -> Tensor:
            found = self._completed(x, s, numbers)
            assert found.surprise is not None
            hidden = ~self.donors.players.mask(s)[:, None]
            return torch.cat([found.rows, (found.surprise * hidden) @ slopes], dim=-1)

        both = self._joined(x, s, numbers, drawn)
        return both[..., : x.shape[1]], both[..., x.shape[1] :]

    def _joined(
        self, x: Tensor, s: Tensor, numbers: Tensor, compute: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Apply a function to blocks of rows."""
        x = x.to(self.donors.rows)
        size = max(1, BLOCK_ENTRIES // max(1, self._width() * numbers.shape[1]))
        parts = zip(x.split(size), s.split(size), numbers.split(size), strict=True)
        return torch.cat([compute(*part) for part in parts])

    def _completed(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        drawn = self._drawn(x, s, numbers)
        rows = torch.where(self.donors.players.mask(s)[:, None], x[:, None], drawn.rows)
        return Draws(rows, drawn.surprise)

    def tensors(self) -> dict[str, Tensor]:
        """Return what has been learnt and cannot be computed from the donors."""
        return {}

    def config(self) -> dict[str, Any]:
        """Return what a file says about the sampler, as plain JSON values."""
        return {"kind": self.kind}

    def _prepare(self, donors: Donors, seed: int) -> None:
        """Compute what follows from the donors."""
        self.donors = donors

    def _learn(self, rows: SamplerRows, recipe: Recipe, run: Run) -> None:  # noqa: B027
        """Learn what `tensors` returns; most samplers have nothing to learn."""

    def _load(self, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:  # noqa: B027
        """Load what `_learn` has learnt."""

    def _width(self) -> int:
        """Return the numbers per drawn row in the largest array."""
        return self.donors.rows.shape[1]

    @abstractmethod
    def _drawn(self, x: Tensor, s: Tensor, numbers: Tensor) -> Draws:
        """Return rows whose hidden entries are drawn; the known ones are ignored."""
