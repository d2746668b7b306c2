"""Reproduce the experiments of the FastSHAP paper."""
