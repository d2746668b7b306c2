"""Tests of processes that train together: they agree, and they learn from the rows of all processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fastshapley import FastSHAP
from fastshapley.data.column import Column
from fastshapley.data.table_schema import TableSchema
from fastshapley.errors import InputError
from fastshapley.fit.held_out import hold_out
from fastshapley.training.process_group import ProcessGroup
from fastshapley.training.run import Run

HERE = Path(__file__).parents[1]  # the folder of problems.py
PROGRAM = """
    import os, signal, sys
    import numpy as np, pandas as pd, torch
    import torch.distributed as dist
    sys.path.insert(0, {here!r})
    from dataclasses import replace
    from pathlib import Path
    from problems import QUICK, explainer, people, people_model
    from fastshapley.networks.table_encoder import TableEncoder
    from fastshapley.training.process_group import ProcessGroup

    torch.set_num_threads(1)
    folder = Path({folder!r})
    dist.init_process_group("gloo", f"file://{{folder / 'meeting'}}", rank=int(sys.argv[1]), world_size={processes})
    processes = ProcessGroup(together=True)
"""


def together(folder: Path, program: str, processes: int = 2) -> list[tuple[int, str]]:
    """Run a program in several processes that form a process group.

    Returns each one's return code and standard error. They are started without torchrun, which would import torch
    once more; as with torchrun, the death of one ends the others.
    """
    path = folder / "program.py"
    start = textwrap.dedent(PROGRAM).format(here=str(HERE), folder=str(folder), processes=processes)
    path.write_text(start + textwrap.dedent(program) + "\ndist.destroy_process_group()\n")
    (folder / "meeting").unlink(missing_ok=True)
    started, logs = [], [folder / f"stderr {rank}.txt" for rank in range(processes)]
    for rank, log in enumerate(logs):
        with log.open("w") as stderr:
            started.append(subprocess.Popen([sys.executable, str(path), str(rank)], stderr=stderr))
    end = time.monotonic() + 300
    while any(process.poll() is None for process in started):
        if time.monotonic() > end or any(process.poll() for process in started):
            for process in started:
                process.kill()
        time.sleep(0.02)
    return [(process.wait(), log.read_text()) for process, log in zip(started, logs, strict=True)]


def assert_well(done: list[tuple[int, str]]) -> None:
    assert [code for code, _ in done] == [0] * len(done), done


AGREEMENT = """
    rows = torch.tensor([[1.0, float("nan")], [2.0, 4.0]]) if processes.rank == 0 else torch.tensor([[6.0, 8.0]])
    assert processes.total(processes.rank + 1) == 3
    assert processes.mean(rows[:, :1]).tolist() == [3.0]
    assert processes.average(float(processes.rank)) == 0.5
    assert not processes.all(processes.rank == 0) and processes.all(True)
    assert processes.everyone(processes.rank) == [0, 1]
    assert processes.share(lambda: f"from {processes.rank}") == "from 0"
    assert processes.gather(rows[:, :1], 2).tolist() == [[1.0], [6.0]]
    encoder = TableEncoder.fitted(rows.double(), [0, 0], processes=processes)
    assert encoder.flags.tolist() == [1]
    np.testing.assert_allclose(encoder.mean, [3.0, 6.0])
    np.testing.assert_allclose(encoder.scale, [(14 / 3) ** 0.5, 2.0])
    (folder / f"{processes.rank}").touch()
"""
ALL_ROWS = """
    X, y = people(800)
    order = X["job"].isna().to_numpy() | (X["job"] == "nurse").to_numpy()  # only in the first process
    share = X[order] if processes.rank == 0 else X[~order].assign(age=lambda f: f["age"].astype(float))
    fitted = explainer(people_model(X, y)).fit(share, scaling="torchrun")
    assert fitted.schema_.columns[2].categories == ("chef", "clerk", "nurse")
    assert fitted.schema_.columns[0].dtype == "float64"
    np.save(folder / f"learnt {processes.rank}.npy", fitted.shap_values(X))
    fitted.save(folder / f"{processes.rank}.fastshap")
"""
BACKGROUND = """
    X, y = people(400)
    share = X[processes.rank :: 2]
    fitted = explainer(people_model(X, y), value_function="marginal").fit(share, scaling="torchrun")
    np.save(folder / f"rows {processes.rank}.npy", fitted.value_function_.rows_.numpy())
    np.save(folder / f"values {processes.rank}.npy", fitted.shap_values(X))
"""
OTHER_WORK = """
    from fastshapley.errors import TrainingError
    X, y = people(400)
    model = people_model(X, y)
    def fit(model, X, first=0):
        share = X[(processes.rank + first) % 2 :: 2]
        return explainer(model).fit(share, scaling="torchrun", checkpoint=folder / "one")
    fit(model, X)
    fit(model, X, first=1)  # the same rows, divided differently
    refused = []
    for others in ((people_model(X, y[::-1]), X), (model, X.assign(age=X["age"] + 20))):
        try:
            fit(*others)
        except TrainingError as error:
            refused.append("belongs to a run with other data" in str(error))
    np.save(folder / f"refused {processes.rank}.npy", refused)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the programs above in the same two processes and return the folder that they write to."""
    folder = tmp_path_factory.mktemp("together")
    program = "".join(map(textwrap.dedent, (AGREEMENT, ALL_ROWS, BACKGROUND, OTHER_WORK)))
    assert_well(together(folder, program))
    return folder


def test_processes_agree_on_totals_means_and_scales(ran: Path) -> None:
    assert (ran / "0").exists()
    assert (ran / "1").exists()


def test_processes_exit_without_an_abort(tmp_path: Path) -> None:
    """A torch thread that still waits when the interpreter exits would abort the process."""
    program = """
        processes.parallel(torch.nn.Linear(2, 1), torch.sum)
        sys.setswitchinterval(1000)  # other threads run only while this one waits
        processes.everyone(processes.rank)
        processes.rest()
    """
    done = together(tmp_path, program)
    assert_well(done)


def test_all_processes_learn_the_same_from_all_rows(ran: Path) -> None:
    first, second = (np.load(ran / f"learnt {rank}.npy") for rank in (0, 1))
    np.testing.assert_array_equal(first, second)
    fitted = FastSHAP.load(ran / "1.fastshap")
    assert fitted.report_ is not None
    assert fitted.report_.relative_squared_error < 0.3


def test_all_processes_have_the_same_background_rows(ran: Path) -> None:
    for what in ("rows", "values"):
        first, second = (np.load(ran / f"{what} {rank}.npy") for rank in (0, 1))
        np.testing.assert_array_equal(first, second)


def test_a_killed_fit_resumes_and_gives_the_same_values(tmp_path: Path) -> None:
    fit = """
        X, y = people(400)
        model = people_model(X, y)
        recipe = replace(QUICK, explainer=replace(QUICK.explainer, steps=400))
        class Layer(torch.nn.Linear):  # one process dies while the explainer is trained
            calls = 0
            def forward(self, inputs):
                Layer.calls += self.training
                if {killed} and Layer.calls == 200 and processes.rank == 1:
                    (folder / "dies").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().forward(inputs)
        import fastshapley.training.checkpoint
        fastshapley.training.checkpoint.SAVE_INTERVAL = 0.0
        torch.manual_seed(0)
        network = torch.nn.Sequential(Layer({inputs}, 16), torch.nn.SiLU(), torch.nn.Linear(16, 10))
        fitted = explainer(model, recipe=recipe, network=network)
        fitted.set_params(random_state=3)
        fitted.fit(X[processes.rank :: 2], scaling="torchrun", checkpoint=folder / "{folder}")
        np.save(folder / f"{folder} {{processes.rank}}.npy", fitted.shap_values(X))
    """
    from problems import explainer, people, people_model

    X, y = people(400)
    inputs = explainer(people_model(X, y)).fit(X).network_.encoder(torch.zeros(1, X.shape[1])).shape[1]
    killed = together(tmp_path, fit.format(killed=True, inputs=inputs, folder="one"))
    assert (tmp_path / "dies").exists(), killed
    assert killed[1][0] == -signal.SIGKILL
    assert (tmp_path / "one" / "explainer.pt").exists(), killed
    before = (tmp_path / "one" / "surrogate.pt").stat().st_mtime_ns
    again = "".join(
        textwrap.dedent(fit).format(killed=False, inputs=inputs, folder=name) for name in ("one", "two")
    )
    assert_well(together(tmp_path, again))
    assert (tmp_path / "one" / "surrogate.pt").stat().st_mtime_ns == before
    one, two = (np.load(tmp_path / f"{name} 0.npy") for name in ("one", "two"))
    np.testing.assert_array_equal(one, two)


def test_a_checkpoint_of_another_model_or_of_other_rows_is_refused(ran: Path) -> None:
    for rank in (0, 1):
        assert np.load(ran / f"refused {rank}.npy").tolist() == [True, True]


def test_held_out_rows_do_not_depend_on_how_rows_are_divided() -> None:
    rows = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    processes: Any = SimpleNamespace(size=2, rank=0)

    def held_out(order: torch.Tensor) -> set[float]:
        shares = [hold_out(rows[part], Run(0, processes=processes))[1] for part in order.chunk(2)]
        return set(torch.cat([share[:] for share in shares])[:, 0].tolist())

    first, again = held_out(torch.arange(1000)), held_out(torch.arange(1000).flip(0).roll(123))
    assert first == again
    assert abs(len(first) - 200) < 5 * math.sqrt(1000 * 0.2 * 0.8)


OWN = """
from dataclasses import replace
from fastshapley.training import recipes
from problems import QUICK

def quick(rows, players, *, noisy=False):  # faster than the default recipe
    steps = 600
    return replace(
        QUICK,
        surrogate=tuple(replace(stage, steps=steps) for stage in QUICK.surrogate),
        explainer=replace(QUICK.explainer, steps=steps),
    )

recipes.default = quick

def model(rows):
    return rows.to_numpy() @ [1.0, 2.0, -1.0]
"""


def test_the_fit_command_runs_under_torchrun(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 3)), columns=list("abc"))
    frame.assign(label=1).to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "mine.py").write_text(OWN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    given = ["fastshapley", "fit", "mine:model", "rows.parquet", "--drop", "label", "-o", "it.fastshap", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run(
        [*command, *given], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    fitted = FastSHAP.load(tmp_path / "it.fastshap")
    assert list(fitted.feature_names_in_) == list("abc")
    np.testing.assert_allclose(fitted.shap_values(frame[:50])[:, 1], 2 * frame["b"][:50], atol=0.7)


def test_torchrun_scaling_needs_a_process_group() -> None:
    with pytest.raises(InputError, match=r"scaling is 'torchrun', but there is no process group"):
        ProcessGroup(together=True)


def test_a_group_of_one_process_returns_its_own_values() -> None:
    processes, rows = ProcessGroup(), torch.arange(6.0).reshape(3, 2)
    assert (processes.rank, processes.size, processes.total(5), processes.average(0.5)) == (0, 1, 5, 0.5)
    assert processes.gather(rows, 1) is rows
    assert processes.mean(rows).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (([1, 2], [3, 4]), Column("c", "int64")),
        (([1, 2], [3.5, None]), Column("c", "float64")),
        ((["a", None], ["b", "a"]), ("a", "b")),
        (([None, None], ["b", "a"]), ("a", "b")),
        (([True, False], [True, None]), Column("c", "object", (False, True), gap="none")),
    ],
)
def test_columns_of_several_processes_are_merged(parts: tuple[list[Any], list[Any]], expected: Any) -> None:
    found = Column.merged([Column.of("c", pd.Series(part)) for part in parts])
    if isinstance(expected, Column):
        assert found == expected
    else:
        assert found.categories == expected


def test_numbers_and_text_cannot_be_merged() -> None:
    parts = [Column.of("c", pd.Series(part, dtype=object)) for part in (["a"], [1.5])]
    with pytest.raises(InputError, match=r"column 'c' holds numbers in one part of the rows, and text in another"):
        Column.merged(parts)


def test_merged_categories_keep_their_order() -> None:
    parts = [Column.of("c", pd.Series(pd.Categorical(["x"], categories=k))) for k in (["x", "b"], ["x", "b", "a"])]
    assert Column.merged(parts).categories == ("x", "b", "a")
    schema = TableSchema.of(pd.DataFrame({"c": [1]}))
    assert schema.agreed([schema]) is schema
