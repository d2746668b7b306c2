"""Use explainers and value functions with other packages.

`fastshapley.interop.shapiq`, `fastshapley.interop.captum` and `fastshapley.interop.mlflow` each need the package
that they are named after. They are imported only on request.
"""
