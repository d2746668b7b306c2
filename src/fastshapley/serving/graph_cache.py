"""Keep the exported graph of a saved explainer beside its file, because an export takes many seconds.

The cache ``.NAME.fastshapley-graph`` is one line of JSON and the ONNX graph. The line says which file and which
version of the library the graph is of, and has the graph's SHA-256 digest. A cache is used only if all of that
fits, and if only the server's user, the owner of the explainer's file and root can write it. It is read as bytes:
nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from pathlib import Path

from fastshapley.support.atomic_files import write_atomically
from fastshapley.version import __version__

logger = logging.getLogger(__name__)

_FORMAT = 1
_LONGEST_LINE = 1000  # bytes of the first line
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class GraphCache:
    """The cache of one saved explainer.

    Parameters
    ----------
    file : Path
        The file that `FastSHAP.save` wrote.
    digest : str
        SHA-256 digest of its content.
    """

    def __init__(self, file: Path, digest: str) -> None:
        # The file may be a link: the cache then lies beside the link, in the folder that the user named.
        self.path = file.with_name(f".{file.name}.fastshapley-graph")
        self._file, self._digest = file, digest

    def read(self) -> bytes | None:
        """Return the graph, or None if there is no cache that can be trusted and fits the file.

        Returns
        -------
        graph : bytes or None
            Content of the ONNX file.
        """
        try:
            with open(os.open(self.path, os.O_RDONLY | _OPEN_FLAGS), "rb") as stream:
                reason = self._distrusted(os.fstat(stream.fileno()))
                if reason is not None:
                    logger.warning("the cached graph %s is not used: %s", self.path, reason)
                    return None
                head, graph = stream.readline(_LONGEST_LINE), stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("the cached graph %s is not used: %s", self.path, error.strerror)
            return None
        if head != self._head(graph):
            logger.info("the cached graph %s is of another file or version, or damaged: it is replaced", self.path)
            return None
        return graph

    def write(self, graph: bytes) -> None:
        """Write the cache, or log why it cannot be written.

        Parameters
        ----------
        graph : bytes
            Content of the ONNX file.
        """

        def write(temporary: Path) -> None:
            temporary.chmod(0o600)
            temporary.write_bytes(self._head(graph) + graph)

        try:
            self.path.unlink(missing_ok=True)  # A link or a mode of the old cache must not last.
            write_atomically(self.path, write)
        except OSError as error:
            logger.info("the graph of %s is not cached: %s", self._file, error.strerror or error)

    def _head(self, graph: bytes) -> bytes:
        """Return the first line of the cache of a graph."""
        head = {
            "format": _FORMAT,
            "version": __version__,
            "explainer": self._digest,
            "graph": hashlib.sha256(graph).hexdigest(),
        }
        return json.dumps(head).encode() + b"\n"

    def _distrusted(self, status: os.stat_result) -> str | None:
        """Return why a cache could be written by somebody who cannot write the file, or None."""
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        if os.name != "posix":
            return None  # The permissions of the folder decide there.
        owners = {os.geteuid(), self._file.stat().st_uid, 0}
        if status.st_uid not in owners:
            return "it belongs to another user than the explainer's file and the server"
        if status.st_mode & _WRITABLE_BY_OTHERS:
            return "other users may write it"
        return None


# A link could lead to the file of somebody else, and a pipe would never end.
_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
