"""Networks for tables. The first layer is the encoding of the columns: it is trained and saved with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.errors import InputError
from fastshapley.training.process_group import ProcessGroup

Activation = Literal["relu", "elu", "silu"]
_MANY = 64  # coalitions of a row
_LARGEST = torch.finfo(torch.float32).max
Classes = Literal["free", "mirror", "zero-sum"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


class Perceptron(nn.Sequential):
    """``layers`` hidden layers of ``width`` units: (b, inputs) to (b, outputs)."""

    def __init__(self, inputs: int, outputs: int, layers: int, width: int, activation: Activation) -> None:
        config: dict[str, Any] = {
            "inputs": inputs,
            "outputs": outputs,
            "layers": layers,
            "width": width,
            "activation": activation,
        }
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(inputs, width), _ACTIVATIONS[activation]()]
            inputs = width
        super().__init__(*parts, nn.Linear(inputs, outputs))
        self.config = config


class PlayerPerceptron(nn.Module):
    """A perceptron that weighs, for each player, a few units that see that player's own inputs alone.

    From (b, inputs) to (b, players * outputs): the value of player i is a_i0(x) + sum over j of a_ij(x) h_ij(x_i),
    where the hidden layers make the a of the whole row. A player's value follows its own inputs closely, and the
    rest of the row bends that curve: a shape that generalises from fewer rows than hidden layers alone.
    """

    def __init__(
        self, owner: Sequence[int], outputs: int, units: int, layers: int, width: int, activation: Activation
    ) -> None:
        """``owner`` is the player of each input, ``outputs`` and ``units`` are those of one player."""
        super().__init__()
        self.config: dict[str, Any] = {
            "owner": list(owner),
            "outputs": outputs,
            "units": units,
            "layers": layers,
            "width": width,
            "activation": activation,
        }
        self.players = max(owner) + 1
        self.one_to_one = list(owner) == list(range(self.players))
        self.register_buffer("owner", torch.tensor(list(owner)), persistent=False)
        self.hidden = Perceptron(len(owner), (units + 1) * self.players * outputs, layers, width, activation)
        # units start as mirrored pairs of hinges, whose sums and differences are |x| and x, or nearly
        pair = torch.arange(units)
        count = torch.bincount(self.owner)[self.owner]
        weight = torch.where(count == 1, 1.0, torch.randn(len(owner))) / count.sqrt()
        self.weight = nn.Parameter((1.0 - 2.0 * (pair % 2))[:, None] * weight)
        self.bias = nn.Parameter(-(pair // 2).float()[:, None].expand(-1, self.players).clone())
        self.activation = _ACTIVATIONS[activation]()

    owner: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        own = inputs[:, None] * self.weight
        if not self.one_to_one:
            own = own.new_zeros(*own.shape[:2], self.players).index_add(2, self.owner, own)
        own = self.activation(own + self.bias)  # (b, units, players)
        free, weights = (
            self.hidden(inputs)
            .unflatten(1, (-1, self.players, self.config["outputs"]))
            .split([1, own.shape[1]], dim=1)
        )
        return (free[:, 0] + (weights * own[..., None]).sum(1)).flatten(1)


class TableEncoder(nn.Module):
    """Encoded rows (n, columns), float64 with NaN for gaps, to a network's inputs (n, width), float32.

    Numbers are standardised, a gap being the mean plus a flag where the fitted rows had gaps in that column;
    categories are embedded, a gap being the zero vector. ``columns`` says which column each input is from.
    """

    def __init__(
        self,
        categories: Sequence[int],
        gaps: Sequence[bool],
        dimension: int | None = None,
        tails: float | None = None,
    ) -> None:
        """``categories`` holds the number of categories of each column, 0 for a column of numbers.

        A number more than ``tails`` spreads from the mean enters by the logarithm of its distance.
        """
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
        self.columns = torch.cat([numbers, flags, codes.repeat_interleave(self.dimension)]).tolist()

    numbers: Tensor
    flags: Tensor
    codes: Tensor
    offset: Tensor
    mean: Tensor
    scale: Tensor

    @classmethod
    def fitted(
        cls, x: Tensor, categories: Sequence[int], tails: float | None = None, processes: ProcessGroup | None = None
    ) -> TableEncoder:
        """An encoder with the means, the spreads and the gaps of the rows ``x``, or of those of a processes."""
        processes = processes or ProcessGroup()
        gaps = processes.mean(x.isnan().double())
        encoder = cls(categories, (gaps > 0).tolist(), tails=tails)
        chosen = encoder.numbers.to(x.device)
        numbers, present = x[:, chosen], 1 - gaps[chosen]
        present = torch.where(present > 0, present, 1.0)  # of a column of nothing but gaps
        mean = processes.mean(numbers.nan_to_num()) / present
        spread = (processes.mean((numbers - mean).nan_to_num().square()) / present).sqrt()
        # a constant column has no spread, or one of rounding errors only
        spread = torch.where(spread > 1e-9 * mean.abs(), spread, 1.0)
        encoder.mean.copy_(mean)
        encoder.scale.copy_(spread)
        return encoder.to(x.device)

    def forward(self, x: Tensor) -> Tensor:
        everything = len(self.numbers) == x.shape[1]
        numbers = x if everything else x.index_select(1, self.numbers)
        standard = ((numbers - self.mean) / self.scale).float()
        standard = standard.masked_fill(standard.isnan(), 0).clamp(-_LARGEST, _LARGEST)
        if (tails := self.tails) is not None:
            standard = standard.clamp(-tails, tails) * (1 + (standard.abs() / tails).clamp(min=1).log())
        parts = [standard]
        if len(self.flags):
            parts.append(x.index_select(1, self.flags).isnan().float())
        if self.table is not None:
            codes = x.index_select(1, self.codes) + self.offset
            parts.append(self.table(codes.masked_fill(codes.isnan(), 0).long()).flatten(1))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


class MaskedNetwork(nn.Module):
    """A surrogate's network: x (n, columns) and s (n, m, players) to (n, m, outputs).

    The body sees the inputs of the players in s, zero elsewhere, and s itself: (b, inputs + players).
    """

    def __init__(self, encoder: TableEncoder, owner: Sequence[int], body: nn.Module) -> None:
        """``owner`` is the player of each column."""
        super().__init__()
        self.encoder, self.body, self.owner = encoder, body, list(owner)
        inputs = torch.tensor([owner[column] for column in encoder.columns])
        self.one_to_one = inputs.tolist() == list(range(max(owner) + 1))
        self.inputs = f"(b, {len(inputs) + max(owner) + 1})"
        self.register_buffer("player", inputs, persistent=False)

    player: Tensor

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        encoded = self.encoder(x)
        member = s.to(encoded.dtype)
        if isinstance(self.body, Perceptron) and s.shape[1] >= _MANY:
            return self._by_player(encoded, member)
        shown = member if self.one_to_one else member[..., self.player]
        together = torch.cat([encoded[:, None] * shown, member], dim=2)
        result: Tensor = self.body(together.flatten(0, 1))
        return result.unflatten(0, s.shape[:2])

    def known(self, x: Tensor) -> Tensor:
        """The same when every player is known: x (n, columns) to (n, outputs). It makes for a lean graph."""
        encoded = self.encoder(x)
        if not isinstance(self.body, Perceptron):
            everyone = encoded.new_ones(encoded.shape[0], max(self.owner) + 1)
            result: Tensor = self.body(torch.cat([encoded, everyone], dim=1))
            return result
        first, *rest = self.body.children()
        assert isinstance(first, nn.Linear)
        inputs = len(self.player)
        hidden = functional.linear(encoded, first.weight[:, :inputs], first.bias + first.weight[:, inputs:].sum(1))
        for layer in rest:
            hidden = layer(hidden)
        return hidden

    def _by_player(self, encoded: Tensor, member: Tensor) -> Tensor:
        """The same for many coalitions of each row: what a player adds to the first layer is computed once."""
        first, *rest = self.body.children()
        assert isinstance(first, nn.Linear)
        shown, known = first.weight.t().split([len(self.player), member.shape[2]])
        added = encoded[:, :, None] * shown
        if not self.one_to_one:
            empty = added.new_zeros(added.shape[0], member.shape[2], added.shape[2])
            added = empty.index_add(1, self.player, added)
        hidden = torch.baddbmm(first.bias, member, added + known).flatten(0, 1)
        for layer in rest:
            hidden = layer(hidden)
        return hidden.unflatten(0, member.shape[:2])


class ExplainerNetwork(nn.Module):
    """An explainer's network: x (n, ...) to values (n, players, outputs), before normalisation.

    ``encoder`` makes the body's inputs: a `TableEncoder`, or the identity for images.
    ``classes`` uses what is known of the outputs: ``"mirror"`` for two that sum to a constant (the body then
    gives one value a player), ``"zero-sum"`` for more, ``"free"`` if nothing is known.
    """

    def __init__(
        self,
        encoder: nn.Module,
        body: nn.Module,
        players: int,
        outputs: int,
        classes: Classes = "free",
    ) -> None:
        super().__init__()
        self.encoder, self.body = encoder, body
        self.players, self.outputs, self.classes = players, outputs, classes
        self.register_buffer("scale", torch.ones(outputs))

    scale: Tensor

    @staticmethod
    def body_outputs(players: int, outputs: int, classes: str) -> int:
        return players if classes == "mirror" else players * outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encoder(x))

    def decode(self, inputs: Tensor) -> Tensor:
        """The values of rows whose inputs (n, width) the encoder has made."""
        raw: Tensor = self.body(inputs)
        expected = self.body_outputs(self.players, self.outputs, self.classes)
        n = inputs.shape[0]  # which may be unknown while a graph is traced, and len() may not
        if raw.numel() != n * expected:
            raise InputError(
                f"network returned shape {tuple(raw.shape)} for {n} rows: expected ({n}, {expected}), "
                f"a value for each of {self.players} players and {self.outputs} outputs"
            )
        if self.classes == "mirror":  # long axes last, with which a graph is faster
            mirrored = torch.stack([-self.scale[0], self.scale[1]])[:, None]
            return (raw.reshape(n, 1, self.players) * mirrored).transpose(1, 2).contiguous()
        phi = raw.reshape(n, self.players, self.outputs)
        if self.classes == "zero-sum":
            phi = phi - phi.mean(2, keepdim=True)
        return phi * self.scale
