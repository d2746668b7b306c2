"""What commands share: how one is added, what it returns, and arguments that several have."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GOES_ON = "the same command goes on where it was"
_WIDTH = 86


@dataclass(frozen=True)
class Result:
    """What a command prints: in words, or, with --json, as an object."""

    text: str
    data: dict[str, Any]


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], Result | None],
    *,
    help: str,
    description: str,
    examples: str,
    keys: str | None = None,
    interrupted: str = "the same command starts anew",
    **settings: Any,
) -> argparse.ArgumentParser:
    """A parser for one command.

    ``keys`` are those of the object that it prints with --json, where it prints one; ``interrupted`` says what
    becomes of one that is interrupted.
    """
    epilog = f"examples:\n{textwrap.indent(textwrap.dedent(examples).strip(), '  ')}"
    if keys is not None:
        epilog += f"\n\nkeys of --json:\n{textwrap.fill(keys, _WIDTH, initial_indent='  ', subsequent_indent='  ')}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(description, _WIDTH),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **settings,
    )
    parser.set_defaults(run=run, interrupted=interrupted)
    add_common(parser, "an error is a JSON object, as the log is" if keys is None else None)
    return parser


def add_common(parser: argparse.ArgumentParser, json_help: str | None = None) -> None:
    """The options that may stand before the command as well as after it; the first parser has their defaults."""
    json_help = json_help or "print one JSON object, and nothing else; an error is one too"
    for option, text in (("--json", json_help), ("--debug", "of an error, show the whole trace")):
        parser.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def add_trust(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--trust", action="store_true", help="load a pickle, which can run anything")


def add_model(parser: argparse.ArgumentParser, when: str) -> None:
    """The model of an explainer whose file does not do without it."""
    parser.add_argument("--model", help=f"the model, as fit takes it: {when}")
    add_trust(parser)


def load(options: argparse.Namespace) -> Any:
    """The explainer of ``options.file``, with the model that is given for it, if one is."""
    from fastshapley import FastSHAP
    from fastshapley.cli.model_files import load_model

    model = None if options.model is None else load_model(options.model, trust=options.trust)
    return FastSHAP.load(options.file, model)


def whole(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, and is {text!r}")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, and is {text!r}")
    return number
