"""Estimators: Shapley values of given rows with no training."""

from fastshapley.estimators.base import Estimate
from fastshapley.estimators.exact import exact
from fastshapley.estimators.kernel import kernel
from fastshapley.estimators.permutation import permutation

__all__ = ["Estimate", "exact", "kernel", "permutation"]
