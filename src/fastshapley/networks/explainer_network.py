"""The network of an explainer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastshapley.errors import InputError
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.networks.tree_leaves import TreeLeaves
from fastshapley.networks.weights import layers_of

Classes = Literal["free", "mirror", "zero-sum"]


class ExplainerNetwork(nn.Module):
    """The network of an explainer: x (n, ...) to values (n, players, outputs), before normalisation.

    Parameters
    ----------
    encoder : nn.Module
        Computes the inputs of the body: a `TableEncoder`, or the identity for images.
    body : nn.Module
        Computes the values, (n, players * outputs), or (n, players) for mirrored outputs.
    players, outputs : int
        The numbers of players and outputs.
    classes : str
        What is known about the values of the outputs: ``"mirror"`` for two that sum to zero, ``"zero-sum"`` for
        more than two, ``"free"`` if nothing is known.
    leaves : TreeLeaves, optional
        Computes the leaves of the model's trees, which are further inputs of the body.

    Attributes
    ----------
    scale : Tensor
        The unit of the values of each output, (outputs,).
    """

    def __init__(
        self,
        encoder: nn.Module,
        body: nn.Module,
        players: int,
        outputs: int,
        classes: Classes = "free",
        leaves: TreeLeaves | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.body, self.leaves = encoder, body, leaves
        self.players, self.outputs, self.classes = players, outputs, classes
        self.register_buffer("scale", torch.ones(outputs))

    scale: Tensor

    @staticmethod
    def body_outputs(players: int, outputs: int, classes: str) -> int:
        """Return the number of values that a body computes for each row."""
        return players if classes == "mirror" else players * outputs

    @property
    def config(self) -> dict[str, Any]:
        """What a file says about the network, as plain JSON values."""
        return {
            "encoder": self.encoder.config if isinstance(self.encoder, TableEncoder) else None,
            "layers": layers_of(self.body),
            "players": self.players,
            "outputs": self.outputs,
            "classes": self.classes,
            "leaves": None if self.leaves is None else self.leaves.config,
        }

    @property
    def known_gaps(self) -> set[int]:
        """The columns in which a gap differs from a value."""
        return self.encoder.known_gaps if isinstance(self.encoder, TableEncoder) else set()

    def forward(self, x: Tensor) -> Tensor:
        """Return values (n, players, outputs) of encoded rows (n, ...)."""
        return self.decode(self.encoder(x), *self.leaves_of(x))

    def leaves_of(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the leaves (n, trees) of encoded rows; nothing if the body does not take them."""
        return () if self.leaves is None else (self.leaves(x),)

    def decode(self, inputs: Tensor, *leaves: Tensor) -> Tensor:
        """Return the values of rows whose inputs (n, width) and leaves (n, trees) are known.

        Raises
        ------
        InputError
            If the body returns another number of values.
        """
        raw: Tensor = self.body(inputs, *leaves)
        expected = self.body_outputs(self.players, self.outputs, self.classes)
        n = inputs.shape[0]  # While a graph is traced, len() does not work.
        if raw.numel() != n * expected:
            raise InputError(
                f"network returned shape {tuple(raw.shape)} for {n} rows: expected ({n}, {expected}), "
                f"a value for each of {self.players} players and {self.outputs} outputs"
            )
        if self.classes == "mirror":  # A graph is faster with the long axis last.
            mirrored = torch.stack([-self.scale[0], self.scale[1]])[:, None]
            return (raw.reshape(n, 1, self.players) * mirrored).transpose(1, 2).contiguous()
        phi = raw.reshape(n, self.players, self.outputs)
        if self.classes == "zero-sum":
            phi = phi - phi.mean(2, keepdim=True)
        return phi * self.scale
