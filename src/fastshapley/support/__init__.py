"""Small helpers that know nothing about Shapley values: atomic files, optional packages."""
