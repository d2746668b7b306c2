"""Tests of the paper's tabular experiments, on a few rows of the census table."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from read_only_store import ReadOnly

from fastshapley.cli import main
from fastshapley.paper import table_experiments as experiments_module
from fastshapley.paper import table_page as page
from fastshapley.paper import table_run as tabular
from fastshapley.paper.store import Store
from fastshapley.paper.table_experiments import (
    ESTIMATORS,
    FULL,
    CurvePiece,
    ExplainerPiece,
    GamePiece,
    TableExperiments,
    TableScale,
)
from fastshapley.paper.table_settings import TABLES

TINY = TableScale(test_rows=8, train_rows=300, epochs=1, share=0.02, samples=(1, 4), evaluations=40, truth=64)
needs_census = pytest.mark.skipif(
    not (Path(os.environ.get("FASTSHAPLEY_DATA", "/nowhere")) / "census" / "adult.data").is_file(),
    reason="set FASTSHAPLEY_DATA to a folder that holds census/adult.data",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return run(folder, TableExperiments(Store(folder / "store"), TINY))


def run(folder: Path, experiments: TableExperiments) -> dict[str, Any]:
    """Run the experiments on the census in one other process."""
    return tabular.write_results(
        experiments, folder / "results", ["census"], "a test --quick", workers=1, progress=False
    )


def same_values(path: Path, values: NDArray[np.float64]) -> bool:
    with np.load(path) as arrays:
        return np.array_equal(arrays["raw"], values)


@needs_census
class TestRunOnCensus:
    def test_every_experiment_has_results(self, found: dict[str, Any]) -> None:
        (game,) = found["games"]
        assert (game["table"], game["game"], game["players"], game["rows"]) == ("census", "surrogate", 12, 8)
        assert set(game["explainers"]) == {"paper", "default"}
        assert set(game["estimators"]) == set(game["evaluations_to_match"]) == set(ESTIMATORS)
        assert {(p["samples"], p["paired"]) for p in found["samples"]["census"]} == {
            (2, True),
            (4, True),
            (1, False),
            (4, False),
        }
        assert len({(p["recipe"], p["normalize"], p["penalty"]) for p in found["ablation"]["census"]}) == 12

    def test_errors_are_mean_distances_to_the_reference_values(self, found: dict[str, Any], folder: Path) -> None:
        (game,) = found["games"]
        experiments = TableExperiments(Store(folder / "store"), TINY)
        truth = experiments.truth(GamePiece("census"))["values"]
        values = experiments.explainer(ExplainerPiece(GamePiece("census"), "default"))["values"]
        distances = np.sqrt(((values - truth) ** 2).sum((1, 2)))
        assert game["explainers"]["default"]["l2"] == pytest.approx(distances.mean())
        assert game["explainers"]["default"]["l2_interval"] == pytest.approx(
            1.96 * distances.std(ddof=1) / np.sqrt(8)
        )
        assert game["truth_error"] == 0  # exact

    def test_explainers_shared_by_two_experiments_are_trained_once(
        self, found: dict[str, Any], folder: Path
    ) -> None:
        """The explainers of the main figure are also part of the ablation."""
        shared = [p for p in found["ablation"]["census"] if (p["normalize"], p["penalty"]) == ("always", 0)]
        (game,) = found["games"]
        assert {p["recipe"]: p["l2"] for p in shared} == {
            arm: game["explainers"][arm]["l2"] for arm in ("paper", "default")
        }
        assert (
            len(list((folder / "store" / "explainers").glob("*.npz"))) == 8 + 4
        )  # the ablation, and the numbers of samples

    def test_normalization_at_inference_reduces_the_error(self, found: dict[str, Any]) -> None:
        """It projects the values of the same network onto a space that contains the reference values."""
        for penalty in (0.0, 0.1):
            l2 = {
                p["normalize"]: p["l2"]
                for p in found["ablation"]["census"]
                if p["recipe"] == "paper" and p["penalty"] == penalty
            }
            assert l2["inference"] < l2["never"]

    def test_a_second_run_only_reads_the_store(self, found: dict[str, Any], folder: Path) -> None:
        written = {path.name: path.read_bytes() for path in (folder / "results").iterdir()}
        assert run(folder, TableExperiments(ReadOnly(folder / "store"), TINY)) == found
        assert {path.name: path.read_bytes() for path in (folder / "results").iterdir()} == written

    def test_a_deleted_result_is_computed_again_with_the_same_values(
        self, found: dict[str, Any], folder: Path
    ) -> None:
        experiments = TableExperiments(Store(folder / "store"), TINY)
        explainer = ExplainerPiece(GamePiece("census"), "paper", samples=4)
        before = experiments.explainer(explainer)
        files = set((folder / "store" / "explainers").iterdir())
        (lost,) = [path for path in files if path.suffix == ".npz" and same_values(path, before["raw"])]
        lost.unlink()
        assert not experiments.has(explainer)
        experiments.compute(explainer)
        assert set((folder / "store" / "explainers").iterdir()) == files
        np.testing.assert_array_equal(experiments.explainer(explainer)["values"], before["values"])

    def test_results_figures_and_page_are_written(self, found: dict[str, Any], folder: Path) -> None:
        output = folder / "results"
        assert json.loads((output / "tabular.json").read_text()) == json.loads(json.dumps(found))
        for name in ("tabular-evaluations", "tabular-samples"):
            assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")
            assert "<svg" in (output / f"{name}.svg").read_text()
        text = (output / "tabular.md").read_text()
        assert "A quick run" in text
        assert ".0229 ± .0025" in text  # as printed in the paper
        assert page._number(found["games"][0]["explainers"]["default"]["l2"]) in text

    def test_notes_are_added_to_the_page(self, found: dict[str, Any]) -> None:
        assert "Because." in page.page(found, [], "Because.\n")

    def test_another_scale_is_stored_separately(self, found: dict[str, Any], folder: Path) -> None:
        game = GamePiece("census")
        changes: list[dict[str, Any]] = [{"test_rows": 9}, {"train_rows": 301}, {"epochs": 2}]
        for changed in changes:
            experiments = TableExperiments(Store(folder / "store"), replace(TINY, **changed))
            assert not experiments.has(game)
            assert not experiments.has(CurvePiece(game, "permutation"))
            assert not experiments.has(ExplainerPiece(game, "paper"))
        fewer = TableExperiments(Store(folder / "store"), replace(TINY, evaluations=41, share=0.03))
        assert fewer.has(game)
        assert fewer.has(ExplainerPiece(game, "paper"))
        assert not fewer.has(ExplainerPiece(game, "default"))
        assert not fewer.has(CurvePiece(game, "permutation"))

    def test_results_of_other_code_are_stored_separately(
        self, found: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(experiments_module, "revision", lambda: "another")
        assert not TableExperiments(Store(folder / "store"), TINY).has(ExplainerPiece(GamePiece("census"), "paper"))

    def test_a_failed_piece_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pieces run in other processes, so an empty data file causes the failure."""
        broken = tmp_path / "data" / "census" / "adult.data"
        broken.parent.mkdir(parents=True)
        broken.write_text("")
        monkeypatch.setenv("FASTSHAPLEY_DATA", str(tmp_path / "data"))
        with pytest.raises(Exception, match=r".") as caught:
            run(tmp_path, TableExperiments(Store(tmp_path / "store"), TINY))
        assert any("GamePiece(table='census'" in note for note in caught.value.__notes__)


def test_a_full_run_has_all_pieces_once() -> None:
    games, rest = tabular.pieces(list(TABLES), FULL.samples)
    assert len(games) == 6  # four tables; marketing also with the marginal and the baseline game
    explainers = [piece for piece in rest if isinstance(piece, ExplainerPiece)]
    by_samples, ablation, others = 4 * 12, 4 * 8, 2 * 2
    assert len(explainers) == by_samples + ablation + others - 4  # explainers with 32 paired samples are in both
    assert len(rest) - len(explainers) == 6 * len(ESTIMATORS)


def test_an_unknown_table_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["paper", "tabular", "--only", "census", "titanic", "--output", str(tmp_path)])
    assert stop.value.code == 2
    assert "titanic" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
