"""shap, without the warnings of its own making that importing it brings: ``python -W error`` would stop at them."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", PendingDeprecationWarning)  # of its colour maps, with matplotlib 3.11
    import shap

__all__ = ["shap"]
