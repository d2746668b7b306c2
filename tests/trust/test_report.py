"""The report: its lines, its warnings and its file format."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import QUICK, numbers

from fastshapley import FastSHAP, Recipe, Targets, Training
from fastshapley.estimators import Estimate
from fastshapley.metrics import r2
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


def estimate(values: NDArray[np.float64], stderr: float = 0.0) -> Estimate:
    rows = len(values)
    return Estimate(values, np.full(values.shape, stderr), np.ones(rows, dtype=int), np.ones(rows, dtype=bool))


def test_a_large_output_does_not_hide_a_small_one() -> None:
    truth = np.random.default_rng(0).normal(size=(200, 4, 2)) * [1000.0, 1.0]
    found = measure(truth * [1.0, 0.5], estimate(truth), "exact")
    assert found.relative_squared_errors == pytest.approx((0.0, 0.25))
    assert found.relative_squared_error == pytest.approx(0.25)
    game = replace(found, game_errors=(0.0, found.mean_squared_values[1]), game_error=found.mean_squared_values[1])
    assert game.total_relative_squared_error == pytest.approx(1.25)
    assert "'small'" in replace(game, output_names=("large", "small")).lines()["  worst output"]
    signs = measure(truth * [1.0, -1.0], estimate(truth), "exact")
    assert signs.sign_agreement == 0


def test_an_output_whose_values_are_smaller_than_their_noise_is_not_the_worst() -> None:
    """The probability of a class that hardly occurs: its true values are nothing but noise."""
    rng = np.random.default_rng(0)
    large, noise = rng.standard_normal((200, 4, 1)), 1e-3 * rng.standard_normal((200, 4, 1))
    truth = np.concatenate([large, noise], axis=2)
    values = np.concatenate([large + 0.1, np.zeros_like(noise)], axis=2)

    def errors(stderr: float, part: slice) -> tuple[float, tuple[float, ...]]:
        known, count = np.zeros(200, dtype=bool), np.full(200, 10)
        estimate = Estimate(truth[..., part], np.full_like(truth[..., part], stderr), count, known)
        found = measure(values[..., part], estimate, "estimates")
        return found.relative_squared_error, found.relative_squared_errors

    headline, each = errors(8e-4, slice(None))
    assert headline == each[0] < 0.02
    assert math.isnan(each[1])
    assert errors(0.0, slice(None))[1][1] == pytest.approx(1)
    assert not math.isnan(errors(8e-4, slice(1, 2))[0])  # There is nothing else to say.


def test_large_rows_do_not_hide_the_others() -> None:
    """Nine rows of ten are wrong, and small."""
    truth = np.random.default_rng(0).normal(size=(200, 4, 1))
    truth[::10] *= 1000
    values = 2 * truth
    values[::10] = truth[::10]
    found = measure(values, estimate(truth), "exact")
    assert found.relative_squared_error < 1e-4
    assert found.median_row_error == pytest.approx(1.0)
    assert any("one row of ten" in text for text in found.warnings())
    vague = measure(values, estimate(truth, stderr=1000.0), "estimated")
    assert vague.median_row_error is vague.worst_decile_row_error is None


def test_a_player_with_wrong_signs_is_named() -> None:
    truth = np.random.default_rng(0).normal(size=(200, 20, 1))
    values = truth.copy()
    values[:, 7] *= -1
    found = replace(measure(values, estimate(truth), "exact"), player_names=tuple("abcdefghijklmnopqrst"))
    assert found.sign_agreement > 0.9
    assert any("'h'" in text and "wrong sign" in text for text in found.warnings())
    assert found.player_sign_agreements[7] == 0
    few = measure(values[:3], estimate(truth[:3]), "exact")
    assert set(few.player_sign_agreements) == {None}


def test_rows_that_repeat_each_other_do_not_pass_for_new_ones() -> None:
    different = numbers(80)
    explainer = FastSHAP(_bent, value_function="surrogate", recipe=QUICK, random_state=0, progress=False)
    report = explainer.fit(np.repeat(different, 25, axis=0)).report_
    assert report is not None
    assert report.rows == 8
    assert report.fidelity is not None
    fresh = numbers(500, seed=1)
    surrogate = explainer.value_function_.grand(explainer.fitted_.schema.encode(fresh)[:])[:, 0].numpy()
    real = r2(surrogate, _bent(fresh))
    assert real < 0.9
    assert report.fidelity < real + 0.4  # eight rows say little, but it is not .98


def test_validation_rows_that_were_trained_on_are_counted_and_left_out() -> None:
    X, new = numbers(200), numbers(60, seed=1)
    explainer = FastSHAP(_bent, value_function="surrogate", recipe=QUICK, random_state=0, progress=False)
    mixed = explainer.fit(X, X_val=np.concatenate([X[:40], new])).report_
    assert mixed is not None
    assert mixed.seen_rows == 40
    assert mixed.held_out
    assert mixed.rows == 30
    assert any("40 validation rows are also training rows" in text for text in mixed.warnings())
    same = explainer.fit(X, X_val=X).report_
    assert same is not None
    assert not same.held_out


def _bent(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sin(3 * rows[:, 0]) * rows[:, 1] + rows[:, 2]
