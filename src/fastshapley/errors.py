"""The exceptions of the library. Each one is also a standard exception that callers already catch."""

from __future__ import annotations


class InputError(ValueError):
    """An argument, table or coalition is not what the explainer expects."""


class ModelError(ValueError):
    """The user's model cannot be called with a batch of rows, or its output cannot be used."""


class TrainingError(RuntimeError):
    """Training cannot continue: the loss is not finite, or a checkpoint belongs to another run."""


class FileFormatError(ValueError):
    """A file has another format, is incomplete, or was written by a newer version."""


class ExportError(RuntimeError):
    """An exported graph returns other values than the explainer."""


class ServerError(RuntimeError):
    """A server does not answer, or its answer is not as expected."""


class PartError(RuntimeError):
    """A part of the input files cannot be explained; the parts before it are kept."""
