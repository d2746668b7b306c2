"""Fast evaluation of a trained `MaskedNetwork`: the first layer is looked up in tables, column by column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.networks.table_encoder import TableEncoder

MANY = 8  # coalitions per row from which each player's part of the first layer is computed once


class ColumnTables:
    """The outputs of a trained network, several times as fast as by its own layers.

    The first layer is a sum over columns. What a column adds is linear in its number, plus one of few vectors: one
    for each interval between its cuts, for each category, and for a gap. These vectors are computed once, so tables
    must be built again when the network's weights change.

    Parameters
    ----------
    encoder : TableEncoder
        The encoding of the columns.
    owner : sequence of int
        The player of each column.
    layers : sequence of nn.Module
        The layers. The first one is linear, and sees the inputs of the encoder and then the coalition.
    """

    def __init__(self, encoder: TableEncoder, owner: Sequence[int], layers: Sequence[nn.Module]) -> None:
        first, *self.rest = layers
        assert isinstance(first, nn.Linear)
        self.encoder, self.owner = encoder, torch.tensor(list(owner), device=first.weight.device)
        self.players = max(owner) + 1
        self.one_to_one = list(owner) == list(range(self.players))
        weight = first.weight.detach().t()  # (inputs, hidden)
        self.bias = first.bias.detach()
        inputs, self.member = weight.split([len(encoder.columns), self.players])
        self.everyone = self.bias + self.member.sum(0)
        self.slope = inputs[: len(encoder.numbers)]
        self._fill_tables(inputs.double())

    def _fill_tables(self, inputs: Tensor) -> None:
        """Compute what each column adds for each interval, category and gap, one table below the other."""
        encoder, tables = self.encoder, []
        count = [len(encoder.numbers), len(encoder.flags), len(encoder.codes) * encoder.dimension, len(encoder.cut)]
        _, flags, embedded, cuts = inputs.split(count)
        self.stepped = torch.cat([encoder.flags, encoder.cut_columns]).unique()
        most = max([0, *torch.bincount(encoder.cut_columns).tolist()])
        bounds = torch.full((len(self.stepped), most), torch.inf, dtype=torch.float64, device=inputs.device)
        for k, column in enumerate(self.stepped.tolist()):
            here = encoder.cut_columns == column
            bounds[k, : int(here.sum())] = encoder.cut[here]
            below = -(encoder.share[here] @ cuts[here])[None]
            gap = flags[encoder.flags == column].sum(0, keepdim=True)
            steps = torch.cat([below, below + cuts[here].cumsum(0)])
            filled = steps[-1:].expand(most + 1 - len(steps), -1)
            tables.append(torch.cat([steps, filled, gap]))
        self.bounds, self.gap = bounds, most + 1
        sizes = [encoder.config["categories"][column] for column in encoder.codes.tolist()]
        by_column = embedded.unflatten(0, (len(sizes), encoder.dimension)) if sizes else ()
        for vectors, offset, size in zip(by_column, encoder.offset.tolist(), sizes, strict=True):
            assert encoder.table is not None
            codes = torch.cat([encoder.table.weight[:1], encoder.table.weight[offset : offset + size]]).detach()
            tables.append(codes.double() @ vectors)
        starts = torch.tensor([0, *map(len, tables)], device=inputs.device).cumsum(0)[:-1]
        self.starts = starts[: len(tables)]
        self.tabled = torch.cat([self.stepped, encoder.codes])
        self.table = torch.cat(tables).to(self.bias) if tables else self.bias.new_zeros(1, len(self.bias))

    def known(self, x: Tensor) -> Tensor:
        """Return the outputs when every player is known: x (n, columns) to (n, outputs)."""
        hidden = torch.addmm(self.everyone, self.encoder.standardised(x), self.slope)
        if len(self.tabled):
            hidden += functional.embedding_bag(self._places(x), self.table, mode="sum")
        return self._outputs(hidden)

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        """Return the outputs for x (n, columns) and s (n, m, players), (n, m, outputs)."""
        n, m, _ = s.shape
        member = s.to(self.bias)
        numbers, places = self.encoder.standardised(x), self._places(x)
        if m >= MANY:
            added = self._added_by_player(numbers, places)
            return self._outputs(torch.baddbmm(self.bias, member, added).flatten(0, 1)).unflatten(0, (n, m))
        member = member.flatten(0, 1)
        columns = member if self.one_to_one else member[:, self.owner]
        shown = numbers.repeat_interleave(m, 0) * columns[:, self.encoder.numbers]
        hidden = torch.addmm(torch.addmm(self.bias, member, self.member), shown, self.slope)
        if len(self.tabled):
            weights = columns[:, self.tabled].contiguous()
            places = places.repeat_interleave(m, 0)
            hidden += functional.embedding_bag(places, self.table, mode="sum", per_sample_weights=weights)
        return self._outputs(hidden).unflatten(0, (n, m))

    def _places(self, x: Tensor) -> Tensor:
        """Return which row of the table each column of few vectors takes, (n, tabled columns)."""
        values = x[:, self.stepped].T.contiguous()
        steps = torch.searchsorted(self.bounds, values).masked_fill(values.isnan(), self.gap)
        codes = x[:, self.encoder.codes].T
        codes = (codes + 1).masked_fill(codes.isnan(), 0).long()
        return (torch.cat([steps, codes]) + self.starts[:, None]).T.contiguous()

    def _added_by_player(self, numbers: Tensor, places: Tensor) -> Tensor:
        """Return what each player adds to the first layer, (n, players, hidden)."""
        by_column = self.table.new_zeros(len(numbers), len(self.owner), self.table.shape[1])
        by_column[:, self.encoder.numbers] = numbers[..., None] * self.slope
        if len(self.tabled):
            by_column[:, self.tabled] += self.table[places]
        if self.one_to_one:
            return by_column.add_(self.member)
        added = self.member.expand(len(numbers), -1, -1)
        return added.index_add(1, self.owner, by_column)

    def _outputs(self, hidden: Tensor) -> Tensor:
        for layer in self.rest:
            hidden = layer(hidden)
        return hidden
