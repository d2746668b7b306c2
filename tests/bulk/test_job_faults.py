"""Tests of bulk jobs that fail: finished parts are kept, errors name the part, and no row is written twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from problems import numbers, people

from fastshapley import FastSHAP
from fastshapley.cli import main
from fastshapley.errors import InputError, PartError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

import pyarrow.parquet as pq  # noqa: E402
from bulks import (  # noqa: E402
    ROWS,
    assert_explains,
    chances,
    features,
    keyed,
    only_whole_files,
    parts_in,
    quick,
    read,
    write_many,
)


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    return quick(chances).fit(people()[0])


@pytest.fixture(scope="module")
def saved(fitted: FastSHAP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "people.fastshap"
    fitted.save(path)
    return path


class Model:
    """A model that returns the sum of the columns and runs a given function at a given call."""

    def __init__(self) -> None:
        self.then(-1, int)

    def then(self, at: int, do: Callable[[], object]) -> None:
        self.at, self.do = at, do

    def __call__(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        self.at -= 1
        if self.at == 0:
            self.do()
        return X.sum(axis=1)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def calling(model: Model) -> FastSHAP:
    """Return an explainer that calls the model once, and then once per part."""
    return quick(model, value_function="baseline").fit(numbers(50, 2))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write a file that gives ten parts."""
    table = pd.DataFrame(numbers(100, 2), columns=["x0", "x1"]).assign(id=np.arange(100))
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=10)
    return tmp_path / "rows.parquet"


def kept(before: dict[str, int], after: dict[str, int]) -> bool:
    """Return whether all earlier parts still exist and were not written again."""
    return before.items() <= after.items()


# Interruptions


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_resumes_with_the_missing_parts(
    fitted: FastSHAP, saved: Path, tmp_path: Path, way: signal.Signals
) -> None:
    frame = keyed(20_000)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    command = ["explain", str(saved), str(tmp_path / "rows.parquet"), "-o", str(tmp_path / "out")]
    command += ["--part-rows", "100", "--quiet"]
    run = subprocess.Popen([sys.executable, "-m", "fastshapley", *command], stderr=subprocess.PIPE, text=True)
    while run.poll() is None and len(parts_in(tmp_path / "out")) < 5:
        time.sleep(0.002)
    run.send_signal(way)
    told = run.communicate()[1]
    before = parts_in(tmp_path / "out")
    assert 5 <= len(before) < 200
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    if way == signal.SIGINT:
        assert run.returncode == 130
        assert told == "fastshapley explain: interrupted; run the same command again to resume\n"
        assert only_whole_files(tmp_path / "out")
    done = read(tmp_path / "out")  # the finished parts can be read
    assert done["id"].is_unique
    assert len(done) == 100 * len(before)
    for path in (tmp_path / "out").glob("_[0-9]*"):
        os.utime(path, (0, 0))  # as if they were old
    assert main(command) == 0
    after = parts_in(tmp_path / "out")
    assert kept(before, after)
    assert len(after) == 200
    assert only_whole_files(tmp_path / "out")
    table = read(tmp_path / "out")
    assert list(table["id"]) == list(range(20_000))
    assert_explains(fitted, features(frame), table)


def test_ctrl_c_stops_a_run_and_leaves_whole_parts(
    calling: FastSHAP, model: Model, source: Path, tmp_path: Path
) -> None:
    model.then(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        calling.explain_to(source, tmp_path / "out", part_rows=10, workers=1)
    before = parts_in(tmp_path / "out")
    assert 3 <= len(before) < 10
    assert only_whole_files(tmp_path / "out")
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    found = calling.explain_to(source, tmp_path / "out", part_rows=10)
    assert (found.kept, found.parts) == (len(before), 10 - len(before))
    assert kept(before, parts_in(tmp_path / "out"))
    assert list(read(tmp_path / "out")["id"]) == list(range(100))


# Bad files


def test_a_column_that_one_of_40_files_lacks_is_named_with_the_file(fitted: FastSHAP, tmp_path: Path) -> None:
    frame = write_many(tmp_path / "data", 40)
    mended = keyed(ROWS, seed=36, start=36 * ROWS)
    mended.rename(columns={"income": "incomes"}).to_parquet(tmp_path / "data" / "36.parquet")
    with pytest.raises(InputError, match=r"data/36\.parquet lacks the column 'income' \(renamed to 'incomes'\?\)"):
        fitted.explain_to(tmp_path / "data", tmp_path / "out")
    mended.to_parquet(tmp_path / "data" / "36.parquet")
    assert fitted.explain_to(tmp_path / "data", tmp_path / "out").rows == len(frame)
    assert_explains(fitted, features(frame), read(tmp_path / "out"))


def test_a_truncated_file_is_named(fitted: FastSHAP, tmp_path: Path) -> None:
    write_many(tmp_path / "data", 40)
    path = tmp_path / "data" / "36.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(PartError, match=r"data/36\.parquet cannot be read"):
        fitted.explain_to(tmp_path / "data", tmp_path / "out")
    path.write_bytes(whole)
    assert fitted.explain_to(tmp_path / "data", tmp_path / "out").rows == 40 * ROWS


def damaged(data: bytes) -> bytes:
    """Return the data of a file with some bytes of its pages inverted."""
    middle = len(data) // 3
    return data[:middle] + bytes(255 - byte for byte in data[middle : middle + 400]) + data[middle + 400 :]


@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_damaged_pages_are_named_and_finished_parts_of_other_files_are_kept(
    fitted: FastSHAP, tmp_path: Path, compression: str
) -> None:
    """Without compression, only the checksums reveal the damage."""
    frames = [keyed(600, seed=number, start=600 * number) for number in range(4)]
    (tmp_path / "data").mkdir()
    for number, frame in enumerate(frames):
        table = pa.Table.from_pandas(frame, preserve_index=False)
        options = {"compression": compression, "use_dictionary": False, "write_page_checksum": True}
        pq.write_table(table, tmp_path / "data" / f"{number}.parquet", row_group_size=200, **options)
    path = tmp_path / "data" / "2.parquet"
    whole = path.read_bytes()
    path.write_bytes(damaged(whole))
    with pytest.raises(PartError, match=r"data/2\.parquet, row groups \d to \d: "):
        fitted.explain_to(tmp_path / "data", tmp_path / "out", part_rows=200, workers=1)
    before = parts_in(tmp_path / "out")
    assert 6 <= len(before) < 9
    assert only_whole_files(tmp_path / "out")
    path.write_bytes(whole)
    found = fitted.explain_to(tmp_path / "data", tmp_path / "out", part_rows=200)
    after = parts_in(tmp_path / "out")
    assert found.kept == 6  # all parts of the damaged file are explained again
    assert found.parts == 6
    assert dict(list(before.items())[:6]).items() <= after.items()
    table = read(tmp_path / "out")
    assert list(table["id"]) == list(range(2400))
    assert_explains(fitted, features(pd.concat(frames, ignore_index=True)), table)


@pytest.mark.parametrize(
    "line",
    ["600,x,3\n", "600,x,old,1,chef,Bern,True\n", "600,x,3,1e999,chef,Bern,True\n", '600,x,3,1,"chef,Bern,True\n'],
    ids=["too few cells", "text", "infinite", "unclosed quote"],
)
def test_a_broken_csv_line_is_named_and_finished_parts_of_other_files_are_kept(
    fitted: FastSHAP, tmp_path: Path, line: str
) -> None:
    frame = keyed(1200)[["id", "name", "age", "income", "job", "city", "member"]].assign(pad="x" * 1000)
    (tmp_path / "data").mkdir()
    frame[:600].to_csv(tmp_path / "data" / "0.csv", index=False)
    path = tmp_path / "data" / "1.csv"
    frame[600:].to_csv(path, index=False)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    path.write_text("".join([*lines[:-5], line.replace("True", "True,x"), *lines[-5:]]))
    with pytest.raises(PartError, match=r"data/1\.csv(, bytes \d+ to \d+)?: "):
        fitted.explain_to(tmp_path / "data", tmp_path / "out", part_rows=100, workers=1)
    before = {name: when for name, when in parts_in(tmp_path / "out").items() if name.startswith("part-00000")}
    assert len(before) >= 5
    assert only_whole_files(tmp_path / "out")
    path.write_text(whole)
    found = fitted.explain_to(tmp_path / "data", tmp_path / "out", part_rows=100)
    assert found.kept == len(before)
    assert kept(before, parts_in(tmp_path / "out"))
    table = read(tmp_path / "out")
    assert list(map(int, table["id"])) == list(range(1200))
    assert_explains(fitted, features(frame), table)


def test_a_changed_file_is_explained_again_and_its_old_parts_are_deleted(
    fitted: FastSHAP, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This also holds after the run has finished. Parts of other files are kept."""
    frame = write_many(tmp_path / "data", 3)
    fitted.explain_to(tmp_path / "data", tmp_path / "out")
    before = parts_in(tmp_path / "out")
    new = keyed(2 * ROWS, seed=9, start=ROWS)
    new.to_parquet(tmp_path / "data" / "01.parquet", row_group_size=ROWS)
    found = fitted.explain_to(tmp_path / "data", tmp_path / "out")
    assert (found.kept, found.parts, found.rows) == (2, 1, 2 * ROWS)
    assert "1 parts belong to files that have changed" in caplog.text
    after = parts_in(tmp_path / "out")
    assert len(before.items() & after.items()) == 2
    assert len(after) == 3
    expected = pd.concat([frame[:ROWS], new, frame[2 * ROWS :]], ignore_index=True)
    assert_explains(fitted, features(expected), read(tmp_path / "out"))


def test_a_file_that_changes_during_a_run_is_not_mixed_with_its_old_rows(
    calling: FastSHAP, model: Model, source: Path, tmp_path: Path
) -> None:
    table = pd.read_parquet(source)
    other = table.assign(x0=table["x0"] + 1)
    model.then(5, lambda: other.to_parquet(source, row_group_size=10))
    with pytest.raises(PartError, match=r"rows\.parquet, row groups 3 to 4: the file has changed since"):
        calling.explain_to(source, tmp_path / "out", part_rows=10, workers=1)
    calling.explain_to(source, tmp_path / "out", part_rows=10)
    found = read(tmp_path / "out")
    assert list(found["id"]) == list(range(100))
    assert_explains(calling, other[["x0", "x1"]].to_numpy(), found)


def test_an_error_of_the_model_names_the_part(
    calling: FastSHAP, model: Model, source: Path, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("no\nluck")

    model.then(5, fail)
    with pytest.raises(PartError, match=r"rows\.parquet, row groups 3 to 4: .*no luck"):
        calling.explain_to(source, tmp_path / "out", part_rows=10, workers=1)
    assert len(parts_in(tmp_path / "out")) == 3
    assert only_whole_files(tmp_path / "out")
    assert calling.explain_to(source, tmp_path / "out", part_rows=10).kept == 3


# No space left


@contextmanager
def little_space(folder: Path) -> Iterator[Callable[[], object]]:
    """Mount a disk of 160 kB or, if that fails, limit files to 16 kB; yield a function that lifts the limit."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    if os.geteuid() == 0 and not subprocess.call([*mount, "size=160k", "tmpfs", folder], stderr=subprocess.DEVNULL):
        try:
            yield lambda: subprocess.check_call([*mount, "remount,size=8m", folder])
        finally:
            subprocess.check_call(["umount", folder])
        return
    resource = pytest.importorskip("resource", reason="neither a disk nor a limit of files' lengths can be had")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_names_the_part_and_leaves_whole_parts(fitted: FastSHAP, tmp_path: Path) -> None:
    """The last part does not fit at first. The run resumes when there is space."""
    frame = keyed(2200)
    with pq.ParquetWriter(tmp_path / "rows.parquet", pa.Schema.from_pandas(frame, preserve_index=False)) as writer:
        for start, stop in [*((20 * n, 20 * n + 20) for n in range(10)), (200, 2200)]:
            writer.write_table(pa.Table.from_pandas(frame[start:stop], preserve_index=False))
    out = tmp_path / "disk" / "out"
    with little_space(tmp_path / "disk") as grow:
        with pytest.raises(
            PartError, match=r"rows\.parquet, row groups 10 to 11: .*(No space left|File too large)"
        ):
            fitted.explain_to(tmp_path / "rows.parquet", out, part_rows=1, workers=1)
        before = parts_in(out)
        assert len(before) == 10
        assert only_whole_files(out)
        assert not (out / "_SUCCESS").exists()
        assert list(read(out)["id"]) == list(range(200))
        grow()
        found = fitted.explain_to(tmp_path / "rows.parquet", out, part_rows=1)
        assert (found.kept, found.parts) == (10, 1)
        assert kept(before, parts_in(out))
        table = read(out)
    assert list(table["id"]) == list(range(2200))
    assert_explains(fitted, features(frame), table)


def test_an_output_folder_that_cannot_be_created_is_named(fitted: FastSHAP, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keyed(3).to_parquet(source)
    with pytest.raises(PartError, match=r"output .*file/out cannot be written"):
        fitted.explain_to(source, tmp_path / "file" / "out")


# Memory

MEASURE = """
import json, re, sys
from fastshapley import FastSHAP
saved, *sources = sys.argv[1:]
explainer = FastSHAP.load(saved)
explainer.progress = False
found = []
for source in sources:
    rows = explainer.explain_to(source, f"{source}.out", part_rows=2000, workers=2).rows
    found.append((rows, int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])))
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
def test_memory_does_not_grow_with_the_number_of_rows(saved: Path, tmp_path: Path) -> None:
    """Compare the peak memory for some rows of Parquet and CSV with that for eight times as many rows.

    The key is a text of 500 bytes per row: each of the long files has 128 MB of it, which a process that held the
    whole input or output would need in memory. A third of that is allowed: allocators kept at most 30 MB,
    independent of the number of rows.
    """
    frame = keyed(32_000)
    frame["name"] = frame["name"].str.ljust(500, "x")
    table, text = pa.Table.from_pandas(frame, preserve_index=False), frame.to_csv(index=False)
    paths = []
    for times in (1, 8):
        paths += [tmp_path / f"{times}.parquet", tmp_path / f"{times}.csv"]
        long = pa.concat_tables([table] * times)
        pq.write_table(long, paths[-2], row_group_size=2000, use_dictionary=False, compression="none")
        paths[-1].write_text(text + text[text.index("\n") + 1 :] * (times - 1))
    assert all(path.stat().st_size > 128e6 for path in paths[2:])
    run = subprocess.run([sys.executable, "-c", MEASURE, saved, *paths], stdout=subprocess.PIPE, check=True)
    rows, peaks = zip(*json.loads(run.stdout), strict=True)
    assert rows == (32_000, 32_000, 256_000, 256_000)
    assert peaks[-1] - peaks[1] < 43_000  # kB
