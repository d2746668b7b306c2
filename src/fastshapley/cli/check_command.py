"""``fastshapley check``: compare new rows, and the model, with what an explainer was trained on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastshapley.cli.command import DRIFT, Result, add_command, add_model, load, whole
from fastshapley.cli.early_checks import feature_files

if TYPE_CHECKING:
    from fastshapley import Drift

_MOST_ROWS = 10_000
_SHOWN_COLUMNS = 10  # columns that are shown of many


def add(commands: Any) -> None:
    """Add the command ``check``."""
    parser = add_command(
        commands,
        "check",
        _run,
        help="check whether new rows or the model differ from those at fit",
        description="Test whether rows of files have the same distribution as the training rows, column by column, "
        "and with the model whether it is still the one that was explained. The significance level is 1 %. The "
        f"exit code is 0 if nothing differs and {DRIFT} if the rows or the model have drifted.",
        examples="""
            fastshapley check credit.fastshap "rows/*.parquet"
            fastshapley check credit.fastshap rows.csv --model model.joblib --trust
            fastshapley check credit.fastshap rows.csv --json | jq .drifted
        """,
        keys="drifted, rows (that were compared), p_value, model_p_value (null without the model), error_ratio "
        "(expected squared error of the values, relative to held-out rows, or null), columns (objects with column, "
        "statistic and p_value, the most different first), findings (sentences)",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="explainer, as written by fit or FastSHAP.save")
    add_source(parser)
    parser.add_argument(
        "--rows",
        type=whole,
        metavar="ROWS",
        default=_MOST_ROWS,
        help=f"maximum number of rows to compare, a random sample of DATA (default: {_MOST_ROWS:,})",
    )
    add_model(parser, "to test the model too")


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the files of rows, and the columns of these that are not features."""
    parser.add_argument(
        "source", metavar="DATA", nargs="+", help="Parquet or CSV files, folders, globs, or URIs such as s3://..."
    )
    parser.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns that are not features")


def _run(options: argparse.Namespace) -> Result:
    files, features = feature_files(options)  # An error is reported before torch is imported.
    explainer = load(options)
    from fastshapley.bulk.table_rows import read_table

    drift = explainer.check(read_table(explainer.schema_, files, features, options.rows))
    data = {
        "drifted": bool(drift.drifted),
        "rows": drift.rows,
        "p_value": drift.p_value,
        "model_p_value": drift.model_p_value,
        "error_ratio": drift.error_ratio,
        "columns": _columns(drift),
        "findings": drift.lines(),
    }
    return Result(_text(drift), data, DRIFT if drift.drifted else 0)


def _columns(drift: Drift) -> list[dict[str, Any]]:
    """Return the name, the statistic and the p-value of each column."""
    columns = drift.columns
    return [
        {"column": str(name), "statistic": float(statistic), "p_value": float(p_value)}
        for name, statistic, p_value in zip(
            columns["column"], columns["statistic"], columns["p_value"], strict=True
        )
    ]


def _text(drift: Drift) -> str:
    columns = _columns(drift)
    lines = [f"  {'column':30s} {'statistic':>9s}  {'p-value':>8s}"]
    lines += [f"  {c['column']:30s} {c['statistic']:9.3f}  {c['p_value']:8.2g}" for c in columns[:_SHOWN_COLUMNS]]
    if len(columns) > _SHOWN_COLUMNS:
        lines.append(f"  and {len(columns) - _SHOWN_COLUMNS} more")
    return "\n".join([*drift.lines(), "", *lines])
