"""What goes wrong, by name. Each error is also the standard one that callers already catch."""

from __future__ import annotations


class InputError(ValueError):
    """A table, coalition or argument that does not fit what the explainer was built for."""


class ModelError(ValueError):
    """The user's model cannot be called as a batched function, or returned something unusable."""


class TrainingError(RuntimeError):
    """Training cannot go on: the loss is not finite, or a checkpoint belongs to another run."""


class FileFormatError(ValueError):
    """A file is not what it should be, is cut short, or was written by a newer version."""


class ExportError(RuntimeError):
    """A graph does not give what the explainer does."""


class ServerError(RuntimeError):
    """A server does not answer, or not as it should."""


class PartError(RuntimeError):
    """A part of the files that were to be explained cannot be; those before it are kept."""
