"""What the documentation says one can type: the blocks of code of its pages, and how they are run."""

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
NOT_RUN = "not run by the tests"  # in the title of a block, where a reader sees it
_FENCE = re.compile(r"^```(?P<language>\w+)(?P<options>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
# A few hundredths of a fit's work, and of a report's: what is typed is tested, not how good the values are.
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
    """A fenced block of a page: its language, its options, its code, and the line that the code begins at."""

    language: str
    options: str
    code: str
    line: int

    @property
    def runs(self) -> bool:
        return NOT_RUN not in self.options


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of one language, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["options"], found["code"], text.count("\n", 0, found.start("code")) + 1)
        for found in _FENCE.finditer(text)
        if found["language"] == language
    ]


def commands(page: Path) -> list[str]:
    """The commands of a page's shell blocks, one a line, without comments."""
    lines = (line for block in blocks(page, "sh") for line in block.code.replace("\\\n", " ").splitlines())
    return [command for line in lines if (command := line.split("  #")[0].strip()) and not command.startswith("#")]


def run(pages: Sequence[Path], folder: Path, *, work: float = 0.04, replacing: tuple[str, str] = ("", "")) -> str:
    """Run the Python blocks of pages, one after the other, in ``folder``; what they print.

    All are run by one process, as importing torch takes its time, but none sees the names of another. Errors are
    reported with the page and its line.
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
    """Run a script in ``folder``, on one thread and without a screen; what it prints."""
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
