"""docs/scale.md, from what benchmarks/scale.py measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastshapley.paper.table_page import table

_CORES = 2  # of these machines
_PAGE = """# What a billion rows need

Measured by `python benchmarks/scale.py` (`FASTSHAPLEY_DATA=../shared/data`) on two shared cores; all numbers are
in [scale.json](results/scale.json). Rows are the census's: 12 columns, two outputs, so 28 columns of values, from
Parquet to Parquet, explained by networks of the default recipe. Each run is a process of its own, from its start to
its end; every row was found in the output exactly once.

## One machine

10,000,000 rows, three rounds in which the bare networks take turns with `fastshapley explain`. "Bare" are the
forward passes alone, of rows that are in memory already, on both cores: of the two networks that an explanation
needs (the explainer's, and the surrogate for what the values sum to), and of the explainer's alone.

{rounds}

The aim was .7 of the bare network, in under 1.5 GiB. It is reached next to both networks; next to the explainer's
alone it is not, as the second one has to run too.

## Rows

{sizes}

A line through these: {start:.1f} s to start, and {million:.2f} s a million rows. Memory does not grow with rows.

## Players

{players}

Up to 50 players it is nearly flat; from there on it grows about as the players do: files, columns and the last
layer are as wide as they are many.

## Ray

The same file by two processes of Ray on the same two cores takes {ray:.2f} times as long (median of three rounds,
in turn): Ray starts processes, which load torch each, and its own need some of the cores. The values are the same
bits. On one machine use threads, the default; Ray is for more than one.

Training on the census, by one process and by two of Ray's workers: mean squared error on 256 test rows.

{fits}

The intervals overlap for every seed. On two cores it takes longer, not less: batches are small, and gradients are
averaged after each. It is for rows that one machine does not hold. {remark}

## A billion rows a day

One core explains {core:,.0f} rows a second, so a billion rows take {billion:.1f} core hours: this machine has them
in {minutes:.0f} minutes, and a day's billion is {day:.0f} % of one core. They are {read:.0f} GB to read and
{written:.0f} GB to write ({read:.0f} and {written:.0f} bytes a row; float32 values hardly compress). No cluster is
needed for it: one `fastshapley explain` when a day's files are there is enough, and `--outputs` with one of two
classes halves what is written.

## A trillion rows, once

{trillion:,.0f} core hours: {alone:.1f} hours of 1000 cores if nothing is lost, {lossy:.1f} with the loss to Ray
that we saw on two. {read:.0f} TB are read and {written:.0f} TB written; in {alone:.1f} hours that is
{reading:.1f} GB and {writing:.1f} GB a second, which object stores deliver to many readers, and few file
servers do.

Where the limits are; none of this was tried at that size:

- **Parts.** At the default of 262,144 rows there would be {parts:.1f} million of them. The driver holds a list of
  all, looks at every file's footer before it starts, and lists the output folder when it goes on. Use
  `--part-rows 10000000` (100,000 parts, a minute each), and one run for each folder, such as a day or a month.
- **The driver.** One process hands out parts and counts them: of a minute each, some 17 a second to 1000 workers.
  If it dies the same command goes on; what was half done is done again.
- **Memory.** A worker needs about what this process did, below 1 GiB, and for many hundred columns some more: what
  a Parquet file's end tells of each column of each 64 MB is held until the part is written. Keep parts small then.
- **Row groups.** A Parquet file's row group is the least that a part can be: a file of one huge group is read by
  one worker.
- **The networks** are most of the time here. More players or outputs cost as above; a GPU would help with them, and
  not with the files.
"""


def page(found: dict[str, Any]) -> str:
    """What was measured, and what it adds up to."""
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
            ["rows", "seconds", "by the line"],
            [[f"{n:,.0f}", f"{s:.1f}", f"{start + slope * n:.1f}"] for n, s in zip(counts, seconds, strict=True)],
        ),
        start=start,
        million=1e6 * slope,
        players=table(
            ["players", "microseconds a row and core, of one output"],
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
            ["`fastshapley explain`, rows a second", *(f"{r['pace']:,.0f}" for r in rounds)],
            ["both networks, bare", *(f"{r['both']:,.0f}" for r in rounds)],
            ["share of that", *(f"**{r['pace'] / r['both']:.2f}**" for r in rounds)],
            ["the explainer's network, bare", *(f"{r['explainer']:,.0f}" for r in rounds)],
            ["share of that", *(f"{r['pace'] / r['explainer']:.2f}" for r in rounds)],
            ["peak memory, GiB", *(f"{r['memory']:.2f}" for r in rounds)],
        ],
    )


def _fits(fits: Sequence[dict[str, float]]) -> str:
    def cells(seed: float, workers: int) -> list[str]:
        [fit] = [fit for fit in fits if (fit["seed"], fit["workers"]) == (seed, workers)]
        return [f"{1e4 * fit['error']:.2f} ± {1e4 * fit['interval']:.2f}", f"{fit['seconds']:.0f}"]

    return table(
        ["seed", "one process, 1e-4", "seconds", "two of Ray's, 1e-4", "seconds"],
        [[str(seed), *cells(seed, 1), *cells(seed, 2)] for seed in sorted({fit["seed"] for fit in fits})],
    )
