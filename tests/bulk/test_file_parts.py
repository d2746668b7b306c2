"""Tests of dividing files into parts: the parts together hold every row of the file once, in order."""

from __future__ import annotations

import gzip
import io
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

from fastshapley.bulk import csv_files, file_parts  # noqa: E402
from fastshapley.bulk.csv_files import CsvColumns  # noqa: E402
from fastshapley.bulk.file_parts import Part, find_parts, read_part, with_slices  # noqa: E402
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
    """Return rows of text with "" for each gap."""
    return [tuple(value or "" for value in row) for row in rows]


@pytest.fixture(params=[1 << 22, 7, 1], ids=["one chunk", "chunks of 7 bytes", "chunks of 1 byte"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan the small files of the tests in small chunks."""
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
def test_byte_ranges_together_hold_all_rows_of_the_file(
    folder: Path,
    table: list[tuple[str, str]],
    rows: int,
    newline: str,
    bom: bool,
    last: bool,
    always: bool,
    blank: int,
) -> None:
    """Cells are quoted where needed or everywhere, and empty lines may stand between rows."""
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
@example(
    pieces=["a", '"', "\n", '"x', "\n", 'y"', "\n", "a"], rows=1
)  # a cell like 5" and a quoted cell of two lines
@example(pieces=['"', "a", '"', "a", '"', "\n", "a", "\n"], rows=1)  # a cell that continues after its closing quote
def test_any_bytes_are_read_as_pyarrow_reads_the_whole_file(folder: Path, pieces: list[str], rows: int) -> None:
    """This includes malformed CSV: quotes inside a cell, lines that end in a carriage return only."""
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
    except pa.ArrowInvalid:  # for example, a row with two columns
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
def test_short_files_and_unusual_line_endings_are_read(tmp_path: Path, text: str, rows: int) -> None:
    (tmp_path / "rows.csv").write_bytes(text.encode())
    found = in_parts(tmp_path / "rows.csv", 1)
    assert len(found) == rows
    assert len(set(found)) == rows


def test_column_names_may_contain_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('"the\n""first"" column",b\n1,2\n3,4\n')
    files = find_files(tmp_path / "rows.csv")
    columns = ['the\n"first" column', "b"]
    assert files.schemas[0].names == columns
    found = find_parts(files, 1)
    assert len(found) == 2
    assert rows_of(files, found, columns, CsvColumns({})) == [(1, 2), (3, 4)]


@pytest.mark.usefixtures("chunks")
def test_parts_of_csv_have_about_the_requested_number_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + "".join(f"{i:06},x\n" for i in range(1000)))
    files = find_files(path)
    sizes = [len(rows_of(files, [part])) for part in find_parts(files, 100)]
    assert sum(sizes) == 1000
    assert all(50 <= size <= 150 for size in sizes)
    assert len(find_parts(files, 10**9)) == 1


def test_gaps_are_those_of_pandas_unless_a_column_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b,c\nNA,NA,NA\n,,\nNaN,None,7\n<NA>,x,null\n")
    files = find_files(path)
    gaps = {"a": ("", "NaN", "<NA>")}
    text = CsvColumns({"a": pa.string(), "b": pa.string(), "c": pa.float64()}, gaps)
    expected = [("NA", None, None), (None, None, None), (None, None, 7.0), (None, "x", None)]
    assert rows_of(files, find_parts(files, 1), ["a", "b", "c"], text) == expected


def test_the_schema_of_a_long_csv_file_comes_from_its_first_rows(tmp_path: Path) -> None:
    """The first block may end inside a row or inside a cell of several lines."""
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
def test_row_groups_are_joined_until_a_part_has_the_requested_rows(
    tmp_path: Path, rows: int, sizes: list[int]
) -> None:
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


def test_columns_are_read_in_the_requested_order(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", 0, 2)
    files = find_files(tmp_path / "rows.parquet")
    part = find_parts(files, 10)[0]
    for columns in (["b", "a"], ["b"]):
        assert next(read_part(files.system, part, columns, TEXT, 10)).schema.names == columns


def test_a_large_row_group_is_read_in_small_batches(tmp_path: Path) -> None:
    """Pyarrow holds some pages of each column and two batches: less than half of the 24 MB."""
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


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, [1] * 9), (2, [1, 2, 2, 2, 2]), (4, [3, 3, 3]), (8, [4, 5]), (9, [9]), (100, [9])]
)
def test_a_single_row_group_is_divided(tmp_path: Path, rows: int, sizes: list[int]) -> None:
    write(tmp_path / "rows.parquet", 0, 9)
    files = find_files(tmp_path / "rows.parquet")
    found = with_slices(find_parts(files, rows), rows)
    assert [part.rows for part in found] == sizes
    assert [len(rows_of(files, [part])) for part in found] == sizes
    assert len({part.name for part in found}) == len(sizes)
    assert rows_of(files, found) == [(str(i), i) for i in range(9)]


def test_large_row_groups_are_divided_into_few_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read a slice, the rows before it are read too, so the work would grow with the number of slices."""
    monkeypatch.setattr(file_parts, "_CHEAP_ROWS", 1000)
    write(tmp_path / "rows.parquet", 0, 200, group=200)
    assert len(with_slices(find_parts(find_files(tmp_path), 1), 1)) == 8


def test_slices_of_several_files_are_numbered_by_file_and_csv_is_left_alone(tmp_path: Path) -> None:
    for name in ("a", "c"):
        write(tmp_path / f"{name}.parquet", 0, 15)
    (tmp_path / "b.csv").write_text("a,b\n" + "1,2\n" * 9)
    files = find_files(tmp_path)
    found = with_slices(find_parts(files, 9), 9)
    assert [(part.file, part.number, part.skipped, part.rows) for part in found if part.file != 1] == [
        *((0, 0, 0, 5), (0, 1, 5, 5), (0, 2, 0, 5)),
        *((2, 0, 0, 5), (2, 1, 5, 5), (2, 2, 0, 5)),
    ]
    assert [part for part in found if part.file == 1] == [part for part in find_parts(files, 9) if part.file == 1]
    assert str(found[1]) == f"{tmp_path}/a.parquet, row groups 0 to 1, from row 5"


def test_row_groups_stay_whole_where_there_are_enough_parts(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", 0, 80)
    found = find_parts(find_files(tmp_path), 5)
    assert with_slices(found, 5) == found


def most_held(path: Path, rows: int) -> int:
    """Return the largest number of bytes that Arrow holds while a CSV file is divided and read as one part."""
    line = '3.25,4"5\n' if path.stem == "quote" else "3.25,4.5\n"
    data = ("a,b\n" + line * rows).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    before, held, read = pa.total_allocated_bytes(), [0], 0
    files = find_files(path)
    (part,) = with_slices(find_parts(files, 10**9), 10**9)
    for batch in read_part(files.system, part, COLUMNS, TEXT, 1000):
        held.append(pa.total_allocated_bytes() - before)
        read += len(batch)
    assert read == rows
    return max(held)


@pytest.mark.parametrize("name", ["plain.csv", "quote.csv", "compressed.csv.gz"])
def test_csv_is_streamed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held does not grow with the file, also where the file cannot be divided."""
    for size in ("SCAN_BYTES", "_READ_BYTES"):
        monkeypatch.setattr(csv_files, size, 1 << 16)
    few, many = (most_held(tmp_path / name, rows) for rows in (300_000, 1_200_000))
    assert many < 1.5 * few


def test_a_column_with_a_dot_in_its_name_is_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "a.b": [2], "c": [{"d": 3}]}), tmp_path / "rows.parquet")
    files = find_files(tmp_path / "rows.parquet")
    for columns, expected in ((["a"], (1,)), (["a.b"], (2,)), (["c", "a"], ({"d": 3}, 1))):
        assert rows_of(files, find_parts(files, 10), columns) == [expected]


def test_upper_case_suffixes_are_read_and_skipped_files_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.CSV").write_text("a,b\n1,1\n")
    (tmp_path / "b.CSV.GZ").write_bytes(gzip.compress(b"a,b\n2,2\n"))
    pq.write_table(pa.table({"a": ["3"], "b": ["3"]}), tmp_path / "c.PARQUET")
    (tmp_path / "notes.txt").write_text("no data")
    files = find_files(tmp_path)
    assert rows_of(files, find_parts(files, 10)) == [("1", "1"), ("2", "2"), ("3", "3")]
    (told,) = caplog.messages
    assert told.startswith(f"skipping 1 files in {tmp_path} whose names do not end in")
    assert "notes.txt" in told


def test_booleans_with_gaps_are_read_as_pandas_writes_them(tmp_path: Path) -> None:
    pd.DataFrame({"b": [True, None, False]}).astype(float).to_csv(tmp_path / "rows.csv", index=False)
    files = find_files(tmp_path)
    (part,) = find_parts(files, 10)
    (batch,) = read_part(files.system, part, ["b"], CsvColumns({"b": pa.bool_()}), 10)
    assert batch["b"].to_pylist() == [True, None, False]


# Reproducibility


def test_parts_stay_the_same_until_a_file_changes(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write(tmp_path / name, 0, 1)
    first = find_parts(find_files(tmp_path), 1)
    assert find_parts(find_files(tmp_path), 1) == first
    assert len({part.name for part in first}) == len(first)
    write(tmp_path / "b.parquet", 0, 2)
    changed = [part for part in find_parts(find_files(tmp_path), 1) if part not in first]
    assert {part.path for part in changed} == {str(tmp_path / "b.parquet")}
    assert not {part.name for part in changed} & {part.name for part in first}


def test_the_text_of_a_part_names_its_file_and_range(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", 0, 20)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    texts = [str(part) for part in find_parts(find_files(tmp_path), 10)]
    assert texts == [
        f"{tmp_path}/rows.csv, bytes 4 to 8",
        f"{tmp_path}/rows.parquet, row groups 0 to 1",
        f"{tmp_path}/rows.parquet, row groups 1 to 2",
    ]


# Another file system


def test_parts_are_read_from_another_file_system() -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    try:
        locate("fsspec+memory://rows")
    except InputError:
        pytest.skip("this pyarrow has no support for fsspec")
    memory = fsspec.filesystem("memory")
    for name in ("a.csv", "b.csv", "deep/c.csv", "_d.csv"):
        memory.pipe(f"/rows/{name}", f"a,b\n{name},2\nx,\n".encode())
    try:
        files = find_files("fsspec+memory://rows")
        rows = [row for name in ("a.csv", "b.csv", "deep/c.csv") for row in ((name, "2"), ("x", None))]
        assert rows_of(files, find_parts(files, 1)) == rows
    finally:
        memory.rm("/rows", recursive=True)
