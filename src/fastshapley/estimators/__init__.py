"""Estimators: Shapley values of given rows with no training."""

from fastshapley.estimators.exact import exact
from fastshapley.estimators.kernel import kernel
from fastshapley.estimators.permutation import permutation
from fastshapley.estimators.sampling import Estimate

__all__ = ["Estimate", "exact", "kernel", "permutation"]
