"""Tests of the folder that a bulk job writes to."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fastshapley.errors import InputError

pytest.importorskip("pyarrow", reason="needs the bulk extra")
from pyarrow import fs

from fastshapley.bulk.file_parts import Part
from fastshapley.bulk.output_folder import Claim, OutputFolder

CLAIM = Claim("a key", [[1.0], [2.0]], ("/rows.parquet",), 8, "model")
PARTS = [Part("/rows.parquet", "0123abcd", 0, number, number, number + 1) for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(fs.LocalFileSystem(), str(tmp_path / "out"))


def write(folder: OutputFolder, part: Part) -> None:
    """Write the file of a part as a job does."""
    temporary = folder.temporary_file(part)
    Path(temporary).write_text("values")
    folder.publish(temporary, part)


def test_a_new_folder_is_created_with_a_manifest(folder: OutputFolder) -> None:
    folder.claim(CLAIM)
    assert os.listdir(folder.path) == ["_fastshapley.json"]
    manifest = json.loads(Path(folder.path, "_fastshapley.json").read_text())
    assert manifest == {
        "key": "a key",
        "files": ["/rows.parquet"],
        "part_rows": 8,
        "sums_to": "model",
        "answers": [[1.0], [2.0]],
    }


def test_the_same_run_claims_its_folder_again_despite_rounding_of_outputs(folder: OutputFolder) -> None:
    folder.claim(CLAIM)
    folder.claim(replace(CLAIM, outputs=[[1.00001], [2.0]]))
    folder.claim(replace(CLAIM, outputs=None))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(CLAIM, key="another"), "other files, another explainer or other settings"),
        (replace(CLAIM, outputs=[[1.0], [2.1]]), "another model"),
        (replace(CLAIM, outputs=[[1.0]]), "another model"),
        (replace(CLAIM, sums_to="surrogate"), "sum to the output of the model, and those of this run .* with its"),
    ],
)
def test_another_run_cannot_claim_the_folder(folder: OutputFolder, other: Claim, message: str) -> None:
    folder.claim(CLAIM)
    with pytest.raises(InputError, match=message):
        folder.claim(other)


def test_a_manifest_that_does_not_say_what_values_sum_to_is_accepted(folder: OutputFolder) -> None:
    folder.claim(CLAIM)
    path = Path(folder.path, "_fastshapley.json")
    manifest = json.loads(path.read_text())
    del manifest["sums_to"]
    path.write_text(json.dumps(manifest))
    folder.claim(CLAIM)


def test_only_parts_without_a_file_are_missing(folder: OutputFolder) -> None:
    folder.claim(CLAIM)
    write(folder, PARTS[1])
    assert folder.missing(PARTS) == [PARTS[0], PARTS[2]]


def test_parts_of_files_that_have_changed_are_deleted_with_the_mark_of_success(
    folder: OutputFolder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.claim(CLAIM)
    for part in PARTS:
        write(folder, part)
    folder.finish()
    assert folder.missing(PARTS) == []
    assert Path(folder.path, "_SUCCESS").exists()
    changed = [PARTS[0], PARTS[1], replace(PARTS[2], stamp="ffff0000")]
    assert folder.missing(changed) == [changed[2]]
    assert "1 parts belong to files that have changed" in caplog.text
    assert not Path(folder.file_of(PARTS[2])).exists()
    assert not Path(folder.path, "_SUCCESS").exists()


def test_finish_deletes_unfinished_files_of_this_run_and_old_ones_of_others(folder: OutputFolder) -> None:
    folder.claim(CLAIM)
    other = OutputFolder(folder.system, folder.path)
    own, recent, old = (Path(each.temporary_file(PARTS[0])) for each in (folder, other, other))
    for path in (own, recent, old):
        path.touch()
    os.utime(old, (0, 0))
    folder.finish()
    assert [path.exists() for path in (own, recent, old)] == [False, True, False]
