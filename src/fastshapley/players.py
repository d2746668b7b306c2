"""Players: what a coalition switches on or off."""

from fastshapley.data.players import Features, Groups, Partition, Superpixels

__all__ = ["Features", "Groups", "Partition", "Superpixels"]
