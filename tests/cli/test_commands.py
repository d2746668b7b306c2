"""Tests of the command line: output as text and as JSON, help, and errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from problems import QUICK, explainer, numbers

import fastshapley
from fastshapley import FastSHAP, Groups, Report
from fastshapley.cli import COMMANDS, main
from fastshapley.cli import demo_table as demo
from fastshapley.cli import paper_command as paper_command
from fastshapley.export import file_format as persistence
from fastshapley.export import file_header
from fastshapley.fit.settings import Settings
from fastshapley.paper import image_run as images
from fastshapley.paper import table_run as tabular
from fastshapley.paper import table_settings as tables

RESULTS = Path(__file__).parents[2] / "docs" / "results"
Told = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an explainer of four columns, two of which form one player."""
    path = tmp_path_factory.mktemp("grouped") / "grouped.fastshap"
    explainer(lambda rows: rows[:, 0] * rows[:, 1], players=Groups({"<two>": [1, 2]}), link="identity").fit(
        numbers()
    ).save(path)
    return path


def help_of(command: str, capsys: Told) -> str:
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def objects(told: str) -> dict[str, Any]:
    """Return the JSON object in the output, which is one line."""
    assert told.count("\n") == 1
    found: dict[str, Any] = json.loads(told, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return found


# Help


@pytest.mark.parametrize(
    "command",
    ["paper tabular", "paper images", *(name for name in COMMANDS if name != "paper")],
)
def test_examples_in_the_help_use_options_of_the_command(command: str, capsys: Told) -> None:
    text = help_of(command, capsys)
    assert f"examples:\n  fastshapley {command}" in text
    for option in re.findall(r"(?<= )(--[a-z-]+)", text.partition("examples:")[2].partition("keys of --json")[0]):
        assert option in text.partition("examples:")[0] or option == "--nproc-per-node"
    assert "--debug" in text
    assert "--json" in text
    assert command == "serve" or "keys of --json:" in text


def test_help_describes_exit_codes_and_json_errors(capsys: Told) -> None:
    text = help_of("", capsys)
    for line in ("0    success", "1    error", "2    wrong usage", "3    check found", "130  interrupted"):
        assert line in text
    assert '"error" (the message), "kind" (such as InputError) and "command"' in text


# Report


def test_a_report_as_text(grouped: Path, capsys: Told) -> None:
    assert main(["report", str(grouped)]) == 0
    lines = capsys.readouterr().out.splitlines()
    report = FastSHAP.load(grouped).report_
    assert lines[:8] == [
        "grouped.fastshap",
        "  features                       4: x0, x1, x2, x3",
        "  players                        3: x0, <two>, x3",
        "    <two>                        2: x1, x2",
        "  outputs                        1: output 0",
        "  value function                 surrogate, link identity",
        "  recipe                         custom",
        f"  written by                     fastshapley {fastshapley.__version__}",
    ]
    assert "\n".join(lines[9:]) == str(report)


def test_a_report_as_json(grouped: Path, capsys: Told) -> None:
    assert main(["report", str(grouped), "--json"]) == 0
    found = objects(capsys.readouterr().out)
    assert found["features"] == ["x0", "x1", "x2", "x3"]
    assert (found["players"], found["groups"]) == (["x0", "<two>", "x3"], {"<two>": ["x1", "x2"]})
    assert (found["outputs"], found["value_function"], found["link"]) == (["output 0"], "surrogate", "identity")
    report = FastSHAP.load(grouped).report_
    assert report is not None
    assert Report.from_dict(found["report"]) == report
    assert found["warnings"] == report.warnings()


def test_a_report_as_an_html_page(grouped: Path, tmp_path: Path, capsys: Told) -> None:
    assert main(["report", str(grouped), "-o", str(tmp_path / "report.html")]) == 0
    assert f"report: {tmp_path / 'report.html'}" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    report = FastSHAP.load(grouped).report_
    assert report is not None
    assert report._repr_html_() in page
    assert "&lt;two&gt;" in page
    assert "<two>" not in page


@pytest.mark.parametrize(("recipe", "reason"), [("sampling", "recipe 'sampling'"), (QUICK, "budget left nothing")])
def test_a_file_without_a_report_says_how_to_get_one(
    recipe: Any, reason: str, grouped: Path, tmp_path: Path, capsys: Told
) -> None:
    fitted = FastSHAP.load(grouped)
    settings = replace(Settings(**fitted.get_params(deep=False)), recipe=recipe)
    persistence.save(replace(fitted.fitted_, report=None), settings, tmp_path / "none.fastshap")
    command = ["report", str(tmp_path / "none.fastshap"), "--html", str(tmp_path / "none.html")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "There is no report" in said
    assert reason in said
    assert "to get one" in (tmp_path / "none.html").read_text()
    assert main([*command, "--json"]) == 0
    found = objects(capsys.readouterr().out)
    assert found["report"] is None
    assert len(found["warnings"]) == 1
    assert reason in found["warnings"][0]


def test_the_report_of_an_explainer_of_images_needs_no_model(
    image_explainer: FastSHAP, tmp_path: Path, capsys: Told
) -> None:
    image_explainer.save(tmp_path / "digits.fastshap")
    assert main(["report", str(tmp_path / "digits.fastshap")]) == 0
    assert "  images                         1 x 8 x 8\n" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "digits.fastshap")]) == 1
    assert "pass the model as model=" in capsys.readouterr().err


# --json


def check_keys(command: list[str], capsys: Told, name: str | None = None) -> dict[str, Any]:
    """Check that a command prints one JSON object whose keys are in its help, and return the object."""
    assert main([*command, "--json"]) == 0
    found = objects(capsys.readouterr().out)
    documented = help_of(name or command[0], capsys).partition("keys of --json:")[2]
    assert set(found) <= set(re.findall(r"\w+", documented))
    return found


def test_commands_print_a_json_object(exported: Any, tmp_path: Path, capsys: Told) -> None:
    saved, rows = str(exported.saved), str(tmp_path / "rows.csv")
    exported.X[:20].to_csv(rows, index=False)
    found = check_keys(["report", saved], capsys)
    assert found["html"] is None
    found = check_keys(["explain", saved, rows, "-o", str(tmp_path / "out")], capsys)
    assert (found["output"], found["rows"], found["kept"]) == (str(tmp_path / "out"), 20, 0)
    found = check_keys(["export", saved, "-o", str(tmp_path / "graph.onnx")], capsys)
    assert found == {"graph": str(tmp_path / "graph.onnx")}
    found = check_keys(["page", str(exported.graph), "-o", str(tmp_path / "page")], capsys)
    assert Path(found["page"]).is_file()


def test_demo_and_paper_print_a_json_object(tmp_path: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(5, "exact", 0.0, 0.1, 0.2, 0.1, 0.3, float("nan"), 1.0)
    shown = demo.Demo(report, tmp_path / "index.html", 1.5, 2.5)
    monkeypatch.setattr(demo, "run", lambda output, **settings: shown)
    found = check_keys(["demo"], capsys)
    assert found["report"]["cosine"] is None  # JSON has no NaN
    assert (found["seconds_to_train"], found["microseconds_a_row"]) == (1.5, 2.5)

    known = {name: json.loads((RESULTS / name).read_text()) for name in ("tabular.json", "images-cifar10.json")}
    monkeypatch.setattr(tabular, "run", lambda output, **settings: known["tabular.json"])
    monkeypatch.setattr(images, "run", lambda output, dataset, **settings: known["images-cifar10.json"])
    found = check_keys(["paper", "tabular", "-o", str(RESULTS)], capsys, "paper tabular")
    assert found["games"][0].keys() == {"table", "game", "l2", "l2_paper_recipe", "l2_printed"}
    found = check_keys(["paper", "images", "--dataset", "cifar10", "-o", str(RESULTS)], capsys, "paper images")
    assert found["methods"]["FastSHAP"].keys() == {"exclusion", "inclusion", "images"}
    assert Path(found["results"]).is_file()
    assert tuple(tables.TABLES) == paper_command.TABLES


def test_common_options_are_accepted_before_the_command(grouped: Path, capsys: Told) -> None:
    assert main(["--json", "report", str(grouped)]) == 0
    assert "report" in objects(capsys.readouterr().out)
    assert main(["--debug", "report", "nothing.fastshap"]) == 1
    assert "Traceback" in capsys.readouterr().err


# Errors


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "nothing.onnx", "rows.csv", "-o", "out"],
        ["fit", "os:getcwd", "nothing.csv", "-o", "out"],
        ["explain", "nothing.fastshap", "rows.csv", "-o", "out"],
        ["report", "nothing.fastshap"],
        ["export", "nothing.fastshap"],
        ["serve", "nothing.fastshap"],
        ["page", "nothing.fastshap"],
        ["report", "/"],  # an OSError
    ],
)
def test_an_error_is_printed_as_one_line_json_or_a_traceback(command: list[str], capsys: Told) -> None:
    assert main(command) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"fastshapley {command[0]}: ")
    assert told.err.count("\n") == 1
    message = told.err.removeprefix(f"fastshapley {command[0]}: ").strip()

    assert main([*command, "--json"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    found = objects(told.err)
    assert found.keys() == {"error", "kind", "command"}
    assert (found["error"], found["command"]) == (message, command[0])
    assert found["kind"].endswith("Error")

    assert main([*command, "--debug"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("Traceback")
    assert found["kind"] in told.err.splitlines()[-1]
    assert main([*command, "--debug", "--json"]) == 1
    assert json.loads(capsys.readouterr().err.splitlines()[-1]) == found


def test_an_unexpected_error_mentions_debug(grouped: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        error = KeyError("of two\nlines")
        error.add_note("a note")
        raise error

    monkeypatch.setattr(file_header, "read_config", broken)
    assert main(["report", str(grouped)]) == 1
    said = "fastshapley report: KeyError: 'of two\\nlines' a note (unexpected error: run with --debug to see"
    assert capsys.readouterr().err == f"{said} where it comes from)\n"


def test_a_missing_extra_is_reported_in_one_line(
    grouped: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["explain", str(grouped), "rows.csv", "-o", "out"]) == 1
    assert capsys.readouterr().err == (
        "fastshapley explain: this needs pyarrow: install it with pip install 'fastshapley[bulk]'\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["nothing"],
        ["fit", "model.onnx", "rows.csv"],
        ["report"],
        ["paper", "tabular", "--only", "titanic"],
        ["paper", "tabular", "--workers", "0"],
        ["serve", "a.onnx", "--port", "65536"],
    ],
)
def test_wrong_usage_exits_with_2(command: list[str], capsys: Told) -> None:
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["paper", "tabular"], "run the same command again to resume"),
        (["paper", "images", "--dataset", "cifar10"], "run the same command again to resume"),
        (["demo"], "the same command starts again from the beginning"),
    ],
)
def test_an_interruption_says_whether_the_command_resumes(
    command: list[str], said: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    for module in (tabular, images, demo):
        monkeypatch.setattr(module, "run", interrupted)
    assert main(command) == 130
    assert capsys.readouterr().err == f"fastshapley {command[0]}: interrupted; {said}\n"
    assert main([*command, "--json"]) == 130
    assert objects(capsys.readouterr().err)["kind"] == "KeyboardInterrupt"


def test_parsing_does_not_import_torch() -> None:
    script = "import sys; from fastshapley.cli import parser; parser(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_output_that_is_also_an_input_is_refused(grouped: Path, tmp_path: Path, capsys: Told) -> None:
    held = grouped.read_bytes()
    assert main(["export", str(grouped), "-o", str(grouped)]) == 1
    assert "which is also an input: choose another file" in capsys.readouterr().err
    assert grouped.read_bytes() == held
    rows = tmp_path / "rows.csv"
    rows.write_text("a\n1\n2\n")
    assert main(["fit", "math:sin", str(rows), "-o", str(rows), "--quiet"]) == 1
    assert "which is also an input: choose another file" in capsys.readouterr().err
    assert rows.read_text() == "a\n1\n2\n"
