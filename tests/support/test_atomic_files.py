"""Files that are complete, or are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastshapley.errors import InputError
from fastshapley.support.atomic_files import check_output, json_text, write_atomically, write_bytes, write_text


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_and_text_are_written_unchanged_into_new_folders(tmp_path: Path) -> None:
    write_bytes(tmp_path / "new" / "folder" / "file", b"\x00\r\n")
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"\x00\r\n"
    write_text(tmp_path / "text", "naïve\n")
    assert (tmp_path / "text").read_bytes() == "naïve\n".encode()


def test_an_output_that_is_also_an_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "rows.csv")
    check_output(tmp_path / "new.csv", tmp_path / "rows.csv")
    check_output(tmp_path / "rows.csv", tmp_path / "missing.csv")
    with pytest.raises(InputError, match="which is also an input: choose another file"):
        check_output(tmp_path / "link.csv", tmp_path / "rows.csv")


def test_numbers_that_json_lacks_become_null() -> None:
    text = json_text({"a": [float("nan"), float("inf"), 1.5], "b": (1, None, "text")})
    assert json.loads(text) == {"a": [None, None, 1.5], "b": [1, None, "text"]}
