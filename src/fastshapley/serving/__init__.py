"""Explanations over HTTP, from ONNX graphs, without torch."""
