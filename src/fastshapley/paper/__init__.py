"""The experiments of the FastSHAP paper."""
