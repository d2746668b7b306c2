"""Damaged files and full disks, for `reliability`."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from problems import QUICK, explainer, people, people_model

from fastshapley import FastSHAP, Recipe, Training
from fastshapley.errors import FileFormatError
from fastshapley.export import Graph

FLIPS, CUTS = 500, 200


def prepare(folder: Path) -> tuple[FastSHAP, pd.DataFrame]:
    """Save and export a small explainer with error bars: people.fastshap and people.onnx."""
    fitted, X, graph = fit()
    fitted.save(folder / "people.fastshap")
    (folder / "people.onnx").write_bytes(graph)
    return fitted, X


@cache
def fit() -> tuple[FastSHAP, pd.DataFrame, bytes]:
    """Return the explainer, its rows and its graph."""
    X, y = people(400)
    recipe = Recipe(**{**vars(QUICK), "errors": Training(steps=50)})
    fitted = explainer(people_model(X, y), recipe=recipe).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.onnx"
        fitted.export_onnx(path)
        return fitted, X, path.read_bytes()


def damage(folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Flip bits of both files and cut them, and load what results."""
    _, X = prepare(folder)
    rows = Graph(folder / "people.onnx").encode(X[:8].to_dict(orient="records"))

    def load(path: Path) -> bytes:
        return np.asarray(FastSHAP.load(path).shap_values(X[:8])).tobytes()

    def graph(path: Path) -> bytes:
        return b"".join(array.tobytes() for array in Graph(path)(rows).values())

    found = []
    for name, read in (("people.fastshap", load), ("people.onnx", graph)):
        data = (folder / name).read_bytes()
        start, end = metadata(data)
        for what, low, high, times in (
            ("one bit flipped, anywhere", 0, len(data), FLIPS),
            ("one bit flipped, in the metadata", start, end, FLIPS),
            ("cut short", 0, len(data), CUTS),
        ):
            rng = random.Random(f"{name} {what}")
            times = 10 if quick else times
            changed = (
                cut(data, rng) if what == "cut short" else flipped(data, rng.randrange(low, high), rng.randrange(8))
                for _ in range(times)
            )
            counts = outcomes(changed, folder / "damaged", read, read(folder / name))
            found.append({"file": name, "bytes": len(data), "damage": what, "times": times, **counts})
    return found


def metadata(data: bytes) -> tuple[int, int]:
    """Return where the metadata of a file begin and end."""
    if data[8:9] == b"{":  # safetensors: eight bytes with the length of a JSON header
        return 0, 8 + int.from_bytes(data[:8], "little")
    return data.index(b"fastshapley"), len(data)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def outcomes(
    changed: Iterator[bytes], path: Path, read: Callable[[Path], bytes], expected: bytes
) -> dict[str, Any]:
    """Count how damaged files are read: refused, with the same values, with others, or with another error."""
    counts: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for data in changed:
        path.write_bytes(data)
        try:
            counts["same values" if read(path) == expected else "other values"] += 1
        except FileFormatError:
            counts["refused"] += 1
        except Exception as error:  # this is what is looked for
            counts["other errors"] += 1
            errors[f"{type(error).__name__}: {str(error)[:200]}"] += 1
    names = ("refused", "same values", "other values", "other errors")
    return {**{name: counts[name] for name in names}, "errors": dict(errors)}


def disk(folder: Path) -> list[dict[str, Any]]:
    """Replace files where there is no space for the new one."""
    fitted, _ = prepare(folder)
    found: list[dict[str, Any]] = []
    writers: dict[str, Callable[[Path], Any]] = {"people.fastshap": fitted.save, "people.onnx": fitted.export_onnx}
    for name, write in writers.items():
        size = (folder / name).stat().st_size
        for how, limited in (("full disk (tmpfs)", full_disk), ("RLIMIT_FSIZE", short_files)):
            home = folder / f"{name}-{how.split()[0]}"
            home.mkdir()
            path = home / name
            with limited(home, size, (folder / name).read_bytes()) as possible:
                if not possible:
                    found.append({"file": name, "limit": how, "result": "not tried: no permission to mount"})
                    continue
                old = path.read_bytes()
                message = failure(write, path)
                found.append(
                    {
                        "file": name,
                        "limit": how,
                        "result": message.replace(str(home), "FOLDER"),
                        "failed": bool(message),
                        "old file intact": path.read_bytes() == old,
                        "message names the file": str(path) in message,
                        "temporary files": len(list(home.iterdir())) - 1,
                    }
                )
    return found


def failure(write: Callable[[Path], Any], path: Path) -> str:
    try:
        write(path)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def full_disk(folder: Path, size: int, old: bytes) -> Iterator[bool]:
    """Mount a disk that holds the old file, and half of another one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={int(1.5 * size)}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.call(mount, stderr=subprocess.DEVNULL):
        yield False
        return
    try:
        next_file(folder).write_bytes(old)
        yield True
    finally:
        subprocess.check_call(["umount", str(folder)])


@contextmanager
def short_files(folder: Path, size: int, old: bytes) -> Iterator[bool]:
    """Limit the length of files to half of what is needed."""
    next_file(folder).write_bytes(old)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def next_file(folder: Path) -> Path:
    return folder / folder.name.rsplit("-", 1)[0]
