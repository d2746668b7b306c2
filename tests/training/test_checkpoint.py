"""Tests of checkpoints: saved states, and the run that a folder belongs to."""

from __future__ import annotations

import copy
import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import nn

from fastshapley.errors import TrainingError
from fastshapley.training.checkpoint import Checkpoint, fingerprint, stable_text
from fastshapley.value_functions import Marginal


def test_saved_states_are_loaded(tmp_path: Path) -> None:
    store = Checkpoint(tmp_path / "new" / "folder")
    assert store.load("phase") is None
    store.save("phase", {"epoch": 3, "weights": torch.arange(4)})
    state = Checkpoint(tmp_path / "new" / "folder").load("phase")
    assert state is not None
    assert state["epoch"] == 3
    assert torch.equal(state["weights"], torch.arange(4))


def test_without_a_directory_nothing_is_saved() -> None:
    store = Checkpoint(None)
    store.save("phase", {"epoch": 3})
    assert store.load("phase") is None
    assert store.claim("key", 5) == 5


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).claim("key", 5) == 5
    assert Checkpoint(tmp_path).claim("key", 6) == 5
    with pytest.raises(TrainingError, match="other data, another model or other settings"):
        Checkpoint(tmp_path).claim("another key", 5)


def test_a_damaged_state_is_reported(tmp_path: Path) -> None:
    Checkpoint(tmp_path).save("phase", {"epoch": 3})
    path = tmp_path / "phase.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match=r"phase\.pt cannot be read .* delete it"):
        Checkpoint(tmp_path).load("phase")


def test_a_damaged_run_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(TrainingError, match="cannot be read"):
        Checkpoint(tmp_path).claim("key", 0)


def test_loading_a_state_never_executes_it(tmp_path: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "executed",))  # type: ignore[return-value]

    (tmp_path / "phase.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(TrainingError):
        Checkpoint(tmp_path).load("phase")
    assert not (tmp_path / "executed").exists()


def test_fingerprints_depend_on_the_order_and_division_of_parts() -> None:
    a, b = torch.zeros(2), torch.zeros(3)
    assert fingerprint(a, b, 1) == fingerprint(a.clone(), b.clone(), 1)
    assert (
        len({fingerprint(a, b), fingerprint(b, a), fingerprint(a, 1), fingerprint("ab"), fingerprint("a", "b")})
        == 5
    )


def test_stable_text_depends_on_values_and_not_on_addresses() -> None:
    frame = pd.DataFrame({"a": range(100)})
    other = frame.copy()
    other.loc[50, "a"] = -1  # repr leaves out this row
    assert stable_text(Marginal(frame)) == stable_text(Marginal(frame.copy())) != stable_text(Marginal(other))
    torch.manual_seed(0)
    network = nn.Linear(2, 2)
    assert stable_text(network) == stable_text(copy.deepcopy(network)) != stable_text(nn.Linear(2, 2))
    tables = [pl.DataFrame({"a": [*range(99), last]}) for last in (1, 1, 2)]
    assert stable_text(tables[0]) == stable_text(tables[1]) != stable_text(tables[2])
    assert stable_text(np.zeros(3)) != stable_text(np.ones(3))
    assert stable_text(object()) == "object"  # without its address


def test_a_directory_belongs_to_one_model_up_to_rounding(tmp_path: Path) -> None:
    outputs = torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Checkpoint(tmp_path).claim_outputs(outputs)
    Checkpoint(tmp_path).claim_outputs(outputs * (1 + 1e-6))
    for other in (outputs + 0.01, outputs[:, :1]):
        with pytest.raises(TrainingError, match="another model"):
            Checkpoint(tmp_path).claim_outputs(other)
    Checkpoint(None).claim_outputs(outputs)


def test_of_several_runs_that_claim_a_directory_at_once_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them look for the file before any of them writes it."""
    together, exists = threading.Barrier(4), Path.exists

    def look(path: Path) -> bool:
        found = exists(path)
        if path.name == "run.json":
            together.wait(10)
        return found

    def claim(number: int) -> int | None:
        try:
            return Checkpoint(tmp_path).claim(f"run {number}", number)
        except TrainingError:
            return None

    monkeypatch.setattr(Path, "exists", look)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(claim, range(4)))
    [winner] = [seed for seed in found if seed is not None]
    monkeypatch.undo()
    assert Checkpoint(tmp_path).claim(f"run {winner}", 9) == winner


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the system's, with the file: torch has another one if it opens the file itself."""
    opened = Path.open

    def full(path: Path, mode: str = "r", *args: object) -> object:
        return opened(Path("/dev/full") if "w" in mode else path, mode)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"No space left on device.*phase\.pt") as raised:
        Checkpoint(tmp_path).save("phase", {"weights": torch.zeros(100_000)})
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_state_with_a_flipped_bit_is_never_another_state(tmp_path: Path) -> None:
    """Torch reads most of such files, and with other weights."""
    store, choose = Checkpoint(tmp_path), random.Random(0)
    store.save("phase", {"weights": torch.arange(1000)})
    path = tmp_path / "phase.pt"
    data = path.read_bytes()
    for place in [*range(20), *choose.sample(range(len(data)), 80)]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"phase\.pt cannot be read"):
            store.load("phase")


def test_a_state_from_before_digests_can_be_loaded(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "phase.pt")
    assert Checkpoint(tmp_path).load("phase") == {"epoch": 3}
