"""Estimators of the Shapley values of given rows. They need no training."""

from fastshapley.estimators.estimate import Estimate
from fastshapley.estimators.exact import exact
from fastshapley.estimators.kernel import kernel
from fastshapley.estimators.permutation import permutation

__all__ = ["Estimate", "exact", "kernel", "permutation"]
