"""Tests of ``fastshapley fit``: its options, and fits that are interrupted or killed and then resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from problems import QUICK, numbers
from sklearn.linear_model import LogisticRegression

from fastshapley import FastSHAP, Training
from fastshapley.cli import main
from fastshapley.training import recipes
from fastshapley.training.checkpoint import Checkpoint

pytest.importorskip("pyarrow", reason="needs the bulk extra")

Told = pytest.CaptureFixture[str]
OWN = """
import os
import joblib
import numpy as np

def model(rows):
    with open("calls", "a") as log:
        log.write(f"{len(rows)}\\n")
    rows = np.asarray(rows, dtype=float)
    return np.sin(rows[:, 0]) * rows[:, 1]

def noisy(rows):
    print("a model that prints")
    os.write(1, b"native code that prints\\n")
    return model(rows)

def logits(rows):
    return 9.0 * np.asarray(rows, dtype=float)[:, :2]

def broken(rows):
    raise ZeroDivisionError("in the model")
"""


def quick(rows: int, players: int, *, noisy: bool = False) -> recipes.Recipe:
    """Return a faster recipe than the default, with several epochs so that it can be interrupted."""
    return replace(QUICK, explainer=Training(steps=1200, batch_size=8, learning_rate=3e-3, schedule="cosine"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a module with models and a file with rows to a folder, and make it the current folder."""
    (tmp_path / "own_model.py").write_text(OWN)
    pd.DataFrame(numbers(), columns=list("abcd")).assign(key=range(200)).to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "default", quick)
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return tmp_path


def fit(*options: str, model: str = "model") -> int:
    return main(["fit", f"own_model:{model}", "rows.csv", "-o", "out.fastshap", "--drop", "key", *options])


def test_fit_saves_an_explainer_and_prints_its_report(folder: Path, capsys: Told) -> None:
    assert fit("--quiet", "--seed", "0") == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "features                       4: a, b, c, d" in told.out
    fitted = FastSHAP.load(folder / "out.fastshap")
    assert str(fitted.report_) in told.out
    assert told.out.endswith(f"explainer: {folder / 'out.fastshap'}\n")
    assert not (folder / "out.fastshap.unfinished").exists()


def test_with_json_output_of_the_model_goes_to_stderr(folder: Path, capfd: Told) -> None:
    assert fit("--json", "--seed", "0", model="noisy") == 0
    told = capfd.readouterr()
    assert told.out.count("\n") == 1
    found = json.loads(told.out)
    assert "a model that prints" in told.err
    assert "native code that prints" in told.err
    assert "explainer, epoch 20/20" in told.err  # the progress bar
    assert found["file"] == str(folder / "out.fastshap")
    assert found["features"] == ["a", "b", "c", "d"]
    assert found["report"]["rows"] == 20
    assert found["resumed"] is False
    assert found["seconds"] > 0
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    documented = capfd.readouterr().out.partition("keys of --json:")[2]
    assert all(key in documented for key in found)


def test_options_are_passed_to_the_explainer(folder: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    pd.DataFrame(numbers(50, seed=1), columns=list("abcd")).to_parquet(folder / "others.parquet")
    options = ["--groups", "x=a,b", '{"y": ["c"]}', "--value-function", "baseline", "--link", "logit", "--logits"]
    options += ["--validation", "others.parquet", "--evaluation-budget", "9000", "--time-budget", "600"]
    fitted: list[FastSHAP] = []
    save = FastSHAP.save

    def noting(self: FastSHAP, path: Path) -> None:
        fitted.append(self)
        save(self, path)

    monkeypatch.setattr(FastSHAP, "save", noting)
    assert fit(*options, "--seed", "3", "--device", "cpu", "--json", "--quiet", model="logits") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["players"], found["groups"]) == (["x", "y", "d"], {"x": ["a", "b"]})
    assert (found["value_function"], found["link"], len(found["outputs"])) == ("baseline", "logit", 2)
    assert found["report"]["rows"] == 25  # half of the validation rows
    (used,) = fitted
    assert (used.logits, used.random_state, used.device) == (True, 3, "cpu")
    assert (used.time_budget, used.evaluation_budget) == (600.0, 9000)

    explain = ["explain", "out.fastshap", "rows.csv", "-o", "values", "--keys", "key", "--quiet"]
    assert main(explain) == 1
    assert "or --model on the command line" in capsys.readouterr().err
    assert main([*explain, "--model", "own_model:logits"]) == 0
    assert "200 rows explained" in capsys.readouterr().out


def test_a_pickle_needs_trust_and_the_features_are_those_of_its_model(folder: Path, capsys: Told) -> None:
    rows = pd.read_csv("rows.csv")
    joblib.dump(LogisticRegression().fit(rows[["b", "a"]], rows["c"] > 0), "model.joblib")
    command = ["fit", "model.joblib", "rows.csv", "-o", "out.fastshap", "--quiet"]
    assert main(command) == 1
    assert "pass --trust if you trust it" in capsys.readouterr().err
    assert main([*command, "--trust", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"] == ["b", "a"]


def test_the_sampling_recipe_gives_no_report(folder: Path, capsys: Told) -> None:
    assert fit("--recipe", "sampling", "--quiet") == 0
    assert "There is no report: recipe 'sampling'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--groups", "x=a,b", "x=c,d"], "--groups has ['x'] twice"),
        (["--groups", "x=a,none"], "'none'"),
        (["--workers", "2"], "--workers needs --ray"),
        (["--drop", "none"], "drop has ['none'], which are not columns of"),
        (["--validation", "none.csv"], "no file at none.csv"),
        (["-o", "."], "which is a folder: pass the name of a file"),
    ],
)
def test_invalid_options_are_refused_in_one_line(options: list[str], said: str, folder: Path, capsys: Told) -> None:
    assert fit(*options) == 1
    told = capsys.readouterr()
    assert told.err.startswith("fastshapley fit: ")
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not (folder / "out.fastshap").exists()


@pytest.mark.parametrize(
    "option", ["--groups=x", "--groups={", '--groups={"x": "a"}', "--time-budget=0", "--evaluation-budget=-1"]
)
def test_malformed_options_are_wrong_usage(option: str, folder: Path, capsys: Told) -> None:
    with pytest.raises(SystemExit) as stop:
        fit(option)
    assert stop.value.code == 2
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err


def test_an_error_of_the_model_is_reported_in_one_line(folder: Path, capsys: Told) -> None:
    assert fit(model="broken") == 1
    told = capsys.readouterr().err
    assert "in the model" in told
    assert told.count("\n") == 1


def start(*options: str) -> subprocess.Popen[str]:
    """Start the command in another process that saves a checkpoint after every epoch."""
    script = """
        import sys, torch
        import fastshapley.training.checkpoint
        from fastshapley.training import recipes
        from fastshapley.cli import main
        from test_fit_command import quick
        torch.set_num_threads(1)
        fastshapley.training.checkpoint.SAVE_INTERVAL = -1.0
        recipes.default = quick
        sys.exit(main(sys.argv[1:]))
    """
    command = ["fit", "own_model:model", "rows.csv", "-o", "out.fastshap", "--drop", "key", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_the_same_command_resumes_an_interrupted_fit(way: signal.Signals, folder: Path, capsys: Told) -> None:
    assert fit("--seed", "0", "--quiet") == 0
    whole = FastSHAP.load("out.fastshap").shap_values(numbers())
    calls = len(Path("calls").read_text())
    for path in ("out.fastshap", "calls"):
        Path(path).unlink()
    capsys.readouterr()

    run = start("--seed", "0")
    state = folder / "out.fastshap.unfinished" / "explainer.pt"
    end = time.monotonic() + 300
    while not state.exists():
        assert run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.002)
    run.send_signal(way)
    out, err = run.communicate()
    assert out == ""
    assert run.returncode == (130 if way == signal.SIGINT else -signal.SIGKILL)
    if way == signal.SIGINT:
        assert err.splitlines()[-1] == "fastshapley fit: interrupted; run the same command again to resume"
    assert not Path("out.fastshap").exists()
    kept = Checkpoint(state.parent).load("explainer")
    assert kept is not None
    assert 0 < kept["epoch"] < 20

    assert fit("--seed", "1", "--quiet") == 1  # another run does not overwrite the unfinished work
    assert "belongs to a run with other data, another model or other settings" in capsys.readouterr().err
    Path("calls").unlink()
    assert fit("--seed", "0", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["resumed"] is True
    assert "resuming from the unfinished work in out.fastshap.unfinished" in told.err
    assert len(Path("calls").read_text()) < calls  # earlier model calls are not all repeated
    assert np.array_equal(FastSHAP.load("out.fastshap").shap_values(numbers()), whole)
    assert not state.parent.exists()


def test_an_empty_checkpoint_folder_is_not_resumed(folder: Path, capsys: Told) -> None:
    (folder / "work").mkdir()
    assert fit("--checkpoint", "work", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["resumed"] is False
    assert "resuming" not in told.err


def test_a_checkpoint_folder_from_the_options_is_kept(folder: Path, capsys: Told) -> None:
    assert fit("--checkpoint", "work", "--seed", "0", "--quiet") == 0
    assert Path("work", "run.json").exists()
    assert not Path("out.fastshap.unfinished").exists()
    capsys.readouterr()
    assert fit("--checkpoint", "work", "--seed", "0", "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["resumed"] is True


def test_a_conditional_value_function_is_fitted_explained_and_exported(folder: Path, capsys: Told) -> None:
    assert fit("--value-function", "conditional", "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["value_function"] == "conditional"
    assert main(["report", "out.fastshap"]) == 0
    assert "conditional, link identity" in capsys.readouterr().out
    explain = ["explain", "out.fastshap", "rows.csv", "--quiet", "--json", "-o"]
    for options, sums_to in ((["whole", "--model", "own_model:model"], "model"), (["alone"], "surrogate")):
        assert main([*explain, *options]) == 0
        assert json.loads(capsys.readouterr().out)["sums_to"] == sums_to
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    for command in (["export", "out.fastshap"], ["page", "out.onnx", "-o", "page"]):
        assert main(command) == 0
    assert Path("page/index.html").exists()


def test_the_help_lists_the_value_functions(capsys: Told) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "{auto,conditional,surrogate,marginal,baseline}" in capsys.readouterr().out
