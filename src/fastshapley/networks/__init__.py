"""The networks of surrogates and explainers."""

from fastshapley.networks.backbone import Backbone
from fastshapley.networks.explainer_network import ExplainerNetwork
from fastshapley.networks.perceptron import Perceptron, PlayerPerceptron
from fastshapley.networks.surrogate_networks import MaskedImages, MaskedNetwork
from fastshapley.networks.table_encoder import TableEncoder
from fastshapley.networks.unet import UNet

__all__ = [
    "Backbone",
    "ExplainerNetwork",
    "MaskedImages",
    "MaskedNetwork",
    "Perceptron",
    "PlayerPerceptron",
    "TableEncoder",
    "UNet",
]
