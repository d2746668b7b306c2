"""Tests that reports and refusals need no heavy packages. Each command runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from problems import explainer, numbers

from fastshapley.cli.early_checks import check_files, check_output_file, check_output_folder
from fastshapley.errors import InputError

pytest.importorskip("pyarrow", reason="needs the bulk extra")

HEAVY = ("torch", "pandas", "sklearn", "scipy", "shap", "matplotlib", "numba", "xgboost", "lightgbm")
SCRIPT = f"""
import sys
from fastshapley.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as stop:
    code = stop.code
heavy = [name for name in {HEAVY} if sys.modules.get(name) is not None]
print(f"code {{code}}, imported {{heavy}}", file=sys.stderr)
"""


def run(*command: str | Path) -> tuple[str, str]:
    """Run a command in a new process, and return what it printed and the code and imports it ended with."""
    arguments = [sys.executable, "-c", SCRIPT, *map(str, command)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300)
    *said, last = done.stderr.splitlines()
    return "\n".join([done.stdout, *said]), last


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an explainer, damaged copies of it, a model that is not one, and rows."""
    folder = tmp_path_factory.mktemp("early")
    explainer(lambda rows: rows[:, 0]).fit(numbers()).save(folder / "it.fastshap")
    data = bytearray((folder / "it.fastshap").read_bytes())
    (folder / "cut.fastshap").write_bytes(data[:-100])
    data[-1] ^= 1
    (folder / "flipped.fastshap").write_bytes(data)
    (folder / "model.joblib").write_text("a pickle")
    (folder / "rows.csv").write_text("x0,x1,x2,x3\n1,2,3,4\n")
    (folder / "narrow.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.mark.parametrize("options", [[], ["--json"], ["--html"]], ids=str)
def test_a_report_imports_nothing_heavy(options: list[str], folder: Path) -> None:
    if options == ["--html"]:
        options = ["--html", str(folder / "report.html")]
    said, ended = run("report", folder / "it.fastshap", *options)
    assert ended == "code 0, imported []"
    assert json.loads(said)["report"]["rows"] > 0 if options == ["--json"] else "held-out rows" in said


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("report", "the following arguments are required"),
        ("explain it.fastshap rows.csv -o out --part-rows 0", "must be an integer above 0"),
        ("fit model.joblib rows.csv -o out --link cube", "invalid choice"),
        ("update it.fastshap rows.csv", "the following arguments are required: -o/--output"),
        ("advise model.joblib rows.csv --rows 10 --error 2", "must be a number between 0 and 1"),
    ],
)
def test_wrong_usage_imports_nothing_heavy(
    command: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said, ended = run(*command.split())
    assert ended == "code 2, imported []"
    assert expected in said


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("report none.fastshap", "none.fastshap does not exist"),
        ("report cut.fastshap", "cut.fastshap is cut short"),
        ("report flipped.fastshap", "the SHA-256 digest differs"),
        ("report it.fastshap --html .", "--html is ., which is a folder"),
        ("fit none.joblib rows.csv -o out", "neither a file nor module:function"),
        ("fit none.onnx rows.csv -o out", "neither a file nor module:function"),
        ("fit no_such_module:f rows.csv -o out", "there is no module 'no_such_module'"),
        ("fit model.joblib rows.csv -o out", "pass --trust"),
        ("fit rows.csv rows.csv -o out", "use a file that ends in one of"),
        ("fit model.joblib --trust none.csv -o out", "no file at none.csv"),
        ("fit model.joblib --trust model.joblib -o out", "not a supported file"),
        ("fit model.joblib --trust rows.csv -o .", "--output is ., which is a folder"),
        ("fit model.joblib --trust rows.csv -o rows.csv", "which is also an input"),
        ("fit model.joblib --trust rows.csv -o out --drop y", "drop has ['y']"),
        ("fit model.joblib --trust rows.csv -o out --workers 2", "--workers needs --ray"),
        ("fit model.joblib --trust rows.csv -o out --groups a=x0 a=x1", "--groups has ['a'] twice"),
        ("fit model.joblib --trust rows.csv -o out --validation none.csv", "no file at none.csv"),
        ("explain none.fastshap rows.csv -o out", "none.fastshap does not exist"),
        ("explain flipped.fastshap rows.csv -o out", "the SHA-256 digest differs"),
        ("explain it.fastshap none.csv -o out", "no file at none.csv"),
        ("explain it.fastshap narrow.csv -o out", "narrow.csv has 2 columns"),
        ("explain it.fastshap rows.csv -o out --outputs yes", "outputs ['yes'] are none of ['output 0']"),
        ("explain it.fastshap rows.csv -o out --keys id", "keys ['id'] are not columns"),
        ("explain it.fastshap rows.csv -o out --model none.json", "neither a file nor module:function"),
        ("explain it.fastshap rows.csv -o rows.csv", "output is rows.csv, which is a file"),
        ("check none.fastshap rows.csv", "none.fastshap does not exist"),
        ("check it.fastshap none.csv", "no file at none.csv"),
        ("check it.fastshap narrow.csv", "narrow.csv has 2 columns"),
        ("check it.fastshap rows.csv --drop id", "drop has ['id']"),
        ("update it.fastshap rows.csv -o it.fastshap", "which is also an input"),
        ("update it.fastshap rows.csv -o out --model none.onnx", "neither a file nor module:function"),
        ("update it.fastshap rows.csv -o out --validation narrow.csv", "narrow.csv has 2 columns"),
        ("advise model.joblib --trust none.csv --rows 10", "no file at none.csv"),
        ("advise model.joblib rows.csv --rows 10", "pass --trust"),
        ("export none.fastshap", "none.fastshap does not exist"),
        ("export cut.fastshap", "cut.fastshap is cut short"),
        ("export it.fastshap -o it.fastshap", "which is also an input"),
        ("export it.fastshap --model none.onnx", "neither a file nor module:function"),
        ("demo -o rows.csv", "rows.csv is a file"),
        ("paper tabular -o rows.csv", "rows.csv is a file"),
        ("paper images --dataset cifar10 --store rows.csv/store", "--store is rows.csv/store"),
        ("page none.fastshap", "none.fastshap does not exist"),
        ("page it.fastshap --rows none.csv", "--rows is none.csv, which does not exist"),
        ("page it.fastshap -o rows.csv", "rows.csv is a file"),
    ],
)
def test_a_refusal_imports_nothing_heavy(
    command: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    said, ended = run(*command.split())
    assert ended == "code 1, imported []"
    assert expected in said
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("page cut.fastshap", "cannot be served: cut.fastshap is cut short"),
        ("serve none.fastshap", "none.fastshap does not exist"),
        ("serve it=flipped.fastshap", "the SHA-256 digest differs"),
        ("serve it.fastshap --rows none.csv", "--rows is none.csv, which does not exist"),
    ],
)
def test_a_server_and_a_page_refuse_files_before_they_export_them(
    command: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("onnxruntime", "orjson", "starlette", "uvicorn"):
        pytest.importorskip(package, reason="needs the serve extra")
    monkeypatch.chdir(folder)
    said, ended = run(*command.split())
    assert ended == "code 1, imported []"
    assert expected in said


def test_paths_that_can_be_written_are_accepted(tmp_path: Path) -> None:
    check_output_folder(tmp_path)
    check_output_folder(tmp_path / "new" / "folder")
    check_output_file(tmp_path / "new" / "file.onnx")
    (tmp_path / "file").touch()
    check_output_file(tmp_path / "file")
    check_files([tmp_path / "file"], "--rows")
    with pytest.raises(InputError, match=r"--store is .*new, but .*file is a file: choose another folder"):
        check_output_folder(tmp_path / "file" / "new", "--store")
