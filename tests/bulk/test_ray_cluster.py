"""Tests with a local Ray cluster: values are the same as without it, and killed workers or drivers lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Exported
from numpy.typing import NDArray
from problems import QUICK, explainer, numbers

from fastshapley import FastSHAP, Training
from fastshapley.cli import main
from fastshapley.errors import InputError, ModelError, PartError, TrainingError

pytest.importorskip("pyarrow", reason="needs the bulk extra")
ray = pytest.importorskip("ray", reason="needs the ray extra")
pytest.importorskip("ray.data", reason="needs the ray extra")
import pyarrow as pa  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402

from fastshapley import distributed  # noqa: E402

# Ray itself raises these warnings when it starts and stops.
pytestmark = [pytest.mark.filterwarnings("default::" + kind) for kind in ("FutureWarning", "ResourceWarning")]
pytestmark.append(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
pytestmark.append(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
PATIENCE = 300.0  # seconds to wait on a busy machine


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start a local Ray cluster with four logical processors."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    for name in (__name__, "problems"):
        ray.cloudpickle.register_pickle_by_value(sys.modules[name])  # workers cannot import the tests
    yield
    ray.shutdown()


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def parts_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def table_of(folder: Path) -> pa.Table:
    return ds.dataset(folder).to_table()


@pytest.fixture(scope="module")
def files(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write people to three files, with a number per row."""
    folder = tmp_path_factory.mktemp("files")
    X = exported.X.assign(number=np.arange(len(exported.X)))
    for place in range(3):
        X.iloc[place * 100 : (place + 1) * 100].to_parquet(folder / f"{place}.parquet", index=False)
    return folder


def test_files_give_the_same_values_as_on_one_machine(exported: Exported, files: Path, tmp_path: Path) -> None:
    exported.explainer.explain_to(files, tmp_path / "here")
    found = distributed.explain_to(exported.explainer, files, tmp_path / "there", workers=2)
    assert (found.rows, found.parts, found.kept) == (300, 3, 0)
    assert table_of(tmp_path / "there").equals(table_of(tmp_path / "here"))
    again = distributed.explain_to(exported.explainer, files, tmp_path / "there", workers=2)
    assert (again.rows, again.parts, again.kept) == (0, 0, 3)


def test_a_dataset_is_explained_with_its_keys(exported: Exported) -> None:
    X = exported.X.assign(number=np.arange(len(exported.X)))
    dataset = ray.data.from_arrow([pa.Table.from_pandas(part) for part in (X[:150], X[150:])])
    outputs = list(exported.explainer.output_names_)[1:]
    found = distributed.explain(dataset, exported.explainer, outputs=outputs, workers=2)
    frame = found.to_pandas().sort_values("number")
    assert list(frame["number"]) == list(range(len(X)))
    expected = exported.explainer(exported.X)
    np.testing.assert_array_equal(frame["shap_age"], expected.values[:, 0, 1].astype(np.float32))
    np.testing.assert_array_equal(frame["base_value"], expected.base_values[:, 1].astype(np.float32))


def test_a_dataset_without_the_columns_is_refused(exported: Exported) -> None:
    with pytest.raises(InputError, match=r"dataset lacks the column 'age' \(renamed to 'Age'\?\)"):
        distributed.explain(ray.data.from_pandas(exported.X.rename(columns={"age": "Age"})), exported.explainer)
    with pytest.raises(InputError, match=r"keys \['nobody'\]"):
        distributed.explain(ray.data.from_pandas(exported.X), exported.explainer, keys=["nobody"])
    with pytest.raises(InputError, match=r"dataset is a DataFrame"):
        distributed.explain(exported.X, exported.explainer)


class Slow:
    """A slow model that records the id of each process that calls it."""

    def __init__(self, note: Path, seconds: float = 0.05) -> None:
        self.note, self.seconds = note, seconds

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        time.sleep(self.seconds)
        (self.note / f"{os.getpid()}").touch()
        return rows @ np.arange(1.0, rows.shape[1] + 1)

    def pids(self) -> list[int]:
        """Return the ids of the processes that called the model, except this one."""
        return [int(path.name) for path in self.note.iterdir() if int(path.name) != os.getpid()]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Slow, FastSHAP]:
    """Return a slow model and an explainer whose game calls it, so that each part takes some time."""
    model = Slow(tmp_path_factory.mktemp("pids"), seconds=0.0)
    fitted = explainer(model, value_function="baseline", recipe=QUICK).fit(numbers(200))
    model.seconds = 0.05
    return model, fitted


@pytest.fixture(scope="module")
def many_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame = pd.DataFrame(numbers(2000, seed=1), columns=[f"x{j}" for j in range(4)])
    frame.assign(number=np.arange(2000)).to_parquet(path, index=False, row_group_size=50)
    return path


def test_a_worker_that_is_killed_is_replaced(slow: tuple[Slow, FastSHAP], many_parts: Path, tmp_path: Path) -> None:
    model, fitted = slow
    fitted.explain_to(many_parts, tmp_path / "here", part_rows=50)
    for path in model.note.iterdir():
        path.unlink()
    killed = []

    def kill() -> None:
        until(lambda: len(parts_of(tmp_path / "there")) >= 3)
        killed.extend(model.pids()[:1])
        os.kill(killed[0], signal.SIGKILL)

    hand = threading.Thread(target=kill)
    hand.start()
    found = distributed.explain_to(fitted, many_parts, tmp_path / "there", part_rows=50, workers=2)
    hand.join()
    assert killed
    assert found.parts == 40
    assert table_of(tmp_path / "there").equals(table_of(tmp_path / "here"))
    assert not list((tmp_path / "there").glob("_0*"))  # unfinished files of the killed worker


def test_a_run_with_a_killed_driver_resumes_with_the_missing_parts(
    slow: tuple[Slow, FastSHAP], many_parts: Path, tmp_path: Path
) -> None:
    _, fitted = slow
    fitted.explain_to(many_parts, tmp_path / "here", part_rows=50)
    (tmp_path / "explainer.pkl").write_bytes(ray.cloudpickle.dumps(fitted))
    script = f"""
        import pickle, sys
        sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
        from fastshapley import distributed
        explainer = pickle.load(open({str(tmp_path / "explainer.pkl")!r}, "rb"))
        rows, output = {str(many_parts)!r}, {str(tmp_path / "out")!r}
        distributed.explain_to(explainer, rows, output, part_rows=50, workers=2)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    until(lambda: len(parts_of(tmp_path / "out")) >= 3 or driver.poll() is not None)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    time.sleep(1.0)  # its workers finish their parts or die with it
    before = {path: path.stat().st_mtime_ns for path in parts_of(tmp_path / "out")}
    assert 3 <= len(before) < 40
    found = distributed.explain_to(fitted, many_parts, tmp_path / "out", part_rows=50, workers=2)
    assert 0 < found.parts <= 37
    kept = sum(path.stat().st_mtime_ns == time for path, time in before.items())
    assert kept >= found.kept
    table = table_of(tmp_path / "out")
    assert table["number"].to_pylist() == list(range(2000))
    assert table.equals(table_of(tmp_path / "here"))


def test_a_part_that_cannot_be_read_is_named(exported: Exported, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for path in files.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    data = bytearray((folder / "1.parquet").read_bytes())
    data[20:400] = bytes(380)  # damages pages, but not the metadata
    (folder / "1.parquet").write_bytes(data)
    with pytest.raises(PartError, match=r"1\.parquet, row groups 0 to 1"):
        distributed.explain_to(exported.explainer, folder, tmp_path / "out", workers=1)


def test_an_address_without_a_cluster_is_reported(exported: Exported, files: Path, tmp_path: Path) -> None:
    script = f"""
        from fastshapley.cli import main
        raise SystemExit(main(["explain", {str(exported.saved)!r}, {str(files)!r}, "-o", {str(tmp_path / "out")!r},
                               "--ray", "127.0.0.1:9", "--quiet"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert "no Ray cluster at '127.0.0.1:9'" in done.stderr.strip().splitlines()[-1]


def test_the_command_uses_the_cluster(
    exported: Exported, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "out")
    assert (
        main(["explain", str(exported.saved), str(files), "-o", output, "--ray", "--workers", "2", "--quiet"]) == 0
    )
    assert "300 rows explained in 3 parts" in capsys.readouterr().out
    exported.explainer.explain_to(files, tmp_path / "here")
    assert table_of(tmp_path / "out").equals(table_of(tmp_path / "here"))


def linear(rows: Any) -> NDArray[np.float64]:
    return np.asarray(rows) @ np.array([1.0, -2.0, 3.0, 0.5]) + np.asarray(rows)[:, 0] * np.asarray(rows)[:, 1]


def frame_of(rows: int, seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(numbers(rows, seed=seed), columns=list("abcd"))


def accuracy(fitted: FastSHAP, rows: pd.DataFrame) -> NDArray[np.float64]:
    """Return the log mean squared errors of the values to their game, and of the game to the model."""
    values, found = fitted.estimate(rows).values[..., 0], fitted(rows)
    gaps = found.values.sum(1) + found.base_values - linear(rows)
    return np.log([np.square(found.values - values).sum(1).mean(), np.square(gaps).mean()])


def test_training_is_as_accurate_as_on_one_machine() -> None:
    X, rows = frame_of(2000), frame_of(256, seed=1)
    seeds = 6
    here = np.array([accuracy(explainer(linear, recipe=QUICK, random_state=k).fit(X), rows) for k in range(seeds)])
    dataset = ray.data.from_pandas([X[:700], X[700:1100], X[1100:]])
    there = explainer(linear, recipe=QUICK).fit(dataset, scaling=2)
    assert list(there.feature_names_in_) == list("abcd")
    assert there.report_ is not None
    spread = here.std(0, ddof=1) * np.sqrt(1 + 1 / seeds)
    # The result is as likely as one more seed: 6.9 standard errors cover 99.9 % with six seeds.
    assert (np.abs(accuracy(there, rows) - here.mean(0)) < 6.87 * spread).all()


def test_a_fit_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    model = Slow(tmp_path / "pids", seconds=0.0)
    kept = tmp_path / "checkpoint" / "fit"
    surrogate = kept / "surrogate.pt"
    trained: list[int] = []

    def kill() -> None:
        until((kept / "scale.pt").exists)  # the surrogate is trained, and the explainer's training begins
        trained.append(surrogate.stat().st_mtime_ns)
        os.kill(model.pids()[0], signal.SIGKILL)

    long = replace(QUICK, explainer=Training(steps=1500, batch_size=32))
    hand = threading.Thread(target=kill)
    hand.start()
    fitted = explainer(model, recipe=long).fit(
        ray.data.from_pandas(frame_of(600)), scaling=2, checkpoint=tmp_path / "checkpoint"
    )
    hand.join()
    assert surrogate.stat().st_mtime_ns == trained[0]  # it was not trained again
    assert fitted.report_ is not None
    assert fitted.report_.relative_squared_error < 0.2


def test_an_error_of_the_model_ends_a_fit_and_is_reported() -> None:
    def broken(rows: Any) -> Any:
        raise KeyError("no such column")

    with pytest.raises(TrainingError, match=r"model failed on .* KeyError: 'no such column'"):
        explainer(broken, recipe=QUICK).fit(ray.data.from_pandas(frame_of(100)), scaling=2)


def test_invalid_scaling_is_refused() -> None:
    with pytest.raises(InputError, match=r"scaling is 2, but X is not a ray.data.Dataset"):
        explainer(linear, recipe=QUICK).fit(frame_of(100), scaling=2)
    with pytest.raises(InputError, match=r"scaling is 'two'"):
        explainer(linear, recipe=QUICK).fit(ray.data.from_pandas(frame_of(100)), scaling="two")
    with pytest.raises(InputError, match=r"X_val is a DataFrame"):
        explainer(linear, recipe=QUICK).fit(ray.data.from_pandas(frame_of(100)), X_val=frame_of(10), scaling=2)


def test_a_spread_model_is_called_by_all_workers(tmp_path: Path) -> None:
    model = Slow(tmp_path, seconds=0.01)
    shared = distributed.spread(model, workers=2)
    rows = numbers(101)
    np.testing.assert_array_equal(shared(rows), model(rows))
    assert len(model.pids()) == 2
    os.kill(model.pids()[0], signal.SIGKILL)
    np.testing.assert_array_equal(shared(rows[:1]), model(rows[:1]))
    np.testing.assert_array_equal(shared(rows), model(rows))
    fitted = explainer(shared, value_function="baseline", recipe=QUICK).fit(rows)
    expected = (rows[:3] - rows.mean(0)) * np.arange(1.0, 5.0)
    np.testing.assert_allclose(fitted.estimate(rows[:3]).values[..., 0].sum(1), expected.sum(1), atol=2.0)


def test_an_error_of_a_spread_model_is_reported() -> None:
    def broken(rows: Any) -> Any:
        raise KeyError("no such column")

    with pytest.raises(ModelError, match=r"no such column"):
        distributed.spread(broken, workers=1)(numbers(3))
    with pytest.raises(ModelError, match=r"model is of type int"):
        distributed.spread(3)


def test_a_conditional_game_warns_once_and_sums_alike_on_all_workers(
    conditional: Exported, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rows").mkdir()
    for place in range(3):
        conditional.X[place * 10 : place * 10 + 10].to_parquet(tmp_path / "rows" / f"{place}.parquet", index=False)
    alone = FastSHAP.load(conditional.saved)
    alone.progress = False
    found = distributed.explain_to(alone, tmp_path / "rows", tmp_path / "alone", workers=2)
    assert found.sums_to == "surrogate"
    assert caplog.text.count("values sum to the surrogate's output") == 1
    found = distributed.explain_to(conditional.explainer, tmp_path / "rows", tmp_path / "whole", workers=2)
    assert found.sums_to == "model"
    for fitted, name in ((alone, "alone"), (conditional.explainer, "whole")):
        column = f"shap_age_{fitted.output_names_[1]}"
        expected = fitted(conditional.X[:30]).values[:, 0, 1]
        np.testing.assert_allclose(table_of(tmp_path / name)[column].to_numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_conditional_game_is_fitted_by_several_workers() -> None:
    X = numbers(200, 3)
    rows = pd.DataFrame(X, columns=["a", "b", "c"])

    def model(frame: pd.DataFrame) -> NDArray[np.float64]:
        return frame["a"].to_numpy() * frame["b"].to_numpy()

    fitted = explainer(model, value_function="conditional").fit(ray.data.from_pandas(rows), scaling=2)
    explanation = fitted(rows[:20])
    assert explanation.sums_to == "model"
    np.testing.assert_allclose(explanation.values.sum(1) + explanation.base_values, model(rows[:20]), atol=1e-9)
