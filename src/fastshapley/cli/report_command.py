"""``fastshapley report``: describe a saved explainer, and print its report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshapley.cli.command import Result, add_command
from fastshapley.cli.early_checks import check_output_file

if TYPE_CHECKING:
    from fastshapley import Report

KEYS = (
    "file, version (of fastshapley that wrote it), features (names, or null for images), image_shape (null for "
    "tables), players, groups (players of several columns), outputs, value_function, link, recipe, report (null, "
    "or rows, truth, l2, relative_squared_error and the other fields of fastshapley.Report), warnings"
)
_SHOWN_NAMES = 8  # names that are shown of a list


def add(commands: Any) -> None:
    """Add the command ``report``."""
    parser = add_command(
        commands,
        "report",
        _run,
        help="describe a saved explainer, and print its report",
        description="Print what the file of an explainer holds, and its report: the error against exact Shapley "
        "values that fit measured on held-out rows. Nothing is computed, and the model is not needed.",
        examples="""
            fastshapley report credit.fastshap
            fastshapley report credit.fastshap -o report.html
            fastshapley report credit.fastshap --json | jq .report.relative_squared_error
        """,
        keys=f"{KEYS}; html (the path of the page, or null)",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="explainer, as written by fit or FastSHAP.save")
    parser.add_argument("-o", "--html", metavar="FILE", type=Path, help="also write the report as an HTML page")


def _run(options: argparse.Namespace) -> Result:
    if options.html is not None:
        check_output_file(options.html, "--html")
    found = describe(options.file)
    if options.html is None:
        return Result(found.text, {**found.data, "html": None})
    from fastshapley.support.atomic_files import write_text

    write_text(options.html, _page(found.data))
    place = str(options.html.resolve())
    return Result(f"{found.text}\nreport: {place}", {**found.data, "html": place})


def describe(file: Path) -> Result:
    """Describe a saved explainer.

    Parameters
    ----------
    file : Path
        The file of the explainer.

    Returns
    -------
    Result
        What the file holds, and its report.
    """
    from fastshapley.export.file_header import read_config

    config = read_config(file)
    columns, players = config["schema"].get("columns"), config["players"]
    features = None if columns is None else [str(column["key"]) for column in columns]
    members: dict[str, list[str]] = {name: [] for name in players["names"]}
    for feature, owner in zip(features or (), players["owner"], strict=False):
        members[players["names"][owner]].append(feature)
    recipe = config["recipe"]
    data = {
        "file": str(file.resolve()),
        "version": config["version"],
        "features": features,
        "image_shape": config["schema"].get("shape"),
        "players": list(members),
        "groups": {name: own for name, own in members.items() if len(own) > 1},
        "outputs": [str(name) for name in config["output_names"]],
        "value_function": config["value_function"]["kind"],
        "link": config["link"],
        "recipe": recipe if isinstance(recipe, str) else "custom",
        "report": config["report"],
    }
    report = _report(data)
    data["warnings"] = [_why_no_report(data)] if report is None else report.warnings()
    lines = [file.name, *(f"  {name:30s} {text}" for name, text in _lines(data).items())]
    return Result("\n".join([*lines, "", _why_no_report(data) if report is None else str(report)]), data)


def _report(data: dict[str, Any]) -> Report | None:
    from fastshapley import Report

    return None if data["report"] is None else Report.from_dict(data["report"])


def _lines(data: dict[str, Any]) -> dict[str, str]:
    """Return the label and the text of each line."""
    features, shape, groups = data["features"], data["image_shape"], data["groups"]
    found = {"images": " x ".join(map(str, shape or ()))} if features is None else {"features": _some(features)}
    found["players"] = _some(data["players"])
    found |= {f"  {name}": _some(columns) for name, columns in groups.items()}
    found["outputs"] = _some(data["outputs"])
    found["value function"] = f"{data['value_function']}, link {data['link']}"
    found["recipe"] = data["recipe"]
    found["written by"] = f"fastshapley {data['version']}"
    return found


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{len(names)}: {', '.join(names[:_SHOWN_NAMES])}{rest}"


def _why_no_report(data: dict[str, Any]) -> str:
    if data["recipe"] == "sampling":
        return (
            "There is no report: recipe 'sampling' trains no network whose error could be measured. Fit with "
            "recipe 'default' to get one."
        )
    return (
        "There is no report: the time or evaluation budget left nothing to measure the error with. Fit again with "
        "a larger budget to get one."
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
  table {{ border-collapse: collapse; margin: 1rem 0; }}
  caption {{ text-align: left; font-weight: bold; }}
  th, td {{ padding: .25rem 1.5rem .25rem 0; border-bottom: 1px solid #8886; text-align: left; }}
  th {{ font-weight: normal; }}
</style>
<h1>{title}</h1>
<table>{rows}</table>
{report}
</html>
"""


def _page(data: dict[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(t)}</td></tr>" for name, t in _lines(data).items())
    report = _report(data)
    shown = f"<p>{escape(_why_no_report(data))}</p>" if report is None else report._repr_html_()
    return _PAGE.format(title=escape(Path(data["file"]).name), rows=rows, report=shown)
