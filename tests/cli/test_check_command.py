"""Tests of ``fastshapley check``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from problems import explainer, numbers

from fastshapley import FastSHAP
from fastshapley.cli import main

pytest.importorskip("pyarrow", reason="needs the bulk extra")

Told = pytest.CaptureFixture[str]
COLUMNS = [f"column {j}" for j in range(4)]
MODEL = """
import numpy as np

def model(rows):
    return np.asarray(rows)[:, 0]

def other(rows):
    return 5.0 - 3.0 * np.asarray(rows)[:, 1]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an explainer, its model, and files of rows, and make the folder the current one."""
    frame = pd.DataFrame(numbers(400), columns=COLUMNS)
    explainer(lambda rows: rows.to_numpy()[:, 0]).fit(frame).save(tmp_path / "it.fastshap")
    frame.assign(id=np.arange(400)).to_csv(tmp_path / "same.csv", index=False)
    frame.assign(**{"column 2": frame["column 2"] + 1}).to_parquet(tmp_path / "moved.parquet")
    (tmp_path / "check_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rows_like_the_training_rows_exit_with_0(folder: Path, capsys: Told) -> None:
    assert main(["check", "it.fastshap", "same.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The 400 rows are like the training rows (p = ")
    assert sorted(line.split("  ")[1] for line in lines[-4:]) == COLUMNS


def test_rows_that_have_drifted_exit_with_3_and_name_the_column(folder: Path, capsys: Told) -> None:
    assert main(["check", "it.fastshap", "moved.parquet"]) == 3
    told = capsys.readouterr()
    assert "differ from the training rows" in told.out
    assert "look at column 2." in told.out
    assert told.err == ""


def test_json_holds_what_check_returns_in_python(folder: Path, capsys: Told) -> None:
    assert main(["check", "it.fastshap", "moved.parquet", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    drift = FastSHAP.load("it.fastshap").check(pd.read_parquet("moved.parquet"))
    assert (found["drifted"], found["rows"], found["p_value"]) == (True, 400, drift.p_value)
    assert (found["model_p_value"], found["error_ratio"]) == (drift.model_p_value, drift.error_ratio)
    assert found["columns"] == drift.columns.to_dict("records")
    assert found["findings"] == drift.lines()


@pytest.mark.parametrize(("name", "code"), [("model", 0), ("other", 3)])
def test_with_a_model_its_outputs_are_tested_too(name: str, code: int, folder: Path, capsys: Told) -> None:
    assert main(["check", "it.fastshap", "same.csv", "--model", f"check_model:{name}", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["model_p_value"] < 0.01) == (code == 3)
    assert found["p_value"] > 0.01


def test_a_sample_is_compared_where_there_are_more_rows(folder: Path, capsys: Told) -> None:
    assert main(["check", "it.fastshap", "same.csv", "moved.parquet", "--rows", "50", "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["rows"] == 50


def test_of_many_columns_only_the_most_different_are_shown(
    folder: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastshapley.cli.check_command._SHOWN_COLUMNS", 1)
    assert main(["check", "it.fastshap", "moved.parquet"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("  column 2 ")
    assert lines[-1] == "  and 3 more"


def test_files_without_rows_are_refused(folder: Path, capsys: Told) -> None:
    (folder / "empty.csv").write_text(",".join(COLUMNS) + "\n")
    assert main(["check", "it.fastshap", "empty.csv"]) == 1
    assert capsys.readouterr().err == "fastshapley check: X has no rows: pass at least one row to check\n"
