"""What commands share: how to add one, what it returns, and options that several commands have."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RESUMES = "run the same command again to resume"
STARTS_AGAIN = "the same command starts again from the beginning"
DRIFT = 3  # the exit code of check where it finds drift
_HELP_WIDTH = 86  # characters per line of descriptions


@dataclass(frozen=True)
class Result:
    """What a command prints.

    Parameters
    ----------
    text : str
        The output for people.
    data : dict
        The output with ``--json``.
    code : int, default=0
        The exit code.
    """

    text: str
    data: dict[str, Any]
    code: int = 0


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], Result | None],
    *,
    help: str,
    description: str,
    examples: str,
    keys: str | None = None,
    interrupted: str = STARTS_AGAIN,
) -> argparse.ArgumentParser:
    """Add a command to the command line.

    Parameters
    ----------
    commands : argparse subparsers
        Where to add the command.
    name : str
        The command.
    run : callable
        Runs the command with the parsed options. It returns what to print, or None.
    help : str
        One line for the list of commands.
    description : str
        What the command does.
    examples : str
        Example commands, one per line.
    keys : str, optional
        The keys of the JSON object that the command prints with ``--json``, if it prints one.
    interrupted : str, default=STARTS_AGAIN
        What the user can do after an interruption.

    Returns
    -------
    argparse.ArgumentParser
        The parser of the command, with the options that all commands have.
    """
    epilog = f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}"
    if keys is not None:
        epilog += (
            f"\n\nkeys of --json:\n{textwrap.fill(keys, _HELP_WIDTH, initial_indent='  ', subsequent_indent='  ')}"
        )
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(description, _HELP_WIDTH),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, interrupted=interrupted)
    add_common(parser, "print errors, like the log, as JSON objects" if keys is None else None)
    return parser


def add_common(parser: argparse.ArgumentParser, json_help: str | None = None) -> None:
    """Add the options that may stand before or after the command. The first parser holds their defaults."""
    json_help = json_help or "print exactly one JSON object, also for an error"
    for option, text in (("--json", json_help), ("--debug", "show the full traceback of an error")):
        parser.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add ``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help="do not show progress bars")


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Add ``--trust``."""
    parser.add_argument(
        "--trust", action="store_true", help="load the model from a pickle, which can run arbitrary code"
    )


def add_model(parser: argparse.ArgumentParser, when: str) -> None:
    """Add ``--model`` for explainers whose files need the model; ``when`` says which these are."""
    parser.add_argument("--model", help=f"the model, as fit takes it; needed {when}")
    add_trust(parser)


def load(options: argparse.Namespace) -> Any:
    """Return the explainer of ``options.file``, with the model of ``options.model`` if there is one."""
    from fastshapley.cli.early_checks import saved_explainer

    saved_explainer(options)  # An error is reported before torch is imported.
    from fastshapley import FastSHAP
    from fastshapley.cli.model_files import load_model

    model = None if options.model is None else load_model(options.model, trust=options.trust)
    return FastSHAP.load(options.file, model)


def whole(text: str) -> int:
    """Parse an integer above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer above 0, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """Parse a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def share(text: str) -> float:
    """Parse a number between 0 and 1."""
    number = positive(text)
    if number >= 1:
        raise argparse.ArgumentTypeError(f"must be a number between 0 and 1, got {text!r}")
    return number
