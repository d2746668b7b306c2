"""The page docs/scale.md, written from the measurements of benchmarks/scale.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastshapley.paper.table_page import table

_CORES = 2  # cores of the machine that was measured
_PAGE = """# What a billion rows need

`python benchmarks/scale.py` (`FASTSHAPLEY_DATA=../shared/data`) writes this page; all numbers are in
[scale.json](results/scale.json). They were measured on two shared cores. The rows are those of the census: 12
columns and two outputs, so 28 columns of values, from Parquet to Parquet, explained by networks of the default
recipe. Each run is one process, timed from its start to its end. Every row was found in the output exactly once.

## One machine

10,000,000 rows, in three rounds. In each round, the networks alone and `fastshapley explain` take turns.
"Networks alone" means the forward passes of rows that are already in memory, on both cores. An explanation needs
two networks: the explainer's, and the surrogate, which computes what the values sum to.

{rounds}

The goal was .7 of the speed of the networks alone, in less than 1.5 GiB. It is met compared with both networks.
Compared with the explainer's network alone it is not met, because the second network has to run, too.

## Rows

{sizes}

A line through these points: {start:.1f} s to start, and {million:.2f} s per million rows. Memory does not grow
with the number of rows.

## Players

{players}

Up to 50 players the time is nearly constant. Above, it grows about linearly with the number of players, as do the
files, their columns and the last layer.

## Ray

With two Ray processes on the same two cores, the same file takes {ray:.2f} times as long (median of three rounds,
in turn): Ray starts processes that each load torch, and its own processes need some of the cores. The values are
the same bits. On one machine, use threads, the default. Ray is for more than one machine.

Training on the census, with one process and with two Ray workers: the mean squared error on 256 test rows.

{fits}

The intervals overlap for every seed. On two cores, two workers take longer, not less: batches are small, and
gradients are averaged after each batch. Use several workers for rows that do not fit on one machine. {remark}

## A billion rows per day

One core explains {core:,.0f} rows per second, so a billion rows take {billion:.1f} core hours. This machine needs
{minutes:.0f} minutes, and a billion rows per day use {day:.0f} % of one core. They are {read:.0f} GB to read and
{written:.0f} GB to write ({read:.0f} and {written:.0f} bytes per row; float32 values hardly compress). No cluster
is needed: one `fastshapley explain` per day is enough. `--outputs` with one of two classes halves what is
written.

## A trillion rows, once

A trillion rows take {trillion:,.0f} core hours: {alone:.1f} hours on 1000 cores without any loss, {lossy:.1f}
hours with the loss that we measured for Ray on two cores. {read:.0f} TB are read and {written:.0f} TB are
written. In {alone:.1f} hours this is {reading:.1f} GB and {writing:.1f} GB per second. Object stores deliver this
to many readers; few file servers do.

These are the limits. None of them was tried at this size:

- **Parts.** With the default of 262,144 rows there would be {parts:.1f} million parts. The driver holds a list of
  all parts, reads the footer of every file before it starts, and lists the output folder when it continues. Use
  `--part-rows 10000000` (100,000 parts of one minute each), and one run per folder, such as a day or a month.
- **The driver.** One process assigns parts and counts them: with parts of one minute, about 17 per second for 1000
  workers. If it dies, the same command continues; unfinished parts are done again.
- **Memory.** A worker needs about as much as this process, less than 1 GiB. It needs more for many hundred columns,
  because the Parquet metadata of each column of each 64 MB is held until the part is written. Use small parts then.
- **Row groups.** A part cannot be smaller than a row group of a Parquet file. A file with one huge row group is
  read by one worker.
- **The networks** take most of the time here. More players or outputs cost as above. A GPU would speed up the
  networks, but not the files.
"""


def page(found: dict[str, Any]) -> str:
    """Return the page as Markdown, from the measurements and what follows from them."""
    rounds, fits, disk = found["rows"]["rounds"], found["training"]["fits"], found["disk"]
    middle = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    sizes = {int(rows): run["seconds"] for rows, run in found["sizes"].items()} | {10_000_000: middle["seconds"]}
    counts, seconds = np.array(list(sizes), dtype=float), np.array(list(sizes.values()))
    slope, start = np.polyfit(counts, seconds, 1, w=1 / seconds)
    ray = statistics.median(r["ray"]["seconds"] / r["here"]["seconds"] for r in found["ray"]["rounds"])
    core = middle["pace"] / _CORES
    trillion = 1e12 / core / 3600
    return _PAGE.format(
        rounds=_rounds(rounds),
        sizes=table(
            ["rows", "seconds", "seconds on the line"],
            [[f"{n:,.0f}", f"{s:.1f}", f"{start + slope * n:.1f}"] for n, s in zip(counts, seconds, strict=True)],
        ),
        start=start,
        million=1e6 * slope,
        players=table(
            ["players", "microseconds per row and core, one output"],
            [[n, f"{micros:.1f}"] for n, micros in found["players"].items()],
        ),
        ray=ray,
        fits=_fits(fits),
        remark=found["training"].get("remark", ""),
        core=core,
        billion=trillion / 1000,
        minutes=1e9 / middle["pace"] / 60,
        day=100 * 1e9 / core / 86400,
        read=disk["read"],
        written=disk["written"],
        trillion=trillion,
        alone=trillion / 1000,
        lossy=ray * trillion / 1000,
        reading=1e12 * disk["read"] / (3.6 * trillion) / 1e9,
        writing=1e12 * disk["written"] / (3.6 * trillion) / 1e9,
        parts=1e12 / (1 << 18) / 1e6,
    )


def _rounds(rounds: Sequence[dict[str, float]]) -> str:
    return table(
        ["", *(f"round {number}" for number in range(1, len(rounds) + 1))],
        [
            ["`fastshapley explain`, rows per second", *(f"{r['pace']:,.0f}" for r in rounds)],
            ["both networks alone", *(f"{r['both']:,.0f}" for r in rounds)],
            ["`fastshapley explain`, relative to both", *(f"**{r['pace'] / r['both']:.2f}**" for r in rounds)],
            ["the explainer's network alone", *(f"{r['explainer']:,.0f}" for r in rounds)],
            [
                "`fastshapley explain`, relative to the explainer's",
                *(f"{r['pace'] / r['explainer']:.2f}" for r in rounds),
            ],
            ["peak memory, GiB", *(f"{r['memory']:.2f}" for r in rounds)],
        ],
    )


def _fits(fits: Sequence[dict[str, float]]) -> str:
    def cells(seed: float, workers: int) -> list[str]:
        [fit] = [fit for fit in fits if (fit["seed"], fit["workers"]) == (seed, workers)]
        return [f"{1e4 * fit['error']:.2f} ± {1e4 * fit['interval']:.2f}", f"{fit['seconds']:.0f}"]

    return table(
        ["seed", "one process, 1e-4", "seconds", "two Ray workers, 1e-4", "seconds"],
        [[str(seed), *cells(seed, 1), *cells(seed, 2)] for seed in sorted({fit["seed"] for fit in fits})],
    )
