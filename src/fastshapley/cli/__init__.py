"""The command line ``fastshapley``. Each command is a module ``<command>_command`` with a function ``add``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout

import fastshapley
from fastshapley import errors
from fastshapley.cli.command import add_common
from fastshapley.support.atomic_files import json_text

# The commands in the order of the help. Each has a module fastshapley.cli.<command>_command.
COMMANDS = (
    "fit",
    "explain",
    "report",
    "check",
    "update",
    "advise",
    "export",
    "serve",
    "page",
    "paper",
    "demo",
)
_EXPECTED_ERRORS = (OSError, ImportError, *(kind for kind in vars(errors).values() if isinstance(kind, type)))

_EPILOG = """\
Run fastshapley COMMAND --help for the options of a command and examples.

exit codes:
  0    success
  1    error: standard error explains it in one line
  2    wrong usage
  3    check found that the rows or the model have drifted
  130  interrupted: standard error says whether the same command resumes

for scripts:
  With --json, standard output is exactly one JSON object. Each command's help lists
  its keys. Progress bars and logs go to standard error. After an error or an
  interruption, standard output is empty and the last line of standard error is a
  JSON object with "error" (the message), "kind" (such as InputError) and "command".
  A number that could not be measured is null.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fastshapley``.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its options. The default is the arguments of the process.

    Returns
    -------
    int
        The exit code.
    """
    options, code = parser().parse_args(arguments), 0
    try:
        with _clean_output() if options.json else nullcontext():
            result = options.run(options)
        if result is not None:
            code = result.code
            print(json_text(result.data) if options.json else result.text, flush=True)
    except KeyboardInterrupt:
        _print_error(options, f"interrupted; {options.interrupted}", "KeyboardInterrupt")
        return 130
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        if options.json or not options.debug:
            _print_error(options, _message(error), type(error).__name__)
        return 1
    return code


def parser() -> argparse.ArgumentParser:
    """Return the argument parser with all commands."""
    parser = argparse.ArgumentParser(
        prog="fastshapley",
        description=f"{fastshapley.__doc__} Train an explainer with fit, then use it with the other commands.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastshapley {fastshapley.__version__}")
    parser.set_defaults(json=False, debug=False)
    add_common(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command", title="commands")
    for name in COMMANDS:
        importlib.import_module(f"fastshapley.cli.{name}_command").add(commands)
    return parser


@contextmanager
def _clean_output() -> Iterator[None]:
    """Send all prints to standard error, including those of the user's model, native code and child processes."""
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


def _message(error: Exception) -> str:
    """Return what went wrong, in one line."""
    text = " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
    if isinstance(error, _EXPECTED_ERRORS) and text:
        return text
    return f"{type(error).__name__}: {text} (unexpected error: run with --debug to see where it comes from)"


def _print_error(options: argparse.Namespace, message: str, kind: str) -> None:
    if options.json:
        print(json_text({"error": message, "kind": kind, "command": options.command}), file=sys.stderr)
    else:
        print(f"fastshapley {options.command}: {message}", file=sys.stderr)
