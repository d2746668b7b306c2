"""Tests of ``fastshapley update``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from problems import explainer, numbers

from fastshapley import FastSHAP
from fastshapley.cli import main
from fastshapley.training.checkpoint import Checkpoint

pytest.importorskip("pyarrow", reason="needs the bulk extra")

Told = pytest.CaptureFixture[str]
UPDATE = ["update", "it.fastshap", "new.csv", "-o", "new.fastshap", "--model", "update_model:model", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an explainer, its model and new rows, and make the folder the current one."""
    explainer(lambda rows: rows[:, 0]).fit(numbers()).save(tmp_path / "it.fastshap")
    new = pd.DataFrame(numbers() + 3.0, columns=list("abcd"))
    new.assign(id=np.arange(len(new))).to_csv(tmp_path / "new.csv", index=False)
    new[:50].to_parquet(tmp_path / "held_out.parquet", index=False)
    (tmp_path / "update_model.py").write_text("def model(rows):\n    return rows[:, 0]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_update_is_that_of_python_and_keeps_the_old_file(folder: Path, capsys: Told) -> None:
    old = (folder / "it.fastshap").read_bytes()
    assert main([*UPDATE, "--drop", "id", "--seed", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["resumed"]) == (str(folder / "new.fastshap"), False)
    assert (folder / "it.fastshap").read_bytes() == old
    assert not (folder / "new.fastshap.unfinished").exists()
    rows = pd.read_csv("new.csv")[list("abcd")].to_numpy()
    expected = FastSHAP.load("it.fastshap", lambda rows: rows[:, 0]).set_params(random_state=0, progress=False)
    updated = FastSHAP.load("new.fastshap")
    np.testing.assert_array_equal(updated.shap_values(rows[:9]), expected.update(rows).shap_values(rows[:9]))
    assert not updated.check(rows).drifted
    assert main(["check", "it.fastshap", "new.csv", "--drop", "id"]) == 3


def test_validation_rows_measure_the_report(folder: Path, capsys: Told) -> None:
    assert main([*UPDATE, "--drop", "id", "--validation", "held_out.parquet"]) == 1  # They have no column "id".
    assert "drop has ['id']" in capsys.readouterr().err
    pd.read_csv("new.csv").drop(columns="id").to_csv("new.csv", index=False)
    assert main([*UPDATE, "--validation", "held_out.parquet"]) == 0
    assert "explainer: " in capsys.readouterr().out


def test_options_are_passed_to_the_explainer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def update(self: FastSHAP, X: Any, **options: Any) -> FastSHAP:
        given.update(options, rows=len(X), **self.get_params(deep=False))
        return self

    monkeypatch.setattr(FastSHAP, "update", update)
    limits = ["--time-budget", "9", "--evaluation-budget", "5000", "--checkpoint", "unfinished"]
    assert main([*UPDATE, "--drop", "id", *limits]) == 0
    assert (given["rows"], given["time_budget"], given["evaluation_budget"]) == (200, 9.0, 5000)
    assert (given["checkpoint"], given["progress"], given["X_val"]) == (Path("unfinished"), False, None)


def test_the_same_command_resumes_an_interrupted_update(
    folder: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*UPDATE[:-1], "--drop", "id"]
    with monkeypatch.context() as patch:
        save = Checkpoint.save

        def interrupted(self: Checkpoint, *arguments: Any) -> None:
            save(self, *arguments)
            raise KeyboardInterrupt

        patch.setattr(Checkpoint, "save", interrupted)
        assert main(command) == 130
    assert "run the same command again to resume" in capsys.readouterr().err
    assert not (folder / "new.fastshap").exists()
    assert (folder / "new.fastshap.unfinished").exists()
    assert main([*command, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["resumed"]
    assert "resuming from the unfinished work" in told.err
    assert (folder / "new.fastshap").exists()
