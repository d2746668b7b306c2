"""The networks that play a surrogate's and an explainer's part."""

from fastshapley.networks.mlp import ExplainerNetwork, MaskedNetwork, Perceptron, PlayerPerceptron, TableEncoder

__all__ = ["ExplainerNetwork", "MaskedNetwork", "Perceptron", "PlayerPerceptron", "TableEncoder"]
