"""Tests of fits that are interrupted or killed, and resumed from a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import explainer, numbers

from fastshapley.data.model_adapter import AGAIN_ROWS
from fastshapley.errors import TrainingError
from fastshapley.training.checkpoint import Checkpoint


class TestLongRuns:
    SCRIPT = """
        import sys, numpy as np, torch
        from problems import QUICK, explainer, numbers
        from dataclasses import replace
        from fastshapley import Training
        import fastshapley.training.checkpoint
        torch.set_num_threads(1)
        fastshapley.training.checkpoint.SAVE_INTERVAL = -1.0
        recipe = replace(QUICK, explainer=Training(epochs=int(sys.argv[3]), batch_size=8, schedule="cosine"))
        model = lambda rows: np.sin(rows[:, 0]) * rows[:, 1]
        fitted = explainer(model, recipe=recipe).fit(numbers(), checkpoint=sys.argv[1])
        np.save(sys.argv[2], fitted.shap_values(numbers()))
    """

    def start(self, *arguments: Any) -> subprocess.Popen[bytes]:
        script = textwrap.dedent(self.SCRIPT)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], env=environment)

    def test_a_killed_run_resumes_and_gives_the_same_values(self, tmp_path: Path) -> None:
        epochs = 60
        killed = self.start(tmp_path / "work", tmp_path / "never.npy", epochs)
        deadline = time.monotonic() + 120
        state = tmp_path / "work" / "explainer.pt"
        while not state.exists():
            assert killed.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert not (tmp_path / "never.npy").exists()
        kept = Checkpoint(state.parent).load("explainer")
        assert kept is not None
        assert 0 < kept["epoch"] < epochs

        assert self.start(tmp_path / "work", tmp_path / "resumed.npy", epochs).wait() == 0
        assert self.start(tmp_path / "other", tmp_path / "whole.npy", epochs).wait() == 0
        assert np.array_equal(np.load(tmp_path / "resumed.npy"), np.load(tmp_path / "whole.npy"))

    def test_a_checkpoint_of_another_run_raises(self, tmp_path: Path) -> None:
        X = numbers()
        explainer(lambda rows: rows[:, 0], value_function="surrogate").fit(X, checkpoint=tmp_path)
        calls = []

        def counting(rows: Any) -> Any:
            calls.append(len(rows))
            return rows[:, 0]

        explainer(counting, value_function="surrogate").fit(X, checkpoint=tmp_path)
        assert sum(calls) == len(X) + 20 + AGAIN_ROWS  # the trial, the report, the trial again; others are kept
        for model, options in (
            (lambda rows: rows[:, 1], {}),
            (counting, {"penalty": 1.0}),
            (counting, {"random_state": 2}),
        ):
            with pytest.raises(TrainingError, match="another model or other settings"):
                explainer(model, value_function="surrogate", **options).fit(X, checkpoint=tmp_path)

    def test_outputs_of_a_slow_model_are_kept_after_an_interruption(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fastshapley.value_functions.labels.SAVE_SECONDS", 0.05)
        X = numbers()
        calls: list[int] = []

        def slow(rows: Any) -> Any:
            if interrupted and sum(calls) > 1.5 * len(X):  # the trial and half of the rows
                raise KeyboardInterrupt
            calls.append(len(rows))
            time.sleep(0.001 * len(rows))
            return rows[:, 0]

        interrupted = True
        with pytest.raises(KeyboardInterrupt):
            explainer(slow, value_function="surrogate").fit(X, checkpoint=tmp_path)
        assert sum(calls) > 1.5 * len(X)
        interrupted, calls = False, []
        resumed = explainer(slow, value_function="surrogate").fit(X, checkpoint=tmp_path).shap_values(X)
        assert sum(calls) < 1.7 * len(X)  # the trial, the report and the other half
        assert np.array_equal(
            resumed, explainer(lambda rows: rows[:, 0], value_function="surrogate").fit(X).shap_values(X)
        )

    def test_a_resumed_run_without_a_seed_uses_that_of_the_first_run(self, tmp_path: Path) -> None:
        X = numbers()
        first = explainer(lambda rows: rows[:, 0], random_state=None).fit(X, checkpoint=tmp_path)
        second = explainer(lambda rows: rows[:, 0], random_state=None).fit(X, checkpoint=tmp_path)
        assert np.array_equal(first.shap_values(X), second.shap_values(X))
