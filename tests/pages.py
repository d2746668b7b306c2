"""The code blocks of the documentation, and how the tests run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOT_RUN = "not run by the tests"  # part of the title of such a block, so that readers see it
_FENCE = re.compile(r"^```(?P<language>\w+)(?P<options>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# Fits and reports do a small share of their work: the tests check that the code runs, not how good values are.
_PRELUDE = """\
import fastshapley.training.recipes as recipes, fastshapley.trust.effort as effort
def small(whole):
    return lambda *given, **named: recipes.scaled(whole(*given, **named), {work})
if {work} < 1:
    recipes.default, recipes.default_images = small(recipes.default), small(recipes.default_images)
    effort.REPORT_EVALUATIONS = 50_000
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, options and code, and the line on which the code begins."""

    language: str
    options: str
    code: str
    line: int

    @property
    def runs(self) -> bool:
        """Whether the tests run this block."""
        return NOT_RUN not in self.options


def blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of one language, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["options"], found["code"], text.count("\n", 0, found.start("code")) + 1)
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def commands(page: Path) -> list[str]:
    """Return the commands of a page's shell blocks, one per line, without comments."""
    lines = (line for block in blocks(page, "sh") for line in block.code.replace("\\\n", " ").splitlines())
    return [command for line in lines if (command := line.split("  #")[0].strip()) and not command.startswith("#")]


def run(pages: Sequence[Path], folder: Path, *, work: float = 0.04, replacing: tuple[str, str] = ("", "")) -> str:
    """Run the Python blocks of pages in ``folder`` and return what they print.

    One process runs all pages, because importing torch is slow, but each page has its own names. Tracebacks show
    the page and its line.

    Parameters
    ----------
    pages : sequence of Path
        The pages, in the order in which they run.
    folder : Path
        The working directory.
    work : float
        The share of the work that fits do.
    replacing : tuple of str
        A text in the blocks, and the text that replaces it.
    """
    script = folder / "blocks.py"
    parts = [_PRELUDE.format(work=work)]
    for page in pages:
        lines: list[str] = []
        for block in blocks(page, "python"):
            if block.runs:
                lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
        code = "\n".join(lines).replace(*replacing)
        parts.append(f"exec(compile({code!r}, {os.fspath(page)!r}, 'exec'), {{'__name__': {page.stem!r}}})")
    script.write_text("\n".join(parts), encoding="utf-8")
    return run_script(script, folder)


def run_script(script: Path, folder: Path) -> str:
    """Run a script in ``folder``, on one thread and without a screen, and return what it prints."""
    settings = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONPATH": os.fspath(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, os.fspath(script)],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
