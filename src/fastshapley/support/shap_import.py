"""Import shap without the warnings that its own import raises.

Under ``python -W error`` these warnings would stop the import.
"""

import warnings

with warnings.catch_warnings():
    # shap's colour maps raise this warning with matplotlib 3.11.
    warnings.simplefilter("ignore", PendingDeprecationWarning)
    import shap

__all__ = ["shap"]
