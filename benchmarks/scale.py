"""Rows a second on one machine and on Ray: next to the bare networks, in rows, in players, and what it adds up to.

    FASTSHAPLEY_DATA=../shared/data python benchmarks/scale.py            (half an hour; needs 6 GB of disk)

writes docs/results/scale.json after every part and goes on from there when started again; then docs/scale.md.
Rows are the census's (12 columns), drawn again and again with a little noise on the numbers, so that no file is
smaller than such rows are. Each run is a process of its own, whose peak memory the kernel counts.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch
from scale_page import page

from fastshapley import FastSHAP, Recipe, Training
from fastshapley.datasets import load_census
from fastshapley.datasets.download import cache
from fastshapley.support.atomic_files import write_text
from fastshapley.training.recipes import default
from fastshapley.training.run import one_thread
from fastshapley.value_functions import Surrogate

RESULT = Path(__file__).parent.parent / "docs" / "results" / "scale.json"
PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
FOLDER = cache() / "scale"
SIZES = (100_000, 1_000_000, 10_000_000)
ROUNDS = 3
PLAYERS = (10, 20, 50, 100, 200, 500)
BATCHES = (2048, 4096, 8192)  # rows of a forward pass: the bare networks may choose
NOISY = ("Age", "Capital Gain", "Capital Loss", "Hours per week")


def prepare() -> None:
    """Fit the explainer and write the rows, once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    data = load_census()
    if not (FOLDER / "census.fastshap").exists():
        model = lightgbm.LGBMClassifier(n_estimators=200, num_leaves=10, verbose=-1, n_jobs=1)
        model.fit(data.X_train, data.y_train)
        FastSHAP(model, random_state=0, progress=False).fit(data.X_train).save(FOLDER / "census.fastshap")
    for rows in SIZES:
        if not (path := FOLDER / f"{rows}.parquet").exists():
            _write_rows(path.with_suffix(".part"), rows, data.X_train)
            path.with_suffix(".part").rename(path)


def _write_rows(path: Path, rows: int, X: Any) -> None:
    rng = np.random.default_rng(0)
    fields = [("number", pa.int64()), *((str(name), pa.float64()) for name in X.columns)]
    with pq.ParquetWriter(path, pa.schema(fields)) as writer:
        for start in range(0, rows, 1 << 18):
            count = min(1 << 18, rows - start)
            drawn = X.iloc[rng.integers(0, len(X), count)]
            columns = [drawn[name].to_numpy() + (name in NOISY) * rng.normal(0, 0.1, count) for name in X.columns]
            table = pa.Table.from_arrays(
                [pa.array(np.arange(start, start + count)), *map(pa.array, columns)], schema=writer.schema
            )
            writer.write_table(table)


def bare(rows: int = 1 << 20) -> dict[str, float]:
    """Rows a second of the forward passes alone, on every processor: of the explainer's network, and of both."""
    explainer = FastSHAP.load(FOLDER / "census.fastshap")
    game = explainer.value_function_
    assert isinstance(game, Surrogate)
    table = pq.ParquetFile(FOLDER / f"{SIZES[1]}.parquet").read(columns=list(explainer.feature_names_in_))
    x = torch.from_numpy(np.stack([column.to_numpy() for column in table.columns], axis=1)[:rows])

    def seconds(batch: int, networks: list[Callable[[torch.Tensor], Any]]) -> float:
        def one(part: torch.Tensor) -> None:
            with torch.no_grad():
                for network in networks:
                    network(part)

        with one_thread(), ThreadPoolExecutor(os.cpu_count()) as pool:
            start = time.perf_counter()
            list(pool.map(one, x.split(batch)))
            return time.perf_counter() - start

    def pace(networks: list[Callable[[torch.Tensor], Any]]) -> float:
        return len(x) / min(seconds(batch, networks) for batch in BATCHES)

    known: Any = game.network_.known
    pace([explainer.network_])  # once for the caches
    return {"explainer": pace([explainer.network_]), "both": pace([explainer.network_, known])}


def explained(rows: int, *, ray: bool = False) -> dict[str, float]:
    """Rows a second of ``fastshapley explain``, its seconds from start to end, and its peak memory, in GiB."""
    output = FOLDER / "out"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "fastshapley", "explain", str(FOLDER / "census.fastshap")]
    command += [str(FOLDER / f"{rows}.parquet"), "-o", str(output), "--quiet", *(["--ray"] if ray else [])]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert status == 0, said
    keys = ds.dataset(output).to_table(columns=["number"])["number"].to_numpy()
    assert len(keys) == rows
    assert (np.bincount(keys, minlength=rows) == 1).all()
    pace = float(said.split(" rows per second")[0].rsplit(" ", 1)[1].replace(",", ""))
    return {"pace": pace, "seconds": seconds, "memory": usage.ru_maxrss / 2**20}


def rows_a_second() -> dict[str, Any]:
    """The largest file, next to the bare networks, which take turns with it."""
    found: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        networks = json.loads(
            subprocess.run(
                [sys.executable, __file__, "bare"], check=True, capture_output=True, text=True
            ).stdout.splitlines()[-1]
        )
        found.append({**networks, **explained(SIZES[-1])})
        print(found[-1], flush=True)
    return {"rounds": found}


def in_rows() -> dict[str, Any]:
    """Seconds against rows: of each size as many runs as rounds."""
    found = {str(rows): [explained(rows) for _ in range(ROUNDS)] for rows in SIZES[:-1]}
    return {
        size: {name: statistics.median(r[name] for r in runs) for name in runs[0]} for size, runs in found.items()
    }


def on_ray() -> dict[str, Any]:
    """The same by two processes of Ray, which take turns with the threads."""
    found = []
    for _ in range(ROUNDS):
        found.append({"ray": explained(SIZES[-1], ray=True), "here": explained(SIZES[-1])})
        print(found[-1], flush=True)
    return {"rounds": found}


def in_players() -> dict[str, Any]:
    """Microseconds a row and processor against players, of one output, with the default recipe's layers.

    The networks have not learnt anything, which takes no longer.
    """
    found = {}
    rng = np.random.default_rng(0)
    for players in PLAYERS:
        X = rng.normal(size=(512, players))
        layers = default(24_000, players)
        recipe = Recipe(
            surrogate=(Training(steps=1),),
            explainer=Training(steps=1),
            surrogate_layers=layers.surrogate_layers,
            explainer_layers=layers.explainer_layers,
            coalitions=2,
            own_units=layers.own_units,
            tails=layers.tails,
        )
        explainer = FastSHAP(_first, recipe=recipe, random_state=0, progress=False).fit(X)
        path, output = FOLDER / f"players {players}.parquet", FOLDER / "out"
        rows = 4_000_000 // players
        columns = [pa.array(rng.normal(size=rows)) for _ in range(players)]
        pq.write_table(pa.Table.from_arrays(columns, names=[f"x{j}" for j in range(players)]), path)
        paces = []
        for _ in range(ROUNDS):
            shutil.rmtree(output, ignore_errors=True)
            explained = explainer.explain_to(path, output, part_rows=1 << 15)
            paces.append(explained.rows / explained.seconds)
        path.unlink()
        found[str(players)] = 1e6 * (os.cpu_count() or 1) / statistics.median(paces)
        print(players, found[str(players)], flush=True)
    return found


def _first(rows: Any) -> Any:
    return rows[:, 0]


def training() -> dict[str, Any]:
    """The census: seconds and error of fits alone and by two processes of Ray, seed by seed."""
    import ray

    data = load_census()
    model = lightgbm.LGBMClassifier(n_estimators=200, num_leaves=10, verbose=-1, n_jobs=1)
    model.fit(data.X_train, data.y_train)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    rows, found = data.X_test[:256], []
    for seed in range(ROUNDS):
        for workers in (1, 2):
            X = data.X_train if workers == 1 else ray.data.from_pandas([data.X_train[i::8] for i in range(8)])
            start = time.perf_counter()
            explainer = FastSHAP(model, random_state=seed, progress=False).fit(
                X, scaling=None if workers == 1 else workers
            )
            seconds = time.perf_counter() - start
            gaps = np.square(explainer.shap_values(rows) - explainer.estimate(rows).values).sum((1, 2))
            report = explainer.report_
            assert report is not None
            found.append(
                {
                    "seed": seed,
                    "workers": workers,
                    "seconds": seconds,
                    "error": float(gaps.mean()),
                    "interval": float(1.96 * gaps.std() / np.sqrt(len(gaps))),
                    "fidelity": report.fidelity,
                }
            )
            print(found[-1], flush=True)
    ray.shutdown()
    return {"fits": found}


def on_disk() -> dict[str, float]:
    """Bytes a row of a file that is read, and of the files that are written."""
    rows = SIZES[1]
    explained(rows)
    written = sum(path.stat().st_size for path in (FOLDER / "out").glob("*.parquet"))
    return {"read": (FOLDER / f"{rows}.parquet").stat().st_size / rows, "written": written / rows}


def main() -> None:
    """Measure what is not there yet, then write the page."""
    prepare()
    parts = {"rows": rows_a_second, "sizes": in_rows, "ray": on_ray, "players": in_players}
    parts |= {"training": training, "disk": on_disk}
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name, measure in parts.items():
        if name not in found:
            found[name] = measure()
            write_text(RESULT, json.dumps(found, indent=1))
    write_text(PAGE, page(found))


if __name__ == "__main__":
    if sys.argv[1:] == ["bare"]:
        print(json.dumps(bare()))
    else:
        main()
