"""Shapley values for any model in one forward pass."""

from fastshapley.explainer import FastSHAP
from fastshapley.players import Features, Groups
from fastshapley.recipes import Layers, Recipe, Targets
from fastshapley.report import Report
from fastshapley.training import Training
from fastshapley.version import __version__

__all__ = ["FastSHAP", "Features", "Groups", "Layers", "Recipe", "Report", "Targets", "Training", "__version__"]
