"""Tests of ``fastshapley advise``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from problems import numbers

from fastshapley import Advice, FastSHAP, Groups, Way
from fastshapley.cli import main

pytest.importorskip("pyarrow", reason="needs the bulk extra")

Told = pytest.CaptureFixture[str]
ADVICE = Advice(500, 0.02, (Way("exact", 1.0, 0.5, "first", "a note"), Way("amortised", 900.0, 0.1, "second")), 0.3)
COMMAND = ["advise", "advise_model:model", "rows.csv", "--rows", "500", "--drop", "id"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model and rows, and make the folder the current one."""
    pd.DataFrame(numbers(), columns=list("abcd")).assign(id=range(200)).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "advise_model.py").write_text("def model(rows):\n    return rows.to_numpy()[:, 0]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_options_are_passed_on_and_the_advice_is_printed(
    folder: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def advise(model: Any, X: pd.DataFrame, **options: Any) -> Advice:
        given.update(options, columns=list(X), n=len(X))
        return ADVICE

    monkeypatch.setattr(FastSHAP, "advise", advise)
    options = ["--error", "0.02", "--seconds", "3", "--groups", "both=a,b", "--link", "log", "--seed", "7"]
    assert main([*COMMAND, *options, "--value-function", "marginal"]) == 0
    assert capsys.readouterr().out == f"{ADVICE}\n"
    assert given == {
        "columns": list("abcd"),
        "n": 200,
        "rows": 500,
        "error": 0.02,
        "seconds": 3.0,
        "value_function": "marginal",
        "players": Groups({"both": ["a", "b"]}),
        "link": "log",
        "logits": False,
        "device": None,
        "random_state": 7,
    }
    assert main([*COMMAND, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["error"], found["best"], found["trial_error"]) == (500, 0.02, "exact", 0.3)
    assert found["ways"][0] == {
        "name": "exact",
        "once": 1.0,
        "each": 0.5,
        "seconds": 251.0,
        "code": "first",
        "note": "a note",
    }


def test_a_trial_gives_advice(folder: Path, capsys: Told) -> None:
    assert main([*COMMAND, "--seconds", "1", "--seed", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {way["name"] for way in found["ways"]} >= {"exact", "amortised"}
    assert found["best"] == found["ways"][0]["name"]
    assert [way["seconds"] for way in found["ways"]] == sorted(way["seconds"] for way in found["ways"])
