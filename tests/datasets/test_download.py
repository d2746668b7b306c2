"""Tests of downloads: where files are searched, and that wrong or incomplete files are not kept."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from download_server import Server, kept

from fastshapley.datasets.download import Source, cache, find

CONTENT = b"a, b\n1, 2\n"


def packed(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


@pytest.fixture
def source(server: Server) -> Source:
    server.files["/table.zip"] = packed("inside/table.csv", CONTENT)
    return Source(
        "set/table.csv",
        "https://example.org/table",
        server.url("/table.zip"),
        ("inside/table.csv",),
        hashlib.sha256(CONTENT).hexdigest(),
    )


def test_a_file_is_downloaded_once(server: Server, source: Source, home: Path) -> None:
    path = find(source, progress=False)
    assert path == home / ".cache" / "fastshapley" / "set" / "table.csv"
    assert path.read_bytes() == CONTENT
    assert find(source, progress=False) == path
    assert server.asked == 1
    assert kept() == [path]


def test_a_progress_bar_is_shown(source: Source, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    find(source)
    assert "set/table.csv: 100%" in capsys.readouterr().err


def test_the_cache_is_in_xdg_cache_home(
    source: Source, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert find(source, progress=False) == tmp_path / "elsewhere" / "fastshapley" / "set" / "table.csv"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", ["data", "cache"])
def test_an_existing_file_is_not_downloaded(
    suffix: str, place: str, server: Server, source: Source, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(home / "data"))
    folder = home / "data" if place == "data" else cache()
    path = folder / f"{source.name}{suffix}"
    path.parent.mkdir(parents=True)
    path.write_text("the user's own")
    assert find(source, progress=False) == path
    assert server.asked == 0


def test_the_folder_of_the_user_is_searched_before_the_cache(
    source: Source, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(source, progress=False)
    monkeypatch.setenv("FASTSHAPLEY_DATA", str(home / "data"))
    own = home / "data" / source.name
    own.parent.mkdir(parents=True)
    own.write_text("the user's own")
    assert find(source, progress=False) == own


def test_a_file_in_a_nested_zip_file_is_extracted(server: Server, source: Source, home: Path) -> None:
    server.files["/table.zip"] = packed("inner.zip", packed("table.csv", CONTENT))
    nested = replace(source, members=("inner.zip", "table.csv"))
    assert find(nested, progress=False).read_bytes() == CONTENT


def wrong_checksum(server: Server, source: Source) -> Source:
    return replace(source, sha256="0" * 64)


def no_such_file(server: Server, source: Source) -> Source:
    return replace(source, archive=server.url("/gone.zip"))


def no_such_member(server: Server, source: Source) -> Source:
    return replace(source, members=("other.csv",))


def no_zip_file(server: Server, source: Source) -> Source:
    server.files["/table.zip"] = b"<html>moved</html>"
    return source


def broken_off(server: Server, source: Source) -> Source:
    server.cut = 10
    return source


def damaged(server: Server, source: Source) -> Source:
    whole = packed("inside/table.csv", bytes(range(256)) * 64)
    middle = len(whole) // 3
    server.files["/table.zip"] = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    return replace(source, sha256=None)  # Only the checksum in the archive detects it.


def no_server(server: Server, source: Source) -> Source:
    return replace(source, archive="http://127.0.0.1:9/table.zip")


@pytest.mark.parametrize(
    "broken",
    [wrong_checksum, no_such_file, no_such_member, no_zip_file, broken_off, damaged, no_server],
)
def test_a_failed_download_raises_and_keeps_no_file(
    broken: object, server: Server, source: Source, home: Path
) -> None:
    """The error names the download and where to put it."""
    assert callable(broken)
    with pytest.raises(FileNotFoundError) as caught:
        find(broken(server, source), progress=False)
    message = str(caught.value)
    assert "https://example.org/table" in message
    assert str(cache() / "set" / "table.csv") in message
    assert "FASTSHAPLEY_DATA" in message
    assert kept() == []
