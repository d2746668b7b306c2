"""Find the columns of files that an explainer needs. This module does not import torch or pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from fastshapley.bulk.file_search import Files
from fastshapley.errors import InputError
from fastshapley.support.names import lacking


class NamedColumns(Protocol):
    """What the names of the features depend on; `TableSchema` has it."""

    @property
    def container(self) -> str:
        """The type of the table: ``"frame"``, ``"array"`` or ``"tensor"``."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""


@dataclass(frozen=True)
class SavedColumns:
    """The columns of the table that a saved explainer was fitted to.

    Parameters
    ----------
    container : str
        The type of the table: ``"frame"``, ``"array"`` or ``"tensor"``.
    names : tuple of str
        The names of the columns.
    """

    container: str
    names: tuple[str, ...]

    @classmethod
    def from_dict(cls, schema: dict[str, Any]) -> Self:
        """Return the columns of the schema in an explainer's file."""
        return cls(schema["container"], tuple(str(column["key"]) for column in schema["columns"]))


def feature_columns(
    schema: NamedColumns, names: Sequence[str], keys: Sequence[str] | None, where: str, known: Sequence[str] = ()
) -> list[str]:
    """Return the columns of a file that are the features, in the order of the schema.

    An explainer of a DataFrame finds its features by their names. An explainer of an array has no names: its
    features are the columns x0, x1 and so on, or else all columns that are not keys.

    Parameters
    ----------
    schema : NamedColumns
        The table that the explainer was fitted to.
    names : sequence of str
        The columns of the file.
    keys : sequence of str or None
        The columns that are copied to the output.
    where : str
        The name of the file, for error messages.
    known : sequence of str, default=()
        The features of the first file. If this file has any of them, it must have all of them.

    Returns
    -------
    list of str
        One column per column of the schema.

    Raises
    ------
    InputError
        If columns are missing, or their names are not unique.
    """
    if len(set(names)) < len(names):
        raise InputError(f"{where} has several columns of one name: rename them")
    if schema.container != "frame":
        return _array_columns(list(schema.names), names, keys or (), where, known)
    return _named_columns(list(schema.names), names, where)


def _named_columns(expected: list[str], names: Sequence[str], where: str) -> list[str]:
    if missing := [name for name in expected if name not in names]:
        raise InputError(lacking(where, missing, [name for name in names if name not in expected]))
    return expected


def _array_columns(
    expected: list[str], names: Sequence[str], keys: Sequence[str], where: str, known: Sequence[str]
) -> list[str]:
    """Return the features of an explainer that was fitted to an array."""
    if shared := [name for name in known if name in names]:
        if missing := [name for name in known if name not in names]:
            raise InputError(
                f"{where} has the columns {shared} of the first file, but not {missing}: use the same column names "
                "in all files, or call the features x0, x1 and so on"
            )
        return list(known)
    if set(expected) <= set(names):
        return expected
    others = [name for name in names if name not in keys]
    if others and all(map(_is_fraction, others)):
        raise InputError(f"{where} starts with {others[:3]}: its first line must hold the column names")
    if len(others) != len(expected):
        raise InputError(
            f"{where} has {len(others)} columns that are not keys, but the explainer expects {len(expected)}: name "
            "the keys, or call the features x0, x1 and so on"
        )
    return others


def _is_fraction(name: str) -> bool:
    """Return whether a name is a number with a decimal point; whole numbers may be column names."""
    try:
        return not float(name).is_integer() or "." in name
    except (ValueError, OverflowError):
        return False


def check_keys(files: Files, keys: Sequence[str]) -> None:
    """Raise an error if a file lacks a key column.

    Parameters
    ----------
    files : Files
        The files.
    keys : sequence of str
        The columns that are copied to the output.

    Raises
    ------
    InputError
        If a key is not a column of every file.
    """
    for path, columns in zip(files.paths, files.schemas, strict=True):
        if missing := [key for key in keys if key not in columns.names]:
            raise InputError(f"keys {missing} are not columns of {path}")


def check_dropped(files: Files, drop: Sequence[str]) -> None:
    """Raise an error if columns to leave out are not in the first file.

    Parameters
    ----------
    files : Files
        The files.
    drop : sequence of str
        The columns to leave out.

    Raises
    ------
    InputError
        If there are no such columns.
    """
    present = files.schemas[0].names
    if unknown := [name for name in drop if name not in present]:
        raise InputError(f"drop has {unknown}, which are not columns of {files.paths[0]}: use some of {present}")
