"""The command line: `main` is ``fastshapley``, and each command is a module of its name."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout

import fastshapley
from fastshapley import errors
from fastshapley.cli import demo_command as demo
from fastshapley.cli import explain_command as explain
from fastshapley.cli import export_command as export
from fastshapley.cli import fit_command as fit
from fastshapley.cli import page_command as page
from fastshapley.cli import paper_command as paper
from fastshapley.cli import report_command as report
from fastshapley.cli import serve_command as serve
from fastshapley.cli.command import add_common
from fastshapley.support.atomic_files import json_text

_COMMANDS = (fit, explain, report, export, serve, page, paper, demo)
_TOLD = (OSError, ImportError, *(kind for kind in vars(errors).values() if isinstance(kind, type)))

_EPILOG = """\
fastshapley COMMAND --help says more of each, with an example.

exit codes:
  0    done
  1    refused or failed: standard error says why, in one line
  2    wrong usage
  130  interrupted: standard error says whether the same command goes on

for machines:
  With --json, standard output is one JSON object, whose keys are in each command's
  help, and nothing else; bars and logs are on standard error. Of what is refused,
  failed or interrupted nothing is on standard output, and the last line of standard
  error is a JSON object: "error" (the message), "kind" (such as InputError) and
  "command". A figure that could not be measured is null.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fastshapley`` with the given arguments, by default those of the process, and return the exit code."""
    options = parser().parse_args(arguments)
    try:
        with _clean_output() if options.json else nullcontext():
            result = options.run(options)
        if result is not None:
            print(json_text(result.data) if options.json else result.text, flush=True)
    except KeyboardInterrupt:
        _complain(options, f"interrupted; {options.interrupted}", "KeyboardInterrupt")
        return 130
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        if options.json or not options.debug:
            _complain(options, _words(error), type(error).__name__)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """What understands the arguments, and says what they may be."""
    found = argparse.ArgumentParser(
        prog="fastshapley",
        description=f"{fastshapley.__doc__} Train an explainer with fit, then use it with the others.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--version", action="version", version=f"fastshapley {fastshapley.__version__}")
    found.set_defaults(json=False, debug=False)
    add_common(found)
    commands = found.add_subparsers(required=True, metavar="COMMAND", dest="command", title="commands")
    for module in _COMMANDS:
        module.add(commands)
    return found


@contextmanager
def _clean_output() -> Iterator[None]:
    """What anyone prints goes to standard error: a model of the user's, native code, processes that are started."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _words(error: Exception) -> str:
    """What went wrong, in one line."""
    said = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
    if isinstance(error, _TOLD) and said:
        return said
    return f"{type(error).__name__}: {said} (this was not expected: --debug shows where it comes from)"


def _complain(options: argparse.Namespace, message: str, kind: str) -> None:
    if options.json:
        print(json_text({"error": message, "kind": kind, "command": options.command}), file=sys.stderr)
    else:
        print(f"fastshapley {options.command}: {message}", file=sys.stderr)
