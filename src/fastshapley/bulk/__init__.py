"""Explain files of any size, on one machine or on a Ray cluster."""
