"""Files that are there whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastshapley.support.atomic_files import write_atomically, write_bytes, write_text


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the n")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_is_there(tmp_path: Path) -> None:
    write_bytes(tmp_path / "new" / "folder" / "file", b"\x00\r\n")
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"\x00\r\n"
    write_text(tmp_path / "text", "naïve\n")
    assert (tmp_path / "text").read_bytes() == "naïve\n".encode()
