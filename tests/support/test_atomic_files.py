"""Files that are complete, or are not there."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastshapley.errors import InputError
from fastshapley.support.atomic_files import (
    check_output,
    create_text,
    json_text,
    temporary_path,
    write_atomically,
    write_bytes,
    write_text,
)


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


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_new_file_has_the_mode_of_the_umask_and_a_replaced_file_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "a")
        (tmp_path / "old").touch()
        for mode in (0o664, 0o600, 0o444):
            (tmp_path / "old").chmod(mode)
            write_text(tmp_path / "old", "b")
            assert (tmp_path / "old").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_content_that_replaces_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    modes = []

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        modes.append(temporary.stat().st_mode & 0o777)

    write_atomically(path, write)
    assert modes == [0o600]


def test_links_are_kept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "dangling").symlink_to(tmp_path / "later" / "file")
    for name in ("link", "dangling"):
        write_text(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == "new"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]


@pytest.mark.skipif(os.name != "posix", reason="pipes are those of POSIX")
def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is a device or a pipe"):
        write_text(tmp_path / "pipe", "a")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(os.name != "posix", reason="processes are those of POSIX")
def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    """What a process leaves that is running stays."""
    script = """
        import os, signal, sys
        from pathlib import Path
        from fastshapley.support.atomic_files import temporary_path, write_atomically
        temporary_path(Path(sys.argv[1])).mkdir()
        write_atomically(Path(sys.argv[1]) / "file", lambda path: os.kill(os.getpid(), signal.SIGKILL))
    """
    script = "\n".join(line.strip() for line in script.splitlines())
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    own = temporary_path(tmp_path)
    own.touch()
    (tmp_path / ".fastshapley.other-machine.1.0a").touch()
    (tmp_path / ".fastshapley").touch()
    write_text(tmp_path / "file", "new")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"file", own.name, ".fastshapley.other-machine.1.0a", ".fastshapley"}


def test_a_long_file_name_is_possible(tmp_path: Path) -> None:
    write_text(tmp_path / ("a" * 255), "content")
    assert (tmp_path / ("a" * 255)).read_text() == "content"


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(temporary: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device, free some space there.*model\.bin") as raised:
        write_atomically(tmp_path / "model.bin", fail)
    assert raised.value.errno == errno.ENOSPC

    def fail_of_limit(temporary: Path) -> None:
        raise OSError(errno.EFBIG, "File too large")

    with pytest.raises(OSError, match=r"File too large, raise the limit of the size of files.*model\.bin"):
        write_atomically(tmp_path / "model.bin", fail_of_limit)
    monkeypatch.setattr(Path, "write_text", lambda path, *args, **options: fail(path))
    with pytest.raises(OSError, match=r"No space left on device, free some space there.*run\.json"):
        create_text(tmp_path / "run.json", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_one_of_several_writers_creates_a_file(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError("this file system has no links")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "new" / "file"
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: create_text(path, f"{number}\n"), range(8)))
    assert created.count(True) == 1
    assert path.read_text() == f"{created.index(True)}\n"
    assert list(path.parent.iterdir()) == [path]
