"""Shapley values for any model in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastshapley.version import __version__

if TYPE_CHECKING:
    from fastshapley.data.players import Features, Groups, Superpixels
    from fastshapley.explainer import FastSHAP
    from fastshapley.networks.backbone import Backbone
    from fastshapley.networks.unet import UNet
    from fastshapley.training.loop import Training
    from fastshapley.training.recipes import Layers, Recipe, Targets
    from fastshapley.trust.report import Report

__all__ = [
    "Backbone",
    "FastSHAP",
    "Features",
    "Groups",
    "Layers",
    "Recipe",
    "Report",
    "Superpixels",
    "Targets",
    "Training",
    "UNet",
    "__version__",
]

_MODULES = {
    "explainer": ("FastSHAP",),
    "networks": ("Backbone", "UNet"),
    "data.players": ("Features", "Groups", "Superpixels"),
    "training.recipes": ("Layers", "Recipe", "Targets"),
    "trust.report": ("Report",),
    "training.loop": ("Training",),
}


def __getattr__(name: str) -> Any:
    """A name when it is first asked for: a server of exported graphs has no use for torch, and need not have it."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"fastshapley.{module}"), name)
    raise AttributeError(f"module 'fastshapley' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
