"""Explaining and fitting on a Ray cluster."""

from fastshapley.bulk.ray_cluster import Spread, connect, explain, explain_to, fit, spread

__all__ = ["Spread", "connect", "explain", "explain_to", "fit", "spread"]
