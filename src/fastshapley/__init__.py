"""Shapley values for any model in one forward pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastshapley.version import __version__

if TYPE_CHECKING:
    from fastshapley.advice import Advice, Way
    from fastshapley.bulk.job import Explained
    from fastshapley.data.players import Features, Groups, Superpixels
    from fastshapley.explainer import FastSHAP
    from fastshapley.networks.backbone import Backbone
    from fastshapley.networks.unet import UNet
    from fastshapley.training.loop import Training
    from fastshapley.training.recipes import Layers, Recipe, Targets
    from fastshapley.training.recipes import default as default_recipe
    from fastshapley.training.recipes import default_images as default_image_recipe
    from fastshapley.training.recipes import paper as paper_recipe
    from fastshapley.training.recipes import paper_images as paper_image_recipe
    from fastshapley.trust.drift import Drift
    from fastshapley.trust.report import Report

__all__ = [
    "Advice",
    "Backbone",
    "Drift",
    "Explained",
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
    "Way",
    "__version__",
    "default_image_recipe",
    "default_recipe",
    "paper_image_recipe",
    "paper_recipe",
]

# Public names: the module of each, below ``fastshapley``, and its name there.
_PUBLIC = {
    "Advice": ("advice", "Advice"),
    "Backbone": ("networks.backbone", "Backbone"),
    "Drift": ("trust.drift", "Drift"),
    "Explained": ("bulk.job", "Explained"),
    "FastSHAP": ("explainer", "FastSHAP"),
    "Features": ("data.players", "Features"),
    "Groups": ("data.players", "Groups"),
    "Layers": ("training.recipes", "Layers"),
    "Recipe": ("training.recipes", "Recipe"),
    "Report": ("trust.report", "Report"),
    "Superpixels": ("data.players", "Superpixels"),
    "Targets": ("training.recipes", "Targets"),
    "Training": ("training.loop", "Training"),
    "UNet": ("networks.unet", "UNet"),
    "Way": ("advice", "Way"),
    "default_image_recipe": ("training.recipes", "default_images"),
    "default_recipe": ("training.recipes", "default"),
    "paper_image_recipe": ("training.recipes", "paper_images"),
    "paper_recipe": ("training.recipes", "paper"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that a server of exported graphs does not load torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fastshapley' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(f"fastshapley.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
