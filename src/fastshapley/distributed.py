"""Explain and fit on a Ray cluster."""

from fastshapley.bulk.ray_cluster import Spread, connect, spread
from fastshapley.bulk.ray_explain import explain, explain_to
from fastshapley.bulk.ray_fit import fit

__all__ = ["Spread", "connect", "explain", "explain_to", "fit", "spread"]
