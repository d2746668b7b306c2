"""Networks of a surrogate: rows or images and coalitions to outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastshapley.data.players import Partition
from fastshapley.networks.column_tables import ColumnTables
from fastshapley.networks.image_maps import channels_last
from fastshapley.networks.perceptron import Perceptron
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.networks.weights import layers_of

Inverse = Literal["log", "logit"] | None
_TINY = 1e-7  # smallest probability of which a logarithm is taken


class SurrogateNetwork(nn.Module, ABC):
    """A network from x (n, ...) and coalitions s (n, m, players) to logits or numbers (n, m, outputs).

    Attributes
    ----------
    body : nn.Module
        The part that sees what is known.
    inputs : str
        The shape of the body's inputs, for error messages.
    starts_trained : bool
        Whether the body starts as a trained classifier, which is large, too.
    """

    body: nn.Module
    inputs: str
    starts_trained: ClassVar[bool] = False

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What a file says about the network, as plain JSON values."""

    @abstractmethod
    def known(self, x: Tensor) -> Tensor:
        """Return the outputs when every player is known: x (n, ...) to (n, outputs)."""

    def trained(self) -> SurrogateNetwork | ColumnTables:
        """Return what evaluates the network as it is now; by default the network itself."""
        return self


class MaskedNetwork(SurrogateNetwork):
    """The network of a surrogate for tables: x (n, columns) and s (n, m, players) to (n, m, outputs).

    Parameters
    ----------
    encoder : TableEncoder
        The encoding of the columns.
    owner : sequence of int
        The player of each column.
    body : nn.Module
        Sees the inputs of the players in s, zero elsewhere, and s itself: (b, inputs + players) to (b, outputs).
    """

    def __init__(self, encoder: TableEncoder, owner: Sequence[int], body: nn.Module) -> None:
        super().__init__()
        self.encoder, self.body, self.owner = encoder, body, list(owner)
        inputs = torch.tensor([owner[column] for column in encoder.columns])
        self.one_to_one = inputs.tolist() == list(range(max(owner) + 1))
        self.inputs = f"(b, {len(inputs) + max(owner) + 1})"
        self.register_buffer("player", inputs, persistent=False)

    player: Tensor
    encoder: TableEncoder
    owner: list[int]

    @property
    def config(self) -> dict[str, Any]:
        """The encoder, the layers of the body, and the player of each column."""
        return {"encoder": self.encoder.config, "layers": layers_of(self.body), "owner": self.owner}

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        """Return logits or numbers (n, m, outputs)."""
        encoded = self.encoder(x)
        member = s.to(encoded.dtype)
        shown = member if self.one_to_one else member[..., self.player]
        together = torch.cat([encoded[:, None] * shown, member], dim=2)
        result: Tensor = self.body(together.flatten(0, 1))
        return result.unflatten(0, s.shape[:2])

    def known(self, x: Tensor) -> Tensor:
        """Return the outputs when every player is known; this makes a small ONNX graph."""
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

    def trained(self) -> SurrogateNetwork | ColumnTables:
        """Return what evaluates the network as it is now, as fast as possible."""
        if not isinstance(self.body, Perceptron):
            return self
        return ColumnTables(self.encoder, self.owner, list(self.body.children()))


class MaskedImages(SurrogateNetwork):
    """The network of a surrogate for images (n, channels, height, width): s (n, m, players) to (n, m, outputs).

    Parameters
    ----------
    body : nn.Module
        Sees each image with the hidden players filled.
    players : Partition
        The players.
    inverse : str or None
        How logits are computed from what the body returns: ``"log"`` for probabilities that sum to one,
        ``"logit"`` for other probabilities, None if the body returns logits or numbers.
    """

    starts_trained = True

    def __init__(self, body: nn.Module, players: Partition, inverse: Inverse) -> None:
        super().__init__()
        self.body, self.players, self.inverse = channels_last(body), players, inverse
        self.inputs = f"(b, {', '.join(map(str, (len(players.fill), *players.shape[1:])))})"

    @property
    def config(self) -> dict[str, Any]:
        """How logits are computed; the layers are the user's own."""
        return {"inverse": self.inverse}

    def known(self, x: Tensor) -> Tensor:
        """Return the outputs when every player is known."""
        everyone = torch.ones(x.shape[0], 1, len(self.players), dtype=torch.bool, device=x.device)
        made: Tensor = self(x, everyone)
        return made[:, 0]

    def forward(self, x: Tensor, s: Tensor) -> Tensor:
        """Return logits or numbers (n, m, outputs)."""
        shown = torch.where(self.players.mask(s), x[:, None], self.players.filling(x))
        raw: Tensor = self.body(shown.flatten(0, 1))
        if raw.ndim == 1:
            raw = raw[:, None]
        if self.inverse == "log":
            raw = raw.clamp(min=_TINY).log()
        elif self.inverse == "logit":
            raw = raw.logit(_TINY)
        return raw.unflatten(0, s.shape[:2])
