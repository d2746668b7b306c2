"""The encoding of a table's columns, which is the first layer of a network and is trained with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastshapley.training.process_group import ProcessGroup

_LARGEST = torch.finfo(torch.float32).max


class TableEncoder(nn.Module):
    """Encoded rows (n, columns), float64 with NaN for gaps, to a network's inputs (n, width), float32.

    Numbers are standardised. A gap becomes the mean, plus a flag if the fitted rows had gaps in that column.
    Categories are embedded, and a gap becomes the zero vector. A column of numbers may have cuts: for each of them
    there is one more input that says whether the number is greater, less the share of the fitted rows in which it
    is; a gap becomes zero. With them, a network's outputs can jump.

    Parameters
    ----------
    categories : sequence of int
        The number of categories of each column, 0 for a column of numbers.
    gaps : sequence of bool
        Whether the fitted rows have gaps in each column.
    dimension : int, optional
        The size of an embedding.
    tails : float, optional
        A number more than this many spreads from the mean enters by the logarithm of its distance.
    cuts : sequence of int
        The number of cuts of each column; empty for none.

    Attributes
    ----------
    columns : list of int
        The column that each input comes from. Inputs of cuts come last.
    cut : Tensor
        The cuts of all columns, column by column.
    """

    def __init__(
        self,
        categories: Sequence[int],
        gaps: Sequence[bool],
        dimension: int | None = None,
        tails: float | None = None,
        cuts: Sequence[int] = (),
    ) -> None:
        super().__init__()
        sizes = torch.tensor(list(categories), dtype=torch.long)
        numbers, codes = (sizes == 0).nonzero()[:, 0], (sizes > 0).nonzero()[:, 0]
        flags = torch.tensor([j for j in numbers.tolist() if gaps[j]], dtype=torch.long)
        largest = int(sizes.max()) if len(codes) else 0
        self.dimension = min(8, largest) if dimension is None else dimension
        self.config: dict[str, Any] = {
            "categories": list(categories),
            "gaps": list(gaps),
            "dimension": self.dimension,
            "tails": tails,
            "cuts": list(cuts),
        }
        self.tails = tails
        offset = torch.cat([torch.ones(1, dtype=torch.long), sizes[codes].cumsum(0)[:-1] + 1])
        self.register_buffer("numbers", numbers, persistent=False)
        self.register_buffer("flags", flags, persistent=False)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("offset", offset[: len(codes)], persistent=False)
        self.register_buffer("mean", torch.zeros(len(numbers), dtype=torch.float64))
        self.register_buffer("scale", torch.ones(len(numbers), dtype=torch.float64))
        self.table = nn.Embedding(1 + int(sizes.sum()), self.dimension, padding_idx=0) if len(codes) else None
        cut_columns = torch.arange(len(cuts)).repeat_interleave(torch.tensor(cuts, dtype=torch.long))
        self.register_buffer("cut_columns", cut_columns, persistent=False)
        for name in ("cut", "share"):  # The first files do not have them.
            empty = torch.zeros(len(cut_columns), dtype=torch.float64)
            self.register_buffer(name, empty, persistent=len(cut_columns) > 0)
        embedded = codes.repeat_interleave(self.dimension)
        self.columns = torch.cat([numbers, flags, embedded, cut_columns]).tolist()

    numbers: Tensor
    flags: Tensor
    codes: Tensor
    offset: Tensor
    mean: Tensor
    scale: Tensor
    cut_columns: Tensor
    cut: Tensor
    share: Tensor

    @classmethod
    def fitted(
        cls,
        x: Tensor,
        categories: Sequence[int],
        tails: float | None = None,
        processes: ProcessGroup | None = None,
        cuts: Sequence[Sequence[float]] = (),
    ) -> TableEncoder:
        """Return an encoder with the means, the spreads and the gaps of some rows.

        Parameters
        ----------
        x : Tensor
            Encoded rows (n, columns) of this process.
        categories, tails
            As for the constructor.
        processes : ProcessGroup, optional
            The processes whose rows count together; by default this one.
        cuts : sequence of sequences of float
            The cuts of each column; empty for none.
        """
        processes = processes or ProcessGroup()
        gaps = processes.mean(x.isnan().double())
        encoder = cls(categories, (gaps > 0).tolist(), tails=tails, cuts=[len(each) for each in cuts])
        chosen = encoder.numbers.to(x.device)
        numbers, present = x[:, chosen], 1 - gaps[chosen]
        present = torch.where(present > 0, present, 1.0)  # A column may hold only gaps.
        mean = processes.mean(numbers.nan_to_num()) / present
        spread = (processes.mean((numbers - mean).nan_to_num().square()) / present).sqrt()
        # A constant column has no spread, or one of rounding errors only.
        spread = torch.where(spread > 1e-9 * mean.abs(), spread, 1.0)
        encoder.mean.copy_(mean)
        encoder.scale.copy_(spread)
        encoder.cut.copy_(torch.tensor([cut for each in cuts for cut in each], dtype=torch.float64))
        encoder = encoder.to(x.device)
        present = 1 - gaps[encoder.cut_columns]
        above = torch.cat([x[:, j, None] > encoder.cut[encoder.cut_columns == j] for j in range(x.shape[1])], dim=1)
        encoder.share.copy_(processes.mean(above.double()) / torch.where(present > 0, present, 1.0))
        return encoder

    @property
    def plain_inputs(self) -> int:
        """The number of inputs before those of cuts."""
        return len(self.columns) - len(self.cut)

    @property
    def known_gaps(self) -> set[int]:
        """The columns in which a gap differs from a value."""
        return {*self.flags.tolist(), *self.codes.tolist()}

    def standardised(self, x: Tensor) -> Tensor:
        """Return the inputs of the numbers of encoded rows (n, columns), without those of gaps and cuts."""
        everything = len(self.numbers) == x.shape[1]
        numbers = x if everything else x.index_select(1, self.numbers)
        standard = ((numbers - self.mean) / self.scale).float()
        standard = standard.masked_fill(standard.isnan(), 0).clamp(-_LARGEST, _LARGEST)
        if (tails := self.tails) is not None:
            standard = standard.clamp(-tails, tails) * (1 + (standard.abs() / tails).clamp(min=1).log())
        return standard

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs (n, width) of encoded rows (n, columns)."""
        parts = [self.standardised(x)]
        if len(self.flags):
            parts.append(x.index_select(1, self.flags).isnan().float())
        if self.table is not None:
            codes = x.index_select(1, self.codes) + self.offset
            parts.append(self.table(codes.masked_fill(codes.isnan(), 0).long()).flatten(1))
        if len(self.cut):
            above = (x.index_select(1, self.cut_columns) > self.cut).float() - self.share.float()
            parts.append(above.masked_fill(x.isnan().index_select(1, self.cut_columns), 0))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
