"""Tests of the pool that computes the missing pieces of an experiment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kept_pieces import SquareFiles

from fastshapley.paper.pool import compute_all


def test_zero_workers_compute_in_this_process(tmp_path: Path) -> None:
    work = SquareFiles(tmp_path)
    compute_all(work, [[1, 2], [3]], "test", 0, progress=False)
    assert work.results() == {1: 1, 2: 4, 3: 9}
    assert work.processes() == {os.getpid()}


def test_workers_compute_in_other_processes(tmp_path: Path) -> None:
    work = SquareFiles(tmp_path)
    compute_all(work, [[1, 2], [3]], "test", 1, progress=False)
    assert work.results() == {1: 1, 2: 4, 3: 9}
    assert os.getpid() not in work.processes()


def test_pieces_in_the_store_are_not_computed_again(tmp_path: Path) -> None:
    (tmp_path / "2").write_text("7 0")
    work = SquareFiles(tmp_path)
    compute_all(work, [[1, 2]], "test", 0, progress=False)
    assert work.results() == {1: 1, 2: 7}


def test_a_failed_piece_is_named_and_the_rest_of_its_stage_is_kept(tmp_path: Path) -> None:
    work = SquareFiles(tmp_path, broken=(2,))
    with pytest.raises(ValueError, match="2 is broken") as caught:
        compute_all(work, [[1, 2, 3], [4]], "test", 0, progress=False)
    assert caught.value.__notes__ == ["in 2; 1 pieces failed: run the same command again to retry them"]
    assert work.results() == {1: 1, 3: 9}  # the next stage did not start


def test_the_progress_bar_counts_all_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "1").write_text("1 0")
    compute_all(SquareFiles(tmp_path), [[1], [2]], "squares", 0, progress=True)
    shown = capsys.readouterr().err
    assert "squares: 100%" in shown
    assert "2/2" in shown
