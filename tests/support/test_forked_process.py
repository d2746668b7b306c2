"""Tests of processes that are forked after an explanation."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Exported

SECONDS = 60  # A process that waits for threads it does not have would never end.
SCRIPT = """
    import multiprocessing, os, sys, threading
    import numpy as np, pandas as pd, torch
    from fastshapley import FastSHAP

    torch.set_num_threads(4)  # also where there are fewer processors
    explainer = FastSHAP.load(sys.argv[1])
    X = pd.concat([pd.read_pickle(sys.argv[2])] * 30)
    values = explainer(X).values
    assert torch.get_num_threads() == 4

    def explain(where):
        assert np.allclose(explainer(X).values, values, atol=1e-6), where

    child = os.fork()
    if child == 0:
        status = 1
        try:
            explain("child")
            thread = threading.Thread(target=explain, args=["thread of the child"])
            thread.start()
            thread.join()
            torch.nn.functional.conv2d(torch.randn(8, 3, 64, 64), torch.randn(16, 3, 3, 3))
            assert torch.get_num_threads() == 1
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(explain, ["pool"] * 4)
    assert torch.get_num_threads() == 4
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_after_an_explanation_explains(exported: Exported, tmp_path: Path) -> None:
    exported.X.to_pickle(tmp_path / "X.pkl")
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT)]
    process = subprocess.Popen([*command, str(exported.saved), str(tmp_path / "X.pkl")], start_new_session=True)
    try:
        assert process.wait(SECONDS) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)  # the forked process too
            process.wait()
