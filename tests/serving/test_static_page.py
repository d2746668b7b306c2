"""The page without a server: opened from files in a real browser."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from browser import assert_shows, bars, changed, fits, onnx, page_of, value
from problems import records
from sklearn.datasets import load_iris

from fastshapley import FastSHAP
from fastshapley.cli import main
from fastshapley.export.graph import Graph
from fastshapley.serving.static_page import static_files

pytest.importorskip("onnxscript", reason="needs the onnx extra")


@pytest.fixture(scope="module")
def people(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the explainer of people, with twenty example rows."""
    return page_of(exported.graph, tmp_path_factory.mktemp("page"), records(exported.X[:20]))


def test_example_rows_can_be_chosen(opened: Any, people: Path, exported: Any) -> None:
    page, X = opened(people), exported.X
    assert page.title() == "people · Shapley values"
    assert_shows(page, exported.explainer, X[:1])
    page.select_option("#row", label="Row 7")
    assert_shows(page, exported.explainer, X[6:7])
    sizes = [abs(v) for v in bars(page).values()]
    assert sizes == sorted(sizes, reverse=True)
    page.select_option("#output", label="0")
    assert_shows(page, exported.explainer, X[6:7], output=0)
    gap = int(np.flatnonzero(X["job"].isna())[0])
    assert gap < 20
    page.select_option("#row", str(gap))
    assert page.locator("select[data-column=job]").input_value() == ""
    assert_shows(page, exported.explainer, X[gap : gap + 1], output=0)
    page.select_option("#row", label="Typical row")
    assert page.locator("input[type=number][data-column=age]").input_value() == str(round(X["age"].median()))
    assert page.locator("select[data-column=job] option:checked").inner_text() == "chef"


def test_a_slider_changes_the_values_but_not_the_order_of_lines(opened: Any, people: Path, exported: Any) -> None:
    page, row = opened(people), exported.X[:1].copy()
    before = list(bars(page))
    slider = page.locator("input[type=range][data-column=age]")
    assert [slider.get_attribute(name) for name in ("min", "max", "step")] == [
        "18",
        "78",
        "1",
    ]  # The range is from the 1 % to the 99 % quantile.
    for age in ("30", "75"):
        slider.fill(age)
        row["age"] = int(age)
        assert_shows(page, exported.explainer, row)
        assert page.locator("input[type=number][data-column=age]").input_value() == age
    assert list(bars(page)) == before  # The order stays.
    page.click("#again")
    assert_shows(page, exported.explainer, exported.X[:1])


def test_values_can_be_typed_cleared_and_chosen(opened: Any, people: Path, exported: Any) -> None:
    page, row = opened(people), exported.X[:1].copy()
    income = page.locator("input[type=number][data-column=income]")
    income.fill("123.456")  # This is outside the slider's range.
    row["income"] = 123.456
    assert_shows(page, exported.explainer, row)
    income.fill("")
    row["income"] = np.nan
    assert_shows(page, exported.explainer, row)
    page.select_option("select[data-column=job]", label="nurse")
    row["job"] = "nurse"
    assert_shows(page, exported.explainer, row)
    page.select_option("select[data-column=member]", label="true")
    row["member"] = True
    assert_shows(page, exported.explainer, row)
    page.select_option("select[data-column=city]", label="missing")
    row["city"] = pd.Categorical([None], categories=["Basel", "Bern"])
    assert_shows(page, exported.explainer, row)


def test_the_page_can_be_used_with_the_keyboard_only(opened: Any, people: Path) -> None:
    page = opened(people)
    before, reached = bars(page), []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.type"))
        if reached[-1] == "range":
            break
    assert reached[:3] == ["select-one", "button", "select-one"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert bars(page) != before


def test_the_page_tells_how_accurate_the_values_are(opened: Any, people: Path, exported: Any) -> None:
    page, report = opened(people), exported.explainer.report_
    assert report is not None
    text = page.locator("#accuracy").inner_text().replace("\xa0", " ")
    assert f"On {report.rows} held-out rows" in text
    assert f"{100 * report.sign_agreement:.1f} % of the large values have the right sign" in text
    assert report.fidelity is not None
    assert f"explains {100 * report.fidelity:.1f} % of the variance" in text
    assert page.locator("#accuracy .warning").count() == len(report.warnings())
    assert page.locator("#scale").inner_text() == "on the scale of probabilities"
    assert "90 % of the exact values lie within the whiskers" in page.locator("#note").inner_text()


def test_every_control_has_a_name(opened: Any, people: Path) -> None:
    page = opened(people)
    unnamed = "(all) => all.filter((c) => !c.labels?.length && !c.ariaLabel && c.checkVisibility()).length"
    assert page.locator("input, select").evaluate_all(unnamed) == 0
    assert (
        page.locator("#prediction").evaluate("(e) => e.tagName") == "OUTPUT"
    )  # Screen readers read it when it changes.
    label = page.locator(".bar[data-player=age]").get_attribute("aria-label")
    assert label.startswith("age: ")
    assert ", plus or minus " in label


def test_the_most_likely_of_three_classes_is_explained_first(opened: Any, iris_graph: Path, tmp_path: Path) -> None:
    data = load_iris(as_frame=True).data
    page = opened(page_of(iris_graph, tmp_path / "page", records(data.iloc[[0, 60, 120]])))
    graph = Graph(iris_graph)
    for row, number in enumerate((0, 60, 120)):
        page.select_option("#row", str(row))
        found = graph(data.to_numpy()[[number]])
        highest = int(found["predictions"].argmax())
        assert page.locator("#output").input_value() == str(highest)
        assert list(bars(page).values()) == pytest.approx(
            sorted(found["shap_values"][0, :, highest], key=abs, reverse=True), abs=1e-6
        )


def test_the_page_asks_for_the_outputs_of_the_model_if_the_graph_needs_them(
    opened: Any, baseline_graph: Path, exported: Any, tmp_path: Path
) -> None:
    rows = records(exported.X[:1])
    page = opened(page_of(baseline_graph, tmp_path / "page", rows))
    assert "the model itself" in page.locator("#outputs").inner_text()
    assert value(page, "sum") == pytest.approx(0, abs=1e-4)
    page.fill("#output-1", "0.8")
    assert page.input_value("#output-0") == "0.2"
    assert value(page, "prediction") == pytest.approx(np.log(4), abs=1e-6)
    assert page.locator("#prediction + small").inner_text() == "probability 0.8"
    graph = Graph(baseline_graph)
    found = graph(graph.encode(rows), np.log([[0.25, 4.0]]))["shap_values"][0, :, 1]
    assert bars(page) == pytest.approx(dict(zip(graph.players, found, strict=True)), abs=1e-6)


def test_the_page_of_a_conditional_game_shows_the_estimates_of_the_surrogate(
    opened: Any, conditional: Any, tmp_path: Path
) -> None:
    page = opened(page_of(conditional.graph, tmp_path / "page", records(conditional.X[:3])))
    assert page.locator("#outputs").count() == 0
    sentence = "The predictions are a surrogate's estimates of the model's outputs."
    assert page.locator("#sums").inner_text() == sentence
    assert_shows(page, FastSHAP.load(conditional.saved), conditional.X[:1])
    assert "Computed in your browser" in page.locator("#where").inner_text()


def test_the_page_of_the_model_itself_does_not_speak_of_a_surrogate(
    opened: Any, baseline_graph: Path, tmp_path: Path
) -> None:
    assert opened(page_of(baseline_graph, tmp_path / "page", [])).locator("#sums").is_hidden()


def test_a_group_of_columns_has_several_controls_and_one_bar(
    opened: Any, groups_graph: Path, exported: Any, tmp_path: Path
) -> None:
    page = opened(page_of(groups_graph, tmp_path / "page", records(exported.X[:1])))
    line = page.locator("li", has=page.locator(".bar[data-player=work]"))
    assert line.locator("label").all_inner_texts() == ["income", "job"]
    assert line.locator("input, select").count() == 3
    total = value(page, "base") + value(page, "sum")
    assert abs(total - value(page, "prediction")) > 1e-4
    assert "do not add up to the prediction" in page.locator("#note").inner_text()


def test_columns_have_controls_if_players_are_not_columns(opened: Any, exported: Any, tmp_path: Path) -> None:
    graph = changed(exported.graph, lambda about: about["players"].update(owner=[]))
    page = opened(page_of(graph, tmp_path / "page", records(exported.X[:1])))
    before = bars(page)
    assert page.locator(".loose li").count() == 5
    page.locator(".loose input[type=range][data-column=age]").fill("20")
    assert bars(page) != before


def test_html_in_names_is_shown_as_text(opened: Any, exported: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"

    def rename(about: dict[str, Any]) -> None:
        about["schema"]["columns"][2]["categories"][1] = "</script><b>bold</b>"
        about["schema"]["columns"][0]["key"] = about["players"]["names"][0] = evil
        about["output_names"] = ["<i>no</i>", "<i>yes</i>"]

    graph = changed(exported.graph, rename)
    page = opened(page_of(graph, tmp_path / "page", [{evil: 40, "job": "</script><b>bold</b>"}]))
    assert page.locator(".name").all_inner_texts().count(evil) == 1
    assert page.locator("select[data-column=job] option:checked").inner_text() == "</script><b>bold</b>"
    assert "“<i>yes</i>”" in page.locator("#note").inner_text()
    assert page.locator("main img, main i, main li b").count() == 0
    assert page.input_value("#column-0") == "40"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (None, "The error of these values was not measured."),
        ({"held_out": False, "relative_squared_error": float("nan")}, "larger error than was measured here"),
        ({"fidelity": 1.0, "game_error": 0.0}, "These values explain the model itself."),
        ({"rows": 3, "relative_squared_error": 0.25}, "The error is 50.0 % of the size of the values"),
    ],
)
def test_the_text_on_accuracy_depends_on_the_report(
    report: Any, text: str, opened: Any, exported: Any, tmp_path: Path
) -> None:
    """These graphs have no warnings as text, like the first ones."""

    def change(about: dict[str, Any]) -> None:
        about["report"] = None if report is None else {**about["report"], "warnings": None, **report}

    page = opened(page_of(changed(exported.graph, change), tmp_path / "page"))
    assert text in page.locator("#accuracy").inner_text().replace("\xa0", " ")
    assert len(bars(page)) == 5


def test_an_unsupported_operator_is_named(opened: Any, exported: Any, tmp_path: Path) -> None:
    graph = changed(exported.graph, operator="Mystery")
    page = opened(page_of(graph, tmp_path / "page"))
    assert "does not support the operator Mystery" in page.locator("#status").inner_text()
    assert page.evaluate("state.model.graph.unsupported") == ["Mystery"]


def test_a_graph_that_fastshapley_did_not_export_is_an_error(opened: Any, exported: Any, tmp_path: Path) -> None:
    model = onnx.load(exported.graph)
    del model.metadata_props[:]
    page = opened(page_of(model.SerializeToString(), tmp_path / "page"))
    assert "fastshapley did not export it" in page.locator("#status").inner_text()


def test_the_page_fits_narrow_screens_and_has_a_dark_scheme(opened: Any, people: Path) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page = opened(people, viewport={"width": 360, "height": 740}, color_scheme=scheme)
        assert fits(page)
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_the_page_of_a_server_contains_no_model() -> None:
    found = static_files()
    assert {"index.html", "page.css", "page.js", "graph.js"} <= found.keys()
    page = found["index.html"].decode()
    assert "model.js" not in page
    assert set(re.findall(r'(?:src|href)="([^:"]+)"', page)) <= found.keys()
    assert "style=" not in page  # The server's policy forbids it.


def test_the_folder_has_all_files_and_no_others(people: Path, exported: Any) -> None:
    folder = people.parent
    named = re.findall(r'(?:src|href)="([^:"]+)"', people.read_text())
    assert {file.name for file in folder.iterdir()} == {*named, "index.html"}
    assert "model.js" in named
    written = (folder / "model.js").read_text().removeprefix("globalThis.fastshapleyModels = ").rstrip(";\n")
    model = json.loads(written)["people"]
    assert base64.b64decode(model["graph"]) == exported.graph.read_bytes()
    assert len(model["rows"]) == 20


def test_writing_a_page_imports_neither_torch_nor_pandas(exported: Any, tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        sys.modules.update(torch=None, pandas=None, shap=None, sklearn=None)
        from fastshapley.serving.static_page import write_page
        assert write_page("people", Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])).is_file()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), exported.graph, tmp_path / "page"]
    subprocess.run(command, check=True)


def test_the_page_command_writes_a_page_and_reports_bad_files(
    exported: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported.X[:3].to_csv(tmp_path / "rows.csv", index=False)
    command = ["page", str(exported.graph), "-o", str(tmp_path / "page"), "--rows", str(tmp_path / "rows.csv")]
    assert main(command) == 0
    assert "page: " in capsys.readouterr().out
    text = (tmp_path / "page" / "model.js").read_text().partition(" = ")[2].rstrip(";\n")
    model = json.loads(text)["people"]
    assert Graph(base64.b64decode(model["graph"])).columns == list(exported.X.columns)
    assert len(model["rows"]) == 3
    assert main(["page", str(tmp_path / "nothing.fastshap")]) == 1
    assert "does not exist" in capsys.readouterr().err
    damaged = tmp_path / "damaged.fastshap"
    damaged.write_bytes(exported.saved.read_bytes()[:1000])
    assert main(["page", str(damaged)]) == 1
    assert re.search(
        r"damaged\.fastshap cannot be served: \S*damaged\.fastshap is cut short", capsys.readouterr().err
    )
