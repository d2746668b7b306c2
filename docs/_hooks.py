"""What mkdocs runs: the line ``<!-- help -->`` becomes what the command line, and each command, says of itself."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

from fastshapley.cli import main

_COMMAND = re.compile(r"^ {4}(\w[\w-]*) {2,}", re.MULTILINE)  # options and arguments are indented by two


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace("<!-- help -->", "\n".join(_sections())) if "<!-- help -->" in markdown else markdown


def _sections(*command: str) -> Iterator[str]:
    """The help of a command, and then of those below it."""
    said = _help(*command)
    yield (f"\n## {' '.join(command)}\n" if command else "") + f"\n```text\n{said}```\n"
    for name in _COMMAND.findall(said):
        yield from _sections(*command, name)


def _help(*command: str) -> str:
    said = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"})
    with wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return said.getvalue()
