"""Checks of arguments that need neither torch nor pandas. Commands make them first, so refusals come at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshapley.errors import FileFormatError, InputError
from fastshapley.support.optional import require

if TYPE_CHECKING:
    from fastshapley.bulk.file_search import Files


def saved_explainer(options: argparse.Namespace) -> dict[str, Any]:
    """Check the file of an explainer and the name of its model, and return the configuration in the file.

    Parameters
    ----------
    options : argparse.Namespace
        The options of a command: ``file``, and ``model`` and ``trust`` for a command that takes a model.

    Returns
    -------
    dict
        The configuration.

    Raises
    ------
    FileFormatError
        If the file is not that of an explainer, or is damaged.
    InputError
        If there is no such model.
    """
    from fastshapley.cli.model_files import check_model
    from fastshapley.export.file_header import read_config

    config = read_config(options.file)
    if getattr(options, "model", None) is not None:
        check_model(options.model, trust=options.trust)
    return config


def rows_of_table(config: dict[str, Any], source: Any, besides: str = "") -> Files:
    """Find files of rows, and check that they have the columns of an explainer's table.

    Parameters
    ----------
    config : dict
        The configuration in the explainer's file.
    source : str, os.PathLike or list of these
        The files, as `find_files` takes them.
    besides : str, default=""
        A folder whose files are left out.

    Returns
    -------
    Files
        The files.

    Raises
    ------
    InputError
        If the explainer is one of images, or a file is missing or lacks columns.
    """
    require("pyarrow", "bulk")
    from fastshapley.bulk.file_search import find_files

    if "columns" not in config["schema"]:
        raise InputError(
            "the explainer was fitted to images: files and datasets of rows need an explainer of a table"
        )
    return find_files(source, besides)


def check_columns(config: dict[str, Any], files: Files, keys: Sequence[str] | None = None) -> list[list[str]]:
    """Check that files have the columns of an explainer's table.

    Parameters
    ----------
    config : dict
        The configuration in the explainer's file.
    files : Files
        The files.
    keys : sequence of str, optional
        Columns that are not features.

    Returns
    -------
    list of list of str
        The features of each file, in the order of the explainer's table.

    Raises
    ------
    InputError
        If a file lacks a column.
    """
    from fastshapley.bulk.feature_names import SavedColumns, feature_columns

    schema, found = SavedColumns.from_dict(config["schema"]), list[list[str]]()
    for path, columns in zip(files.paths, files.schemas, strict=True):
        found.append(feature_columns(schema, columns.names, keys, path, found[0] if found else ()))
    return found


def feature_files(
    options: argparse.Namespace, source: Sequence[str] | None = None
) -> tuple[Files, list[list[str]]]:
    """Check the explainer and the files of a command that reads new rows of its table.

    Parameters
    ----------
    options : argparse.Namespace
        The options of the command: ``file``, ``source``, ``drop``, ``model`` and ``trust``.
    source : sequence of str, optional
        The files. The default is ``options.source``.

    Returns
    -------
    files : Files
        The files.
    features : list of list of str
        The features of each file.

    Raises
    ------
    InputError
        If a file is missing or lacks columns.
    """
    config = saved_explainer(options)
    files = rows_of_table(config, list(options.source if source is None else source))
    from fastshapley.bulk.feature_names import check_dropped

    check_dropped(files, options.drop)
    return files, check_columns(config, files, options.drop)


def check_output_folder(folder: Path, option: str = "--output") -> None:
    """Raise an error if the path of a folder to write to, or one of its parents, is a file.

    Parameters
    ----------
    folder : Path
        The folder, which need not exist.
    option : str, default="--output"
        The option that named it.

    Raises
    ------
    InputError
        If there is a file in the way.
    """
    for place in (folder, *folder.absolute().parents):
        if place.exists():
            if not place.is_dir():
                raise InputError(f"{option} is {folder}, but {place} is a file: choose another folder")
            return


def check_output_file(file: Path, option: str = "--output") -> None:
    """Raise an error if a file to write is a folder, or cannot be in its folder.

    Parameters
    ----------
    file : Path
        The file, which need not exist.
    option : str, default="--output"
        The option that named it.

    Raises
    ------
    InputError
        If there is a folder of that name, or one of the parents is a file.
    """
    if file.is_dir():
        raise InputError(f"{option} is {file}, which is a folder: pass the name of a file")
    check_output_folder(file.absolute().parent, option)


def check_files(files: Iterable[Path], option: str) -> None:
    """Raise an error if a file that an option names does not exist.

    Parameters
    ----------
    files : iterable of Path
        The files.
    option : str
        The option.

    Raises
    ------
    FileNotFoundError
        If a file does not exist.
    """
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{option} is {file}, which does not exist or is not a file")


def check_served(files: Iterable[Path]) -> None:
    """Read the explainers among the files that a page or a server shows, so that a damaged one is not exported.

    Parameters
    ----------
    files : iterable of Path
        Explainers and graphs (``.onnx``). Files that do not exist are left to the server.

    Raises
    ------
    FileFormatError
        If an explainer is damaged.
    """
    from fastshapley.export.file_header import read_config

    for file in files:
        if file.suffix != ".onnx" and file.is_file():
            try:
                read_config(file)
            except FileFormatError as error:
                raise FileFormatError(f"{file} cannot be served: {error}") from error
