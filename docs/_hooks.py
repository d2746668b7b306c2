"""What mkdocs runs: a line such as ``<!-- help: serve -->`` becomes what ``fastshapley serve --help`` says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from typing import Any
from unittest import mock

from fastshapley.cli import main

_HELP = re.compile(r"<!-- help: ?(.*?) ?-->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _HELP.sub(lambda found: f"```text\n{_help(found[1])}```", markdown)


def _help(command: str) -> str:
    said = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"})
    with wide, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*shlex.split(command), "--help"])
    return said.getvalue()
