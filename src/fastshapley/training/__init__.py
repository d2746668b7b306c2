"""The training loop, runs and checkpoints, processes that train together, and recipes."""
