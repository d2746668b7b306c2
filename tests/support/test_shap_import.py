"""The import of shap."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_shap_can_be_imported_although_its_import_warns() -> None:
    """A fresh process treats the warnings as errors."""
    script = """
        import warnings
        warnings.simplefilter("error", PendingDeprecationWarning)
        from fastshapley.support.shap_import import shap
        assert callable(shap.Explanation)
        try:
            warnings.warn("later", PendingDeprecationWarning)
        except PendingDeprecationWarning:
            print("warnings are errors again")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "warnings are errors again\n"
