"""Docstrings that are not numpydoc, rewritten as Markdown for mkdocstrings.

mkdocstrings reads numpydoc itself. In other docstrings, a line ``name: description`` becomes an entry of a list,
and lines that begin with ``>>>`` become a block of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAMES = re.compile(r"^((?:\*{0,2}\w+)(?:, \w+)*): ")
_NUMPYDOC = re.compile(r"^ *[A-Z][A-Za-z ]+\n *-{3,} *$", re.MULTILINE)  # the heading of a section


class Docstrings(griffe.Extension):
    """Rewrite each docstring that is not numpydoc as Markdown, and let functions win over modules of their name."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute in place."""
        if obj.docstring is not None and not is_numpydoc(obj.docstring.value):
            obj.docstring.value = markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Make ``package.name`` the function where a module ``package/name.py`` has the same name, as Python does.

        The other names that the package imports from such a module move along, as its path no longer leads to it.
        """
        packages = [pkg]
        while packages:
            package = packages.pop()
            exports = {str(export) for export in package.exports or ()}
            for name, module in list(package.members.items()):
                if not isinstance(module, griffe.Module):
                    continue
                if name in module.functions and name in exports:
                    for public in exports & set(module.members):
                        found = module.members[public]
                        found.parent = package
                        package.members[public] = found
                elif module.is_init_module:
                    packages.append(module)


def is_numpydoc(text: str) -> bool:
    """Return whether a docstring has sections in numpydoc's format.

    Examples
    --------
    >>> is_numpydoc("Add.\\n\\nParameters\\n----------\\na : int\\n    A number.")
    True
    >>> is_numpydoc("Adds.\\n\\na: a number.")
    False
    """
    return _NUMPYDOC.search(text) is not None


def markdown(text: str) -> str:
    """Return a docstring that is not numpydoc as Markdown.

    Examples
    --------
    >>> markdown("Adds.\\n\\na, b: numbers.\\n\\n>>> 1 + 1\\n2").splitlines()[3:]
    ['- **a**, **b**: numbers.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    in_code = in_list = False
    for line in text.splitlines():
        if line.startswith(">>>") and not in_code:
            in_code = True
            lines.append("```pycon")
        elif in_code and not line.strip():
            in_code = False
            lines.append("```")
        names = None if in_code else _NAMES.match(line)
        if names:
            if not in_list:
                lines.append("")
            in_list = True
            bold = ", ".join(f"**{name}**" for name in names[1].split(", "))
            line = f"- {bold}: {line[names.end() :]}"
        elif not line.startswith(" "):
            in_list = False
        lines.append(line)  # a second name inside an entry, such as "tol: ...", stays as it is
    return "\n".join([*lines, "```"] if in_code else lines)
