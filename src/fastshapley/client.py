"""A client for explanation servers."""

from fastshapley.serving.client import Client

__all__ = ["Client"]
