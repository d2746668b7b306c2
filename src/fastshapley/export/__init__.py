"""A fitted explainer outside of Python objects: the file format and ONNX graphs."""
