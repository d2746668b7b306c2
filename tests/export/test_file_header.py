"""Tests of reading the configuration of an explainer's file without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from problems import explainer, numbers

from fastshapley import FastSHAP
from fastshapley.errors import FileFormatError
from fastshapley.export.file_header import read_config

SCRIPT = """
import json, sys
from pathlib import Path
sys.modules.update(torch=None, pandas=None, shap=None, sklearn=None, scipy=None)
from fastshapley.export.file_header import read_config
print(json.dumps(read_config(Path(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("header") / "numbers.fastshap"
    explainer(lambda rows: rows[:, 0]).fit(numbers()).save(path)
    return path


def test_the_configuration_is_read_where_heavy_packages_cannot_be_imported(saved: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(saved)], capture_output=True, text=True, check=True)
    config = json.loads(done.stdout)
    assert config == read_config(saved)
    report = FastSHAP.load(saved).report_
    assert report is not None
    assert config["report"] == json.loads(json.dumps(report.to_dict()))


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_changed_byte_is_found_without_torch(saved: Path, tmp_path: Path, place: int) -> None:
    data = bytearray(saved.read_bytes())
    data[place] ^= 1
    (tmp_path / "changed.fastshap").write_bytes(data)
    with pytest.raises(FileFormatError, match="damaged"):
        read_config(tmp_path / "changed.fastshap")


def test_a_file_that_is_cut_short_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.fastshap").write_bytes(saved.read_bytes()[:-8])
    with pytest.raises(FileFormatError, match="is cut short"):
        read_config(tmp_path / "cut.fastshap")
