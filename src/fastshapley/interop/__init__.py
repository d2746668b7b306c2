"""Explainers and value functions in the words of other packages: a module each, imported when it is asked for.

`fastshapley.interop.shapiq`, `fastshapley.interop.captum` and `fastshapley.interop.mlflow` need the package that
they are named after.
"""
