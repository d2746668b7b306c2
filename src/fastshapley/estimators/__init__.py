"""Estimators: Shapley values of given rows with no training."""

from fastshapley.estimators.base import Estimate
from fastshapley.estimators.exact import exact
from fastshapley.estimators.kernel import kernel

__all__ = ["Estimate", "exact", "kernel"]
