"""Fitting an explainer: setup, game, network, error bars, report."""
