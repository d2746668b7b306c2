"""What a file holds of a network: the configuration of our own layers, and the weights of any."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastshapley.errors import FileFormatError


class Configured:
    """A module of this package that its configuration describes fully.

    Attributes
    ----------
    config : dict
        The arguments of the constructor as plain JSON values.
    """

    config: dict[str, Any]


def layers_of(body: nn.Module) -> dict[str, Any] | None:
    """Return the configuration of a body; None for a module of the user's, which a file does not describe."""
    return body.config if isinstance(body, Configured) else None


def load_weights(network: nn.Module, weights: dict[str, Tensor], argument: str) -> None:
    """Load the weights of a file into a network.

    Parameters
    ----------
    network : nn.Module
        The network, with any weights.
    weights : dict
        The weights by name.
    argument : str
        The argument of ``FastSHAP.load`` that the network came from, for the error message.

    Raises
    ------
    FileFormatError
        If the weights are those of another network.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise FileFormatError(f"{argument} is not the network that the file has weights of: {error}") from error


class HeldTensors(dict[str, Tensor]):
    """Tensors of a file by name. One that is missing is an error of the file."""

    def __missing__(self, name: str) -> Tensor:
        raise FileFormatError(f"the file is damaged: it lacks the tensor {name!r}")


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix`` and a dot, without both.

    To ask the result for a tensor that it lacks raises `FileFormatError`.
    """
    start = f"{prefix}."
    return HeldTensors({name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)})
