"""Other methods that explain images, for comparison: gradients, sampling, and an amortised leave-one-out.

Each method takes the same images and players as `FastSHAP`, and returns values as `FastSHAP.shap_values` does.
"""

from fastshapley.baselines.cxplain import CXPlain
from fastshapley.baselines.gradients import deep_shap, grad_cam, integrated_gradients, smooth_grad
from fastshapley.baselines.inclusion_curves import Curve, Curves, Scores, paired_interval, removal_curves
from fastshapley.baselines.kernel_shap import kernel_shap, kernel_shap_s, random_ranking

__all__ = [
    "CXPlain",
    "Curve",
    "Curves",
    "Scores",
    "deep_shap",
    "grad_cam",
    "integrated_gradients",
    "kernel_shap",
    "kernel_shap_s",
    "paired_interval",
    "random_ranking",
    "removal_curves",
    "smooth_grad",
]
