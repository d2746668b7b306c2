"""Shapley values for any model in one forward pass."""

from fastshapley.explainer import FastSHAP
from fastshapley.networks.convolutional import Backbone, UNet
from fastshapley.players import Features, Groups, Superpixels
from fastshapley.recipes import Layers, Recipe, Targets
from fastshapley.report import Report
from fastshapley.training import Training
from fastshapley.version import __version__

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
