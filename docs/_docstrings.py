"""How docstrings become pages: a line ``name: what it is`` a list's entry, lines with ``>>>`` a block of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAMES = re.compile(r"^((?:\*{0,2}\w+)(?:, \w+)*): ")


class Docstrings(griffe.Extension):
    """Rewrites each docstring as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """The docstring as Markdown.

    >>> print(markdown("Adds.\\n\\na, b: numbers.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    <BLANKLINE>
    - **a**, **b**: numbers.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    found: list[str] = []
    coding = listing = False
    for line in text.splitlines():
        if line.startswith(">>>") and not coding:
            coding = True
            found.append("```pycon")
        elif coding and not line.strip():
            coding = False
            found.append("```")
        names = None if coding else _NAMES.match(line)
        if names:
            if not listing:
                found.append("")
            listing = True
            bold = ", ".join(f"**{name}**" for name in names[1].split(", "))
            line = f"- {bold}: {line[names.end() :]}"
        elif not line.startswith(" "):
            listing = False
        # a second name in an entry, such as "tol: ..." inside the text of "budget", stays as it is
        found.append(line)
    return "\n".join([*found, "```"] if coding else found)
