"""Tests of the code that all commands share, and of the list of commands."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

import fastshapley.cli
from fastshapley.cli import COMMANDS
from fastshapley.cli.command import Result, add_command, positive, share, whole


def test_every_command_module_is_in_the_list() -> None:
    modules = {path.stem for path in Path(fastshapley.cli.__file__).parent.glob("*_command.py")}
    assert modules == {f"{name}_command" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_module_adds_the_command_of_its_name(name: str) -> None:
    commands = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"fastshapley.cli.{name}_command").add(commands)
    assert list(commands.choices) == [name]


def test_a_command_runs_its_function_and_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="fastshapley")
    add_command(
        parser.add_subparsers(),
        "greet",
        lambda options: Result("hello", {"word": "hello"}),
        help="say hello",
        description="Say hello to someone.",
        examples="""
            fastshapley greet
        """,
        keys="word (what was said)",
    )
    options = parser.parse_args(["greet", "--json"])
    assert options.json
    assert options.run(options) == Result("hello", {"word": "hello"})
    assert options.interrupted == "the same command starts again from the beginning"
    with pytest.raises(SystemExit):
        parser.parse_args(["greet", "--help"])
    text = capsys.readouterr().out
    assert "Say hello to someone." in text
    assert "examples:\n  fastshapley greet\n" in text
    assert "keys of --json:\n  word (what was said)\n" in text


def test_whole_parses_positive_integers() -> None:
    assert whole("12") == 12


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "two"])
def test_whole_refuses_other_texts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be an integer above 0, got"):
        whole(text)


def test_positive_parses_numbers_above_zero() -> None:
    assert positive("0.5") == 0.5


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "two"])
def test_positive_refuses_other_texts(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number above 0, got"):
        positive(text)


def test_share_parses_numbers_between_zero_and_one() -> None:
    assert share("0.5") == 0.5


@pytest.mark.parametrize("text", ["1", "2.5"])
def test_share_refuses_larger_numbers(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number between 0 and 1, got"):
        share(text)
