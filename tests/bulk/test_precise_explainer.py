"""Tests of bulk explanations with standard errors, corrections, and values that sum to the model's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Exported

from fastshapley import FastSHAP
from fastshapley.cli import main
from fastshapley.errors import InputError

pytest.importorskip("pyarrow", reason="needs the bulk extra")

from bulks import parts_in, quick, read, score


@pytest.fixture
def source(exported: Exported, tmp_path: Path) -> Path:
    """Write rows of which the last is outside of the range of the training rows."""
    rows = exported.X[:40].reset_index(drop=True)
    rows.loc[39, "age"] = 1e4
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    return tmp_path / "rows.parquet"


def loaded(exported: Exported) -> FastSHAP:
    explainer = FastSHAP.load(exported.saved, exported.explainer.model)
    explainer.progress = False
    return explainer


def in_order(found: pd.DataFrame, prefix: str, explainer: FastSHAP) -> Any:
    """Return the columns of a prefix as an array (n, players, outputs)."""
    names = [f"{prefix}{p}_{output}" for p in explainer.player_names_ for output in explainer.output_names_]
    assert [name for name in map(str, found) if name.startswith(prefix)] == names
    return found[names].to_numpy().reshape(len(found), len(explainer.player_names_), -1)


@pytest.mark.parametrize(
    "options",
    [
        {"errors": True},
        {"errors": "game"},
        {"budget": 12},
        {"tol": 0.2, "errors": "game"},
        {"anchor": "model"},
        {"anchor": "model", "errors": True, "budget": 6},
    ],
    ids=str,
)
def test_files_hold_what_a_call_returns(
    exported: Exported, source: Path, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    explainer = loaded(exported).set_params(random_state=3)
    done = explainer.explain_to(source, tmp_path / "out", **options)
    assert not caplog.messages  # The column outside_range says it.
    found, expected = read(tmp_path / "out"), explainer(pd.read_parquet(source), **options)
    np.testing.assert_array_equal(in_order(found, "shap_", explainer), expected.values.astype(np.float32))
    np.testing.assert_array_equal(found.filter(like="base_value"), expected.base_values.astype(np.float32))
    assert done.sums_to == expected.sums_to
    if expected.error_std is None:
        assert not [name for name in map(str, found) if name.startswith("error_std_")]
    else:
        errors = in_order(found, "error_std_", explainer)
        np.testing.assert_array_equal(errors, np.asarray(expected.error_std, np.float32))
        assert bool(np.isnan(errors[39]).all()) == ("budget" not in options and "tol" not in options)
    assert list(found)[-1] == "outside_range"


def test_anchored_values_sum_to_the_output_of_the_model(exported: Exported, source: Path, tmp_path: Path) -> None:
    loaded(exported).explain_to(source, tmp_path / "out", anchor="model")
    found, explainer = read(tmp_path / "out"), exported.explainer
    totals = in_order(found, "shap_", explainer).sum(1) + found.filter(like="base_value").to_numpy()
    np.testing.assert_allclose(totals, found.filter(like="prediction"), atol=1e-5)
    expected = explainer(pd.read_parquet(source), anchor="model")
    np.testing.assert_allclose(totals, expected.values.sum(1) + expected.base_values, atol=1e-5)


def test_several_outputs_have_errors_of_their_own(conditional: Exported, tmp_path: Path) -> None:
    conditional.X[:9].to_parquet(tmp_path / "rows.parquet", index=False)
    explainer = loaded(conditional)
    name = explainer.output_names_[1]
    explainer.explain_to(tmp_path / "rows.parquet", tmp_path / "all", errors=True)
    explainer.explain_to(tmp_path / "rows.parquet", tmp_path / "one", errors=True, outputs=[name])
    every, one = read(tmp_path / "all"), read(tmp_path / "one")
    for player in explainer.player_names_:
        np.testing.assert_array_equal(every[f"error_std_{player}_{name}"], one[f"error_std_{player}"])


def test_a_run_does_not_resume_with_other_options(exported: Exported, source: Path, tmp_path: Path) -> None:
    explainer = loaded(exported)
    explainer.explain_to(source, tmp_path / "out", budget=4, part_rows=10)
    before = parts_in(tmp_path / "out")
    assert explainer.explain_to(source, tmp_path / "out", budget=4, part_rows=10).parts == 0
    for options in ({}, {"budget": 5}, {"errors": True}):
        with pytest.raises(InputError, match="belongs to a run with"):
            explainer.explain_to(source, tmp_path / "out", part_rows=10, **options)
    assert parts_in(tmp_path / "out") == before


def test_a_run_anchored_to_a_model_does_not_resume_with_another(
    exported: Exported, source: Path, tmp_path: Path
) -> None:
    explainer = loaded(exported)
    explainer.explain_to(source, tmp_path / "out", anchor="model")
    with pytest.raises(InputError, match="belongs to a run with another model"):
        explainer.set_params(model=lambda X: exported.explainer.model.predict_proba(X)[:, ::-1]).explain_to(
            source, tmp_path / "out", anchor="model"
        )


def test_what_an_explainer_cannot_give_is_refused_before_anything_is_written(
    exported: Exported, source: Path, tmp_path: Path
) -> None:
    alone = FastSHAP.load(exported.saved)
    with pytest.raises(InputError, match="the model is needed"):
        alone.explain_to(source, tmp_path / "out", anchor="model")
    without = quick(score).fit(exported.X)
    assert without.errors_ is None
    with pytest.raises(InputError, match="need error bars, which this explainer did not learn"):
        without.explain_to(source, tmp_path / "out", errors=True)
    with pytest.raises(TypeError, match=r"explain_to\(\) got unexpected keyword arguments \['bugdet'\]"):
        alone.explain_to(source, tmp_path / "out", bugdet=3)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_errors(exported: Exported, source: Path, tmp_path: Path) -> None:
    command = ["explain", str(exported.saved), str(source), "--quiet", "-o"]
    assert main([*command, str(tmp_path / "model"), "--errors"]) == 0
    assert main([*command, str(tmp_path / "game"), "--errors", "--errors-about", "game"]) == 0
    assert main([*command, str(tmp_path / "budget"), "--budget", "8", "--tol", "0.5"]) == 0
    model, game, budget = (read(tmp_path / name) for name in ("model", "game", "budget"))
    assert list(model) == list(game) == list(budget)
    columns = [name for name in map(str, model) if name.startswith("error_std_")]
    assert (model.loc[:38, columns] >= game.loc[:38, columns]).all(axis=None)
    assert not budget[columns].isna().any(axis=None)
