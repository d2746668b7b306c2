"""The report: its lines, its warnings and its file format."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import numbers

from fastshapley import FastSHAP, Recipe, Targets, Training
from fastshapley.estimators import Estimate
from fastshapley.trust.report import Report, measure

GOOD = Report(
    rows=100,
    truth="exact",
    truth_error=0.0,
    l1=0.1,
    l2=0.05,
    l2_interval=0.01,
    relative_squared_error=0.01,
    cosine=0.99,
    sign_agreement=0.98,
    fidelity=0.97,
    mean_squared_error=0.003,
    mean_squared_error_interval=0.001,
    fidelity_by_size={"0 %": 0.0, "100 %": 0.97},
    game_error=0.006,
    game_error_source="measured",
    mean_squared_value=0.3,
)


def test_a_good_report_has_no_warnings() -> None:
    assert GOOD.warnings() == []
    assert "!" not in str(GOOD)


def test_the_lines_have_the_documented_labels() -> None:
    report = replace(GOOD, truth="unbiased estimate from 161 coalition pairs per row", truth_error=0.0056)
    report = replace(report, sampling_error=3.5e-5)
    assert report.lines() == {
        "total relative squared error": "0.0300 (typical error 17 % of the values)",
        "  network (measured)": "0.0100",
        "  game (estimated)": "0.0200, measured",
        "truth for the network": "unbiased estimate from 161 coalition pairs per row (l2 error about 0.0056)",
        "mean squared error": "0.003 +- 0.001",
        "  sampling noise (already subtracted)": "3.5e-05",
        "l2 distance": "0.05 +- 0.01",
        "l1 distance": "0.1",
        "cosine": "0.9900",
        "correct sign, large values": "98.0 %",
        "fidelity for whole rows (R2)": "0.9700",
        "  by share of players known": "0 % 0.00, 100 % 0.97",
    }


def test_the_text_is_a_table_with_a_title() -> None:
    title, *lines = str(replace(GOOD, sampling_error=3.5e-5)).splitlines()
    assert title == "Distance to the Shapley values of the model on 100 held-out rows"
    assert {line[39:40] for line in lines} == {" "}  # The longest label fits into its column.
    assert lines[4].split() == ["mean", "squared", "error", "0.003", "+-", "0.001"]


def test_an_unknown_error_of_the_game_is_said() -> None:
    unknown = replace(GOOD, game_error=None, game_error_source="")
    assert unknown.lines()["total relative squared error"] == "at least 0.0100"
    assert unknown.lines()["  game (estimated)"] == "unknown"
    assert str(unknown).startswith("Distance to the Shapley values of the game")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"relative_squared_error": 0.36}, "The network's typical error is 60 % of the size of the values"),
        ({"game_error": 0.048}, "The game's typical error is about 40 % of the size of the values"),
        ({"sign_agreement": 0.8}, "20 % of the large values have the wrong sign"),
        ({"fidelity": 0.5}, "The surrogate explains only 50 % of the variance"),
        ({"held_out": False}, "measured on rows that were used for training"),
        ({"rows": 5}, "measured on only 5 rows"),
    ],
)
def test_a_poor_report_says_why_and_what_to_do(changes: dict[str, Any], words: str) -> None:
    poor = replace(GOOD, **changes)
    assert len(poor.warnings()) == 1
    assert words in poor.warnings()[0]
    assert words in str(poor)
    assert words in html.unescape(poor._repr_html_())


def test_notebooks_show_an_escaped_table() -> None:
    text = replace(GOOD, truth="<exact>")._repr_html_()
    assert text.count("<tr>") == len(GOOD.lines())
    assert "&lt;exact&gt;" in text


def test_a_report_survives_json() -> None:
    assert Report.from_dict(json.loads(json.dumps(GOOD.to_dict()))) == GOOD


def test_a_report_of_the_first_version_is_read() -> None:
    """It had the surrogate's error, and no size of the values."""
    old = GOOD.to_dict()
    for name in ("game_error", "game_error_source", "mean_squared_value"):
        del old[name]
    found = Report.from_dict({**old, "surrogate_error": 0.006})
    assert found.game_error == 0.006
    assert found.relative_game_error == pytest.approx(0.02)
    assert Report.from_dict({**old, "surrogate_error": None}).game_error is None


def test_a_single_row_has_no_interval() -> None:
    values = np.ones((1, 3, 1))
    truth = Estimate(values, np.zeros_like(values), np.array([8]), np.array([True]))
    assert "+-" not in str(measure(values, truth, "exact"))


def test_a_fit_on_few_rows_warns_and_one_on_many_rows_does_not(caplog: pytest.LogCaptureFixture) -> None:
    """The report and the logger warn."""

    def model(X: Any) -> Any:
        return np.sin(2 * X[:, 0]) * X[:, 1] + X[:, 2] * np.abs(X[:, 3]) + X[:, 4] + X[:, 5]

    steps = Training(steps=1500, batch_size=64, learning_rate=5e-3, schedule="cosine")
    recipe = Recipe(surrogate=(steps,), explainer=steps, targets=Targets(coalitions=8, rows=1))
    options: dict[str, Any] = {"value_function": "baseline", "recipe": recipe, "random_state": 0, "progress": False}
    with caplog.at_level("WARNING"):
        well = FastSHAP(model, **options).fit(numbers(4000, 6)).report_
    assert well is not None
    assert well.warnings() == []
    assert not caplog.records
    with caplog.at_level("WARNING"):
        badly = FastSHAP(model, **options).fit(numbers(50, 6)).report_
    assert badly is not None
    assert badly.warnings()
    assert badly.warnings()[0] in caplog.text
