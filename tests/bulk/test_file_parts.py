"""Files in parts: put together they are the file, row for row, whatever is in it."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastshapley.errors import InputError, PartError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

import pyarrow.csv  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from fastshapley.bulk import csv_files  # noqa: E402
from fastshapley.bulk.csv_files import CsvColumns  # noqa: E402
from fastshapley.bulk.file_parts import Part, find_parts, read_part  # noqa: E402
from fastshapley.bulk.file_search import Files, find_files, locate  # noqa: E402

COLUMNS = ["a", "b"]
TEXT = CsvColumns(dict.fromkeys(COLUMNS, pa.string()), dict.fromkeys(COLUMNS, ("",)))


def rows_of(files: Files, parts: list[Part], columns: list[str] = COLUMNS, text: CsvColumns = TEXT) -> list[Any]:
    return [
        tuple(row[name] for name in columns)
        for part in parts
        for batch in read_part(files.system, part, columns, text, 3)
        for row in batch.to_pylist()
    ]


def in_parts(path: Path, rows: int) -> list[Any]:
    files = find_files(path)
    return rows_of(files, find_parts(files, rows))


def as_text(rows: list[Any]) -> list[tuple[str, ...]]:
    """Rows of text with "" for a gap."""
    return [tuple(value or "" for value in row) for row in rows]


@pytest.fixture(params=[1 << 22, 7, 1], ids=["a chunk", "chunks of 7 bytes", "chunks of one"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the tests are small: they are looked at in chunks that are too."""
    monkeypatch.setattr(csv_files, "SCAN_BYTES", request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


# CSV

cells = st.text(alphabet=["a", "b", " ", ",", '"', "\n", "\r", "ä", "'"], max_size=4)
tables = st.lists(st.tuples(cells, cells), max_size=12)


def quoted(cell: str, always: bool) -> str:
    escaped = cell.replace('"', '""')
    return f'"{escaped}"' if always or set(cell) & set(',"\r\n') else cell


@pytest.mark.usefixtures("chunks")
@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    table=tables,
    rows=st.integers(1, 4),
    newline=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
    last=st.booleans(),
    always=st.booleans(),
    blank=st.integers(0, 3),
)
def test_byte_ranges_together_are_the_rows_of_the_file(
    folder: Path,
    table: list[tuple[str, str]],
    rows: int,
    newline: str,
    bom: bool,
    last: bool,
    always: bool,
    blank: int,
) -> None:
    """With quotes where they are needed, or everywhere, and an empty line after every so many."""
    lines = [",".join(COLUMNS)]
    for number, row in enumerate(table):
        lines += [""] * (blank > 0 and number % blank == 0)
        lines.append(",".join(quoted(cell, always) for cell in row))
    text = newline.join([*lines, ""] if last else lines)
    path = folder / "rows.csv"
    path.write_bytes(("\ufeff" + text if bom else text).encode())
    assert as_text(in_parts(path, rows)) == table


@pytest.mark.usefixtures("chunks")
@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    pieces=st.lists(st.sampled_from(["a", '"', '""', "\n", "\r\n", "\r", '"x', 'y"']), max_size=30),
    rows=st.integers(1, 3),
)
@example(pieces=["a", '"', "\n", '"x', "\n", 'y"', "\n", "a"], rows=1)  # 5" pipes, and a text of two lines
@example(pieces=['"', "a", '"', "a", '"', "\n", "a", "\n"], rows=1)  # a text that goes on after its quotes
def test_any_bytes_are_read_as_pyarrow_reads_the_whole_file(folder: Path, pieces: list[str], rows: int) -> None:
    """Also what no writer should write: quotes in the middle of a text, lines of one carriage return."""
    data = "a\n" + "".join(pieces)
    path = folder / "odd.csv"
    path.write_bytes(data.encode())
    text = CsvColumns({"a": pa.string()}, {"a": ("",)})
    try:
        with pyarrow.csv.open_csv(
            io.BytesIO(data.encode()),
            pyarrow.csv.ReadOptions(use_threads=False),
            pyarrow.csv.ParseOptions(newlines_in_values=True),
            pyarrow.csv.ConvertOptions(column_types=text.types, include_columns=["a"]),
        ) as reader:
            expected = [(value,) for batch in reader for value in batch["a"].to_pylist()]
    except pa.ArrowInvalid:  # such as rows of two columns
        return
    files = find_files(path)
    assert as_text(rows_of(files, find_parts(files, rows), ["a"], text)) == expected


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n", 0),
        ("a,b", 0),
        ("\ufeffa,b\r\n", 0),
        ("a,b\n\n\n", 0),
        ("a,b\n1,2", 1),
        ("a,b\n1,2\n", 1),
        ("a,b\r1,2\r3,4\r", 2),
        ("a,b\r1,2\n3,4\n5,6\n", 3),
        ("\n\r\n\na,b\n1,2\n3,4\n5,6\n", 3),
        ('"a","b"\n1,2\n3,4\n', 2),
        ('b,c,"a"\n1,2,3\n3,4,5\n', 2),
    ],
)
def test_files_of_few_rows_and_of_old_habits(tmp_path: Path, text: str, rows: int) -> None:
    (tmp_path / "rows.csv").write_bytes(text.encode())
    found = in_parts(tmp_path / "rows.csv", 1)
    assert len(found) == rows
    assert len(set(found)) == rows


def test_the_line_with_names_may_have_lines(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('"the\n""first"" column",b\n1,2\n3,4\n')
    files = find_files(tmp_path / "rows.csv")
    columns = ['the\n"first" column', "b"]
    assert files.schemas[0].names == columns
    found = find_parts(files, 1)
    assert len(found) == 2
    assert rows_of(files, found, columns, CsvColumns({})) == [(1, 2), (3, 4)]


@pytest.mark.usefixtures("chunks")
def test_parts_of_csv_have_about_as_many_rows_as_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "".join(f"{i:06},x\n" for i in range(1000)))
    files = find_files(path)
    sizes = [len(rows_of(files, [part])) for part in find_parts(files, 100)]
    assert sum(sizes) == 1000
    assert all(50 <= size <= 150 for size in sizes)
    assert len(find_parts(files, 10**9)) == 1


def test_a_gap_is_what_pandas_takes_for_one_unless_it_is_a_word_of_the_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c\nNA,NA,NA\n,,\nNaN,None,7\n<NA>,x,null\n")
    files = find_files(path)
    gaps = {"a": ("", "NaN", "<NA>")}
    text = CsvColumns({"a": pa.string(), "b": pa.string(), "c": pa.float64()}, gaps)
    expected = [("NA", None, None), (None, None, None), (None, None, 7.0), (None, "x", None)]
    assert rows_of(files, find_parts(files, 1), ["a", "b", "c"], text) == expected


def test_the_columns_of_a_long_csv_file_are_known_by_its_first_rows(tmp_path: Path) -> None:
    """Wherever the look ends: in the middle of a row, or of a text of several lines."""
    path = tmp_path / "rows.csv"
    for length in (1000, 1001):
        path.write_text("a,b\n" + ('"' + "line\n" * length + '",7\n') * 500)
        assert path.stat().st_size > 1 << 20
        schema = find_files(path).schemas[0]
        assert schema.names == COLUMNS
        assert schema.field("b").type == pa.int64()


@pytest.mark.parametrize("newline", ["", "\n"])
def test_compressed_csv_is_one_part(tmp_path: Path, newline: str) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b'a,b\n1,"x\ny"\n3,' + newline.encode()))
    assert in_parts(path, 1) == [("1", "x\ny"), ("3", None)]
    assert len(find_parts(find_files(path), 1)) == 1
    path.write_bytes(gzip.compress(b"a,b" + newline.encode()))
    assert in_parts(path, 1) == []
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(PartError, match=r"rows\.csv\.gz cannot be read"):
        find_files(path)


# Parquet


def write(path: Path, start: int, rows: int, group: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(start, start + rows)
    pq.write_table(pa.table({"a": numbers.astype(str), "b": numbers}), path, row_group_size=group)


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, [10, 10, 10, 5]), (10, [10, 10, 10, 5]), (11, [20, 15]), (100, [35])]
)
def test_row_groups_are_put_together_up_to_the_rows_asked_for(tmp_path: Path, rows: int, sizes: list[int]) -> None:
    write(tmp_path / "rows.parquet", 0, 35)
    files = find_files(tmp_path / "rows.parquet")
    found = find_parts(files, rows)
    assert [part.rows for part in found] == sizes
    assert [len(rows_of(files, [part])) for part in found] == sizes
    assert rows_of(files, found) == [(str(i), i) for i in range(35)]


def test_a_file_without_rows_is_a_part_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "none.parquet", 0, 0)
    with pq.ParquetWriter(tmp_path / "no_group.parquet", pa.schema([("a", pa.string()), ("b", pa.int64())])):
        pass
    (tmp_path / "none.csv").write_text("a,b\n")
    files = find_files(tmp_path)
    found = find_parts(files, 10)
    assert [part.path for part in found] == list(files.paths)
    assert {part.rows for part in found} == {0}
    assert rows_of(files, found) == []


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", 0, 2)
    files = find_files(tmp_path / "rows.parquet")
    part = find_parts(files, 10)[0]
    for columns in (["b", "a"], ["b"]):
        assert next(read_part(files.system, part, columns, TEXT, 10)).schema.names == columns


def test_a_row_group_of_any_size_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """What pyarrow holds meanwhile is some pages of each column, and two batches: not half of the 24 MB."""
    columns = {name: np.random.default_rng(0).normal(size=10**6) for name in "abc"}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=10**6, compression="none")
    files = find_files(tmp_path / "rows.parquet")
    (part,) = find_parts(files, 1000)
    before, held, rows = pa.total_allocated_bytes(), [], 0
    for batch in read_part(files.system, part, list("abc"), TEXT, 1000):
        held.append(pa.total_allocated_bytes() - before)
        rows += len(batch)
    assert rows == 10**6
    assert max(held) < 12e6


def test_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "a.b": [2], "c": [{"d": 3}]}), tmp_path / "rows.parquet")
    files = find_files(tmp_path / "rows.parquet")
    for columns, expected in ((["a"], (1,)), (["a.b"], (2,)), (["c", "a"], ({"d": 3}, 1))):
        assert rows_of(files, find_parts(files, 10), columns) == [expected]


# which files


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


def test_a_folder_stands_for_all_files_in_it_but_hidden_ones(tree: Path) -> None:
    expected = ["a.csv", "b.parquet", "deep/c.pq", "year=2024/month=1/d.parquet"]
    assert found_in(tree, tree) == expected
    assert found_in(tree, f"{tree}/") == expected
    assert found_in(tree, f"file://{tree}/") == expected


def test_names_in_capitals_and_files_that_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.CSV").write_text("a,b\n1,1\n")
    (tmp_path / "b.CSV.GZ").write_bytes(gzip.compress(b"a,b\n2,2\n"))
    pq.write_table(pa.table({"a": ["3"], "b": ["3"]}), tmp_path / "c.PARQUET")
    (tmp_path / "notes.txt").write_text("no data")
    files = find_files(tmp_path)
    assert rows_of(files, find_parts(files, 10)) == [("1", "1"), ("2", "2"), ("3", "3")]
    (told,) = caplog.messages
    assert told.startswith(f"skipping 1 files in {tmp_path} whose names do not end in")
    assert "notes.txt" in told


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
def test_a_glob_stands_for_the_files_and_folders_that_it_matches(
    tree: Path, pattern: str, expected: list[str] | None
) -> None:
    found = found_in(tree, f"{tree}/{pattern}")
    if expected is not None:
        assert found == expected
    assert found == sorted(set(found))
    assert {"b.parquet", "deep/c.pq", "year=2024/month=1/d.parquet"} <= set(found) or pattern != "**/*.p*q*"
    if "[" not in pattern:
        assert found_in(tree, f"file://{tree}/{pattern}") == found


def test_a_list_stands_for_its_places_in_turn_and_each_file_once(tree: Path) -> None:
    places = [tree / "deep", str(tree / "b.parquet"), f"{tree}/*.csv", f"file://{tree}/deep/c.pq"]
    assert found_in(tree, places) == ["deep/c.pq", "b.parquet", "a.csv"]
    assert found_in(tree, tuple(places[1:])) == ["b.parquet", "a.csv", "deep/c.pq"]


def test_a_name_that_looks_like_a_glob_is_first_of_all_a_name(tmp_path: Path) -> None:
    write(tmp_path / "rows [1].parquet", 0, 1)
    assert found_in(tmp_path, tmp_path / "rows [1].parquet") == ["rows [1].parquet"]


def test_relative_paths_and_the_users_home(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "deep")
    monkeypatch.setenv("HOME", str(tree))
    assert found_in(tree, "../a.csv") == found_in(tree, "~/a.csv") == ["a.csv"]


def test_a_space_in_an_address(tmp_path: Path) -> None:
    write(tmp_path / "my rows.parquet", 0, 1)
    assert found_in(tmp_path, (tmp_path / "my rows.parquet").as_uri()) == ["my rows.parquet"]


@pytest.mark.parametrize("name", ["absent.csv", "absent", "*.pq", "empty"])
def test_where_there_is_no_file_the_place_is_named(tree: Path, name: str) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(InputError, match="no file at ") as refusal:
        find_files([tree / "a.csv", tree / name])
    assert str(tree / name) in str(refusal.value)


def test_other_kinds_of_files_and_of_sources(tree: Path) -> None:
    with pytest.raises(InputError, match=r"notes\.txt is not a supported file: its name must end in"):
        find_files(tree / "notes.txt")
    for nothing in (list[str](), tuple[str, ...]()):
        with pytest.raises(InputError, match="source is empty"):
            find_files(nothing)
    for source in (None, pa.table({"a": [1]}), [1], {"a": 1}):
        with pytest.raises(InputError, match=r"source is a .*: pass a path.*explainer\(X\)"):
            find_files(source)


@pytest.mark.parametrize("place", ["https://example.org/a.csv", "nowhere://a", "file://relative/a.csv"])
def test_an_address_that_pyarrow_does_not_know(place: str) -> None:
    with pytest.raises(InputError, match=f"{place} is not a URI that pyarrow can open"):
        locate(place)


def test_an_address_that_does_not_answer_is_named() -> None:
    place = "s3://key:secret@bucket/rows.parquet?endpoint_override=127.0.0.1:9&scheme=http&region=here"
    try:
        locate(place)
    except InputError:
        pytest.skip("this pyarrow knows no S3")
    with pytest.raises(PartError, match=r"s3://.*rows\.parquet.* cannot be read: .*127\.0\.0\.1"):
        find_files(place)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.csv.gz"])
def test_a_file_that_is_none_of_its_kind_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(PartError, match=f"{name} cannot be read"):
        find_files(tmp_path)
    (tmp_path / name).write_bytes(b"\x1f\x8b\xff\xfe\x00\x01" * 50)
    if name != "rows.csv":
        with pytest.raises(PartError, match=f"{name} cannot be read"):
            find_files(tmp_path)


def test_names_that_are_no_utf8_are_told_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes("age,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(PartError, match=r"rows\.csv cannot be read: .*utf-8"):
        find_files(tmp_path)


def test_a_glob_says_what_it_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("rows.csv", "notes.txt"):
        (tmp_path / name).write_text("a\n1\n")
    assert [Path(path).name for path in find_files(f"{tmp_path}/*").paths] == ["rows.csv"]
    assert "skipping 1 files in" in caplog.text
    assert "notes.txt" in caplog.text


def test_booleans_as_pandas_writes_those_with_gaps(tmp_path: Path) -> None:
    pd.DataFrame({"b": [True, None, False]}).astype(float).to_csv(tmp_path / "rows.csv", index=False)
    files = find_files(tmp_path)
    (part,) = find_parts(files, 10)
    (batch,) = read_part(files.system, part, ["b"], CsvColumns({"b": pa.bool_()}), 10)
    assert batch["b"].to_pylist() == [True, None, False]


# every time the same


def test_parts_are_the_same_every_time_and_others_once_a_file_has_changed(tree: Path) -> None:
    first = find_parts(find_files(tree), 1)
    assert find_parts(find_files(tree), 1) == first
    assert len({part.name for part in first}) == len(first)
    write(tree / "b.parquet", 0, 2)
    changed = [part for part in find_parts(find_files(tree), 1) if part not in first]
    assert {part.path for part in changed} == {str(tree / "b.parquet")}
    assert not {part.name for part in changed} & {part.name for part in first}


def test_a_part_says_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", 0, 20)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    texts = [str(part) for part in find_parts(find_files(tmp_path), 10)]
    assert texts == [
        f"{tmp_path}/rows.csv, bytes 4 to 8",
        f"{tmp_path}/rows.parquet, row groups 0 to 1",
        f"{tmp_path}/rows.parquet, row groups 1 to 2",
    ]


# elsewhere


@pytest.fixture
def memory() -> Iterator[Any]:
    """A file system that is not this machine's own."""
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    system = fsspec.filesystem("memory")
    try:
        locate("fsspec+memory://rows")
    except InputError:
        pytest.skip("this pyarrow knows no fsspec+ addresses")
    yield system
    system.rm("/rows", recursive=True)


def test_files_and_globs_elsewhere(memory: Any) -> None:
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
    files = find_files(place)
    rows = [row for name in ("a.csv", "b.csv", "deep/c.csv") for row in ((name, "2"), ("x", None))]
    assert rows_of(files, find_parts(files, 1)) == rows
    with pytest.raises(InputError, match="which are on different file systems"):
        find_files([place, "/tmp"])
