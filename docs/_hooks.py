"""Hooks that mkdocs runs: LaTeX becomes MathML, and the line ``<!-- help -->`` the help of the command line."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock
from xml.etree import ElementTree

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

from fastshapley.cli import main

# Commands are indented by four spaces in argparse's help, options and arguments by two.
_COMMAND = re.compile(r"^ {4}(\w[\w-]*) {2,}", re.MULTILINE)

# What pymdownx.arithmatex leaves of ``$...$`` and ``$$...$$``.
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*\\[(\[](?P<latex>.*?)\\[)\]]\s*</(?P=tag)>', re.DOTALL
)

# How many children a MathML element must have.
_CHILDREN = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "mroot": 2, "msubsup": 3, "munderover": 3}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the line ``<!-- help -->`` by the help of every command."""
    return markdown.replace("<!-- help -->", "\n".join(_sections())) if "<!-- help -->" in markdown else markdown


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Replace the LaTeX formulas of a page by MathML. A formula that is wrong stops the build."""

    def replacement(match: re.Match[str]) -> str:
        latex = html.unescape(match["latex"]).strip()
        try:
            return mathml(latex, block=match["tag"] == "div")
        except ValueError as error:
            raise PluginError(f"{page.file.src_uri}: {error}") from error

    return _FORMULA.sub(replacement, content)


def mathml(latex: str, *, block: bool = False) -> str:
    """Convert a formula from LaTeX to MathML, which browsers draw without a script.

    Parameters
    ----------
    latex : str
        The formula, without dollar signs.
    block : bool
        Whether the formula stands on a line of its own.

    Raises
    ------
    ValueError
        If the formula cannot be converted. latex2mathml copies some mistakes into its result instead of raising
        an error, so the result is checked too.

    Examples
    --------
    >>> mathml("x_1")  # doctest: +ELLIPSIS
    '<math ...><mrow><msub><mi>x</mi><mn>1</mn></msub></mrow></math>'
    """
    if latex.count("{") != latex.count("}"):
        raise ValueError(f"the formula {latex!r} has braces that do not match")
    try:
        found = convert(latex, display="block" if block else "inline")
    except Exception as error:  # the errors of latex2mathml have no common base class
        raise ValueError(f"the formula {latex!r} is not valid LaTeX ({type(error).__name__})") from error
    try:
        tree = ElementTree.fromstring(found)
    except ElementTree.ParseError as error:
        raise ValueError(f"the formula {latex!r} is not valid LaTeX ({error})") from error
    for element in tree.iter():
        name, text = element.tag.rpartition("}")[2], element.text or ""
        if "\\" in text:
            raise ValueError(f"the formula {latex!r} has the unknown command {text}")
        if len(element) != _CHILDREN.get(name, len(element)) or (name == "mi" and not text):
            raise ValueError(f"the formula {latex!r} is incomplete (see its <{name}>)")
    return found.replace(' mathvariant="bold"', ' class="bold"')  # browsers ignore this mathvariant


def _sections(*command: str) -> Iterator[str]:
    """Yield the help of a command, then of its subcommands, as Markdown."""
    text = _help(*command)
    yield (f"\n## {' '.join(command)}\n" if command else "") + f"\n```text\n{text}```\n"
    for name in _COMMAND.findall(text):
        yield from _sections(*command, name)


def _help(*command: str) -> str:
    """Return what a command prints with ``--help``."""
    printed = io.StringIO()
    wide = mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"})
    with wide, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return printed.getvalue()
