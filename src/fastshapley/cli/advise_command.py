"""``fastshapley advise``: predict the fastest way to Shapley values."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from fastshapley.cli.command import Result, add_command, positive, share, whole
from fastshapley.cli.fit_command import (
    add_data_options,
    add_device,
    add_game_options,
    add_model_and_rows,
    add_seed,
    checked_files,
    explainer_settings,
)

_TRIAL_SECONDS = 20.0


def add(commands: Any) -> None:
    """Add the command ``advise``."""
    parser = add_command(
        commands,
        "advise",
        _run,
        help="predict the fastest way to Shapley values: exact, TreeSHAP, sampling or a network",
        description="Run a short trial with the model and rows of files, and predict how long each way to Shapley "
        "values takes for a number of rows and an error. Actual times are between half and twice as long. For each "
        "way, the Python code to type is shown. Nothing is saved.",
        examples="""
            fastshapley advise model.joblib --trust train.parquet --rows 1000000
            fastshapley advise scoring:predict train.csv --rows 200 --error 0.001 --seconds 10
        """,
        keys="rows, error, best (the name of the fastest way), ways (objects with name, once and each (times in "
        "seconds, once and per row), seconds (in total), code and note, the fastest first), trial_error",
    )
    add_model_and_rows(parser, "Parquet or CSV files, folders or globs with rows to try the model on")
    parser.add_argument(
        "--rows", type=whole, metavar="ROWS", required=True, help="number of rows that are to be explained"
    )
    parser.add_argument(
        "--error", type=share, default=0.01, help="relative squared error that is good enough (default: 0.01)"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=_TRIAL_SECONDS,
        help=f"approximate time of the trial (default: {_TRIAL_SECONDS:.0f})",
    )
    add_data_options(parser)
    add_game_options(parser)
    work = parser.add_argument_group("training")
    add_seed(work)
    add_device(work)


def _run(options: argparse.Namespace) -> Result:
    data = checked_files(options)  # An error is reported before torch is imported.
    from fastshapley import FastSHAP
    from fastshapley.bulk.training_rows import model_columns, read_share
    from fastshapley.cli.model_files import feature_names, load_model

    model = load_model(options.model, trust=options.trust)
    rows = read_share(data.rows, model_columns(data.rows, feature_names(model), options.drop))
    settings = explainer_settings(options, data)
    found = FastSHAP.advise(
        model, rows, rows=options.rows, error=options.error, seconds=options.seconds, **settings
    )
    ways = [{**asdict(way), "seconds": way.seconds(found.rows)} for way in found.ways]
    data_of = {"rows": found.rows, "error": found.error, "best": found.best.name, "ways": ways}
    return Result(str(found), {**data_of, "trial_error": found.trial_error})
