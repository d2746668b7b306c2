"""A fitted explainer outside of Python objects: the file format and ONNX graphs.

`Graph` runs an exported graph. Importing it does not import torch or pandas.
"""

from fastshapley.export.graph import Graph

__all__ = ["Graph"]
