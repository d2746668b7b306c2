"""Explain rows over HTTP with exported explainers. Only `client` imports pandas, and nothing imports torch."""
