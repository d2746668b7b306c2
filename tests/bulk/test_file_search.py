"""Tests of finding files by path, folder, glob and URI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastshapley.errors import InputError, PartError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

import pyarrow.parquet as pq  # noqa: E402

from fastshapley.bulk.file_search import find_files, locate, without_secrets  # noqa: E402


def write(path: Path, start: int, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(start, start + rows)
    pq.write_table(pa.table({"a": numbers.astype(str), "b": numbers}), path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = ["b.parquet", "a.csv", "deep/c.pq", "year=2024/month=1/d.parquet", "_hidden.parquet", ".hidden.csv"]
    names += ["_temporary/e.parquet", ".cache/f.parquet", "deep/_g.csv"]
    for number, name in enumerate(names):
        path = tmp_path / name
        if name.endswith("csv"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"a,b\n{number},{number}\n")
        else:
            write(path, number, 1)
    (tmp_path / "notes.txt").write_text("no data")
    return tmp_path


def found_in(root: Path, source: Any) -> list[str]:
    return [os.path.relpath(path, root) for path in find_files(source).paths]


def test_a_folder_is_searched_for_all_files_except_hidden_ones(tree: Path) -> None:
    expected = ["a.csv", "b.parquet", "deep/c.pq", "year=2024/month=1/d.parquet"]
    assert found_in(tree, tree) == expected
    assert found_in(tree, f"{tree}/") == expected
    assert found_in(tree, f"file://{tree}/") == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["_hidden.parquet", "b.parquet"]),
        ("[ab].*", ["a.csv", "b.parquet"]),
        ("**/*.p*q*", None),
        ("year=*", ["year=2024/month=1/d.parquet"]),
        ("*", ["_hidden.parquet", "a.csv", "b.parquet", "deep/c.pq", "year=2024/month=1/d.parquet"]),
        ("*/*.pq", ["deep/c.pq"]),
    ],
)
def test_a_glob_finds_the_files_and_folders_that_it_matches(
    tree: Path, pattern: str, expected: list[str] | None
) -> None:
    found = found_in(tree, f"{tree}/{pattern}")
    if expected is not None:
        assert found == expected
    assert found == sorted(set(found))
    assert {"b.parquet", "deep/c.pq", "year=2024/month=1/d.parquet"} <= set(found) or pattern != "**/*.p*q*"
    if "[" not in pattern:
        assert found_in(tree, f"file://{tree}/{pattern}") == found


def test_a_list_is_searched_in_order_and_each_file_is_found_once(tree: Path) -> None:
    places = [tree / "deep", str(tree / "b.parquet"), f"{tree}/*.csv", f"file://{tree}/deep/c.pq"]
    assert found_in(tree, places) == ["deep/c.pq", "b.parquet", "a.csv"]
    assert found_in(tree, tuple(places[1:])) == ["b.parquet", "a.csv", "deep/c.pq"]


def test_a_file_whose_name_looks_like_a_glob_is_found_by_its_name(tmp_path: Path) -> None:
    write(tmp_path / "rows [1].parquet", 0, 1)
    assert found_in(tmp_path, tmp_path / "rows [1].parquet") == ["rows [1].parquet"]


def test_relative_paths_and_the_home_folder_are_resolved(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "deep")
    monkeypatch.setenv("HOME", str(tree))
    assert found_in(tree, "../a.csv") == found_in(tree, "~/a.csv") == ["a.csv"]


def test_a_uri_may_have_a_space(tmp_path: Path) -> None:
    write(tmp_path / "my rows.parquet", 0, 1)
    assert found_in(tmp_path, (tmp_path / "my rows.parquet").as_uri()) == ["my rows.parquet"]


@pytest.mark.parametrize("name", ["absent.csv", "absent", "*.pq", "empty"])
def test_a_place_without_files_is_named(tree: Path, name: str) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(InputError, match="no file at ") as refusal:
        find_files([tree / "a.csv", tree / name])
    assert str(tree / name) in str(refusal.value)


def test_other_files_and_sources_are_refused(tree: Path) -> None:
    with pytest.raises(InputError, match=r"notes\.txt is not a supported file: its name must end in"):
        find_files(tree / "notes.txt")
    for nothing in (list[str](), tuple[str, ...]()):
        with pytest.raises(InputError, match="source is empty"):
            find_files(nothing)
    for source in (None, pa.table({"a": [1]}), [1], {"a": 1}):
        with pytest.raises(InputError, match=r"source is a .*: pass a path.*explainer\(X\)"):
            find_files(source)


@pytest.mark.parametrize("place", ["https://example.org/a.csv", "nowhere://a", "file://relative/a.csv"])
def test_a_uri_that_pyarrow_cannot_open_is_refused(place: str) -> None:
    with pytest.raises(InputError, match=f"{place} is not a URI that pyarrow can open"):
        locate(place)


def test_a_uri_that_does_not_answer_is_named() -> None:
    place = "s3://key:secret@bucket/rows.parquet?endpoint_override=127.0.0.1:9&scheme=http&region=here"
    try:
        locate(place)
    except InputError:
        pytest.skip("this pyarrow has no S3 support")
    with pytest.raises(PartError, match=r"s3://bucket/rows\.parquet cannot be read: .*127\.0\.0\.1"):
        find_files(place)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("nowhere://user:secret@host/rows.csv?sas_token=secret", "nowhere://host/rows.csv"),
        ("s3://key:se cret@bucket/a@b", "s3://bucket/a@b"),
        ("s3://bucket", "s3://bucket"),
        ("folder/a@b?.csv", "folder/a@b?.csv"),
    ],
)
def test_messages_have_no_passwords(place: str, shown: str) -> None:
    assert without_secrets(place) == shown
    if "secret" in place or "se cret" in place:
        with pytest.raises(InputError, match=shown) as refusal:
            find_files(place)
        assert "cret" not in str(refusal.value)
        assert refusal.value.__suppress_context__


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.csv.gz"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(PartError, match=f"{name} cannot be read"):
        find_files(tmp_path)
    (tmp_path / name).write_bytes(b"\x1f\x8b\xff\xfe\x00\x01" * 50)
    if name != "rows.csv":
        with pytest.raises(PartError, match=f"{name} cannot be read"):
            find_files(tmp_path)


def test_a_file_whose_header_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("age,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(PartError, match=r"rows\.csv cannot be read: .*utf-8"):
        find_files(tmp_path)


def test_a_glob_logs_the_files_that_it_skips(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("rows.csv", "notes.txt"):
        (tmp_path / name).write_text("a\n1\n")
    assert [Path(path).name for path in find_files(f"{tmp_path}/*").paths] == ["rows.csv"]
    assert "skipping 1 files in" in caplog.text
    assert "notes.txt" in caplog.text


@pytest.fixture
def memory() -> Iterator[Any]:
    """Return a file system other than the local one."""
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    system = fsspec.filesystem("memory")
    try:
        locate("fsspec+memory://rows")
    except InputError:
        pytest.skip("this pyarrow has no support for fsspec")
    yield system
    system.rm("/rows", recursive=True)


def test_files_and_globs_are_found_on_another_file_system(memory: Any) -> None:
    for name in ("a.csv", "b.csv", "deep/c.csv", "_d.csv"):
        memory.pipe(f"/rows/{name}", f"a,b\n{name},2\nx,\n".encode())
    place = "fsspec+memory://rows"
    names = {
        "": ["a", "b", "deep/c"],
        "/*.csv": ["_d", "a", "b"],
        "/**/[a-c].csv": ["a", "b", "deep/c"],
        "/d*": ["deep/c"],
        "/deep/c.csv": ["deep/c"],
    }
    for pattern, expected in names.items():
        found = find_files(place + pattern).paths
        assert [path.split("rows/")[1].removesuffix(".csv") for path in found] == expected
    with pytest.raises(InputError, match="which are on different file systems"):
        find_files([place, "/tmp"])
