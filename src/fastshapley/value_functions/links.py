"""Links: what a value function makes of the model's output."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fastshapley.errors import InputError

Link = Literal["identity", "logit", "log"]
LINKS = ("identity", "logit", "log")
_CLIP = 1e-7  # distance that probabilities keep from 0 and 1 before a logit or a logarithm
_TOLERANCE = 1e-6  # how far outside of [0, 1] rounding may take a probability


def apply_link(link: Link, y: Tensor) -> Tensor:
    """Return the link of the model's outputs.

    Parameters
    ----------
    link : str
        ``"identity"``, ``"logit"`` or ``"log"``.
    y : Tensor
        Outputs of any shape.

    Raises
    ------
    InputError
        If the link is unknown, or needs probabilities and the outputs are not.

    Examples
    --------
    >>> apply_link("logit", torch.tensor([0.5]))
    tensor([0.])
    """
    if link == "identity":
        return y
    if link not in LINKS:
        raise InputError(f"link is {link!r}: use one of {LINKS}")
    if ((y < -_TOLERANCE) | (y > 1 + _TOLERANCE)).any():
        raise InputError(
            f"link is {link!r}, but the model's outputs are not probabilities: use link='identity', or logits=True "
            "if they are logits"
        )
    return linked(link, y)


def linked(link: Link, y: Tensor) -> Tensor:
    """Return the link of outputs that are known to suit it; an ONNX graph can be traced through it."""
    if link == "identity":
        return y
    if link == "log":
        return y.double().clamp(min=_CLIP).log().to(y.dtype)
    return torch.logit(y.double(), eps=_CLIP).to(y.dtype)
