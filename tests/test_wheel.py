"""Tests of the wheel: it contains every file, imports without a warning, and its command runs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs the dev extra")
ROOT = Path(__file__).parent.parent
EVERY_MODULE = """
import importlib, pkgutil, sys, fastshapley
assert fastshapley.__file__.startswith(sys.argv[1]), fastshapley.__file__
for module in pkgutil.walk_packages(fastshapley.__path__, "fastshapley."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (made,) = folder.glob("fastshapley-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder that contains only the installed wheel."""
    folder = wheel.parent / "installed"
    pip("install", "--no-deps", "--target", str(folder), str(wheel))
    return folder


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another folder, with the installed wheel on its path."""
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False
    )


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "fastshapley").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("fastshapley/")}
    assert found == expected
    assert {"fastshapley/py.typed", "fastshapley/serving/static/index.html"} <= found


def test_every_module_is_imported_without_a_warning(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-c", EVERY_MODULE, str(installed))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "fastshapley", "report", "nothing.fastshap")
    assert done.returncode == 1
    assert done.stderr == "fastshapley report: nothing.fastshap does not exist\n"
