"""The page of `reliability`, from its numbers."""

from __future__ import annotations

import re
from typing import Any

from fastshapley.paper.table_page import table

CASES = {
    "duplicates": "80 rows, each 25 times",
    "same rows": "200 rows, and `X_val=X`",
    "scales": "2000 rows, two outputs, the first about 1000 times as large",
    "noisy": "2000 rows, a model with noise of variance .25",
    "rare": "2000 rows, a category in 1 % of them",
    "ordinary": "2000 rows",
    "unusual": "2000 rows, the first fit: true errors of rows near (2.5, 2.5, 2.5, 2.5)",
    "outside": "2000 rows, eight columns: true errors of rows with one column at 4 times its largest value",
}


CLAIMS = ("claimed error", "error, corrected", "error, network")
ATTACKS = """
One server (`fastshapley serve people.onnx`, default limits) is attacked in seven ways, one after the other. During
this, another client asks for its health about 50 times per second, each time on a new connection. `closed` means
  that
the server closed the connection without an answer. 503 is the documented answer of a server with too many
  connections.

- **Bodies that are longer than the limit**: a `content-length` of 99,999,999,999, or chunks without end.
- **Trailers without end**: a chunked body, followed by one endless trailer or endlessly many.
- **`Upgrade: h2c` with a body**: the body is a request, which must not be answered.
- **Half-open connections**: each sends the start of a request and then nothing. They stay open for 3 seconds. The
  server's limit is 1000 connections. "Answers" says how many are still open then.
- **Unfinished requests**: requests without their last byte. "Answers" are those to ten valid requests meanwhile.
- **Large bodies**: 7.9 MB each (the limit is 8 MB), of five kinds: a valid request with spaces, too many valid
  rows, 7.9 million opening brackets, one very long category, and too many short rows.
- **Malformed requests**: V1 and V2 requests with bytes changed, cut short, repeated, replaced, or with a wrong
  value.
""".strip()
REPORT_INTRODUCTION = """
Each line is a default fit with `random_state=0`. The tables have three, four or eight independent columns, and the
models are known functions, so the Shapley values of the models are known. "Reported" is from `report_`. "True" is
measured on other rows: the network against `explainer.estimate(rows, "exact")`, the game's exact values against the
model's, and the values against the model's. All numbers are squared errors relative to the squared values. Of
  several
outputs, the total is that of the worst one. For comparison, the first line is an ordinary fit.
""".strip()


def page(found: dict[str, Any]) -> str:
    minutes = sum(found["seconds"].values()) / 60
    parts = [
        "# What breaks, and what does not",
        f"`python benchmarks/reliability.py` writes this page (fastshapley {found['version']}, {minutes:.0f} "
        "minutes on two shared, busy cores); every number is in [reliability.json](reliability.json). All "
        "random choices are seeded, so the same files are damaged at the same places again. Times "
        "and memory differ from run to run.",
        "## In short",
        _short(found),
        "## Damaged files",
        "A small explainer and its graph were damaged and loaded. A damaged file must raise `FileFormatError`, or "
        "give the same values. The metadata are the JSON header of the `.fastshap` file, and everything from the "
        "first metadata entry of the `.onnx` file to its end, which includes the digest.",
        table(
            [
                "file",
                "bytes",
                "damage",
                "times",
                "`FileFormatError`",
                "loaded, same values",
                "loaded, other values",
                "another error",
            ],
            [
                [
                    each["file"],
                    f"{each['bytes']:,}",
                    each["damage"],
                    str(each["times"]),
                    *(str(each[name]) for name in ("refused", "same values", "other values", "other errors")),
                ]
                for each in found["files"]
            ],
        ),
        *_unexpected(found["files"]),
        "## No space left",
        "`save` and `export_onnx` replaced a file where there was space for half of the new one. A file system in "
        "memory (tmpfs) is a disk that is really full; it needs the right to mount. `RLIMIT_FSIZE` limits the "
        "length of a file instead.",
        table(
            ["file", "limit", "error", "old file intact", "message names the file", "temporary files left"],
            [_disk_row(each) for each in found["disk"]],
        ),
        "## Killed fits",
        _fits(found["fits"]),
        "## Killed bulk runs",
        _bulk(found["bulk"]),
        "## A server with malicious clients",
        _server(found["server"]),
        "## A graph that never ends",
        _graphs(found["graphs"]),
        "## The report next to the truth",
        _reports(found["reports"]),
        "## What this does not show",
        _flowing(NOT_SHOWN),
    ]
    return "\n\n".join(parts) + "\n"


NOT_SHOWN = """
- **Forged files.** Nobody computed a new digest after the change: a digest finds damage, not forgery. Files that
  were written before there were digests are not checked at all.
- **Power failures.** SIGKILL ends a process, not the operating system. What the disk had not written yet is another
  question, and so are network file systems.
- **Every moment.** Kills were few, and at random times. A moment that lasts microseconds was probably not hit.
- **Large models.** The explainers are small. A fit or a graph of a large one spends its time elsewhere.
- **A whole network of clients.** All clients ran on the same machine as the server, without TLS and without a
  proxy. Nobody tried for hours.
- **Dependent columns.** The Shapley values of the models are known here because the columns are independent.
  [Distance to the user's model](fidelity.md) has dependent columns, and reports that are further from the truth.
""".strip()


def _short(found: dict[str, Any]) -> str:
    files, reports = found["files"], found["reports"]
    tried, other = (sum(each[name] for each in files) for name in ("times", "other values"))
    refused = sum(each["refused"] for each in files)
    disks = [each for each in found["disk"] if "failed" in each]
    fits = [run for game in found["fits"] for run in game["runs"]]
    runs = [*fits, *found["bulk"]["runs"]]
    health = [sum(each[name] for each in found["server"]["attacks"]) for name in ("answered", "health checks")]
    slowest = max(each["slowest"] for each in found["server"]["attacks"])
    copies = reports["duplicates"]
    factor = copies["truth"]["total"] / copies["report"]["total"]
    return _flowing(f"""
- {refused} of {tried} damaged files were refused; {other} gave other values.
- A save that failed left the old file intact in {sum(each["old file intact"] for each in disks)} of {len(disks)}
  trials.
  The message named the file in {sum(each["message names the file"] for each in disks)}.
- After {sum(run["killed"] for run in runs)} kills, {sum(run["same bytes"] for run in runs)} of {len(runs)}
  resumed runs
  gave the same bytes as uninterrupted ones. Fits left {sum(run["temporary files"] for run in fits)} temporary
  files.
  Bulk runs left unfinished files, which stay for an hour.
- Under attack, the server answered {health[0]} of {health[1]} health checks, the slowest in {slowest:.2f} s.
- Where few or no new rows were measured, the report was too optimistic, and warned: by a factor of {factor:.0f}
  in a fit
  to 80 different rows.
- Rows unlike the held-out ones can have much larger errors than the report says. Outside of the training range,
  error
  bars are withheld.
""")


def _unexpected(files: list[dict[str, Any]]) -> list[str]:
    errors = [f"- `{each['file']}`, {each['damage']}: {text}" for each in files for text in each["errors"]]
    return ["Other errors:\n\n" + "\n".join(errors)] if errors else []


def _yes(condition: bool) -> str:
    return "yes" if condition else "**no**"


def _disk_row(each: dict[str, Any]) -> list[str]:
    if "failed" not in each:
        return [each["file"], each["limit"], each["result"], "", "", ""]
    error = f"`{each['result']}`" if each["failed"] else "**none**"
    facts = [_yes(each[name]) for name in ("old file intact", "message names the file")]
    return [each["file"], each["limit"], error, *facts, str(each["temporary files"])]


def _fits(games: list[dict[str, Any]]) -> str:
    runs = [run for game in games for run in game["runs"]]
    killed = sum(run["killed"] for run in runs)
    text = (
        f"Fits with `checkpoint=`, in processes of their own, were killed with SIGKILL at random times {killed} "
        "times in all, and resumed until they ended. The bytes of the resulting values are compared with those "
        "of a fit that nobody killed. The uninterrupted fits took "
        + " and ".join(f"{game['seconds']:.1f} s ({game['game']})" for game in games)
        + "."
    )
    rows = [
        [
            game["game"],
            str(run["killed"]),
            ", ".join(f"{share:.0%}" for share in run["killed at"]),
            _yes(run["same bytes"]),
            str(run["temporary files"]),
        ]
        for game in games
        for run in game["runs"]
    ]
    head = ["game", "kills", "times of the kills, as shares of a whole fit", "same bytes", "temporary files left"]
    return text + "\n\n" + table(head, rows)


def _bulk(found: dict[str, Any]) -> str:
    text = (
        f"`explain_to` wrote {found['parts']} parts, which took {found['seconds']:.1f} s without a kill. It was "
        "killed with SIGKILL at random times and resumed. All parts are compared with those of a run that nobody "
        "killed. A killed run can leave an unfinished file. The next run keeps it if it is less than "
        f"{found['hours until old']:.0f} h old, because another run could still be writing it, and deletes it "
        "later: for the last column, what was left was made to look old."
    )
    rows = [
        [
            str(run["killed"]),
            ", ".join(map(str, run["parts at the kills"])),
            _yes(run["same bytes"]),
            str(run["temporary files after the next run"]),
            str(run["temporary files after a run when these were old"]),
        ]
        for run in found["runs"]
    ]
    head = [
        "kills",
        "finished parts at the kills",
        "same bytes",
        "unfinished files after the next run",
        "... and later",
    ]
    return text + "\n\n" + table(head, rows)


def _server(found: dict[str, Any]) -> str:
    rows = [
        [
            each["attack"],
            str(each["times"]),
            ", ".join(f"{status}: {count}" for status, count in each["answers"].items()),
            f"{each['answered']} of {each['health checks']}",
            f"{each['slowest']:.3f}",
            _yes(each["same answer afterwards"]),
            f"{each['peak MB']:.0f}",
        ]
        for each in found["attacks"]
    ]
    head = [
        "attack",
        "times",
        "answers",
        "health checks answered",
        "slowest, s",
        "valid request answered as before",
        "peak memory so far, MB",
    ]
    faults = sum(
        count
        for each in found["attacks"]
        for status, count in each["answers"].items()
        if status[0] == "5" and status != "503"
    )
    end = (
        f"The resident memory was {found['MB before']:.0f} MB before the first attack. Answers with a status of "
        f"500 or more, other than 503: {faults}. Unexpected errors in the log: "
        f"{found['unexpected errors in the log']}. Server alive afterwards: {_yes(found['alive'])}."
    )
    return "\n\n".join([_flowing(ATTACKS), table(head, rows), end])


def _graphs(found: dict[str, Any]) -> str:
    reload, rows = found["reload"], found["rows"]
    statuses = ", ".join(f"{status}: {count}" for status, count in rows["answers"].items())
    return _flowing(f"""
The file of a served model was replaced by a valid graph that contains an endless loop.

- The server went on with the old graph: {reload["same answers"]} of {reload["asked"]} answers were the same as
  before. It answered {reload["answered"]} of {reload["health checks"]} health checks, the slowest in
  {reload["slowest"]:.3f} s.
- On SIGTERM, while the trial of the new graph was still running, it stopped in {reload["seconds to stop"]:.1f} s
  (limit: `--timeout {reload["limit"]:g}`). The trial's process was stopped: {_yes(reload["trial was stopped"])}.

Another graph is endless for some rows only, so its trial cannot find out. With `--timeout 2`, requests with such
rows were answered with {statuses} (status: count). Other rows were explained as before:
{_yes(rows["good rows as before"])}.
""")


def _reports(found: dict[str, Any]) -> str:
    cases = {"ordinary": found["unusual"]["ordinary"], **found, "unusual": found["unusual"]["unusual"]}
    rows = []
    for name, case in cases.items():
        report, truth = case["report"], case["truth"]
        rows.append([CASES[name], str(report["rows"]), *_pairs(report, truth)])
        if "rare rows" in case:
            rows.append(["... true errors of rows of that category only", "", *_pairs(report, case["rare rows"])])
    head = ["fitted to", "rows of the report", "network: reported, true", "game: reported, true"]
    warnings = [
        f"- {CASES[name]}: " + (" ".join(case["report"]["warnings"]) or "none")
        for name, case in cases.items()
        if name != "unusual"
    ]
    return "\n\n".join(
        [
            _flowing(REPORT_INTRODUCTION),
            table([*head, "total: reported, true"], rows),
            "Warnings of these reports:\n\n" + "\n".join(warnings),
            _noise(found["noisy"]),
            _outside(cases),
        ]
    )


def _pairs(report: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    def several(numbers: list[float]) -> str:
        return " / ".join(f"{number:.4f}" if number < 1 else f"{number:.1f}" for number in numbers)

    pairs = [f"{several(report[name])}, {several(truth[name])}" for name in ("network", "game")]
    return [*pairs, f"{several([report['total']])}, **{several([truth['total']])}**"]


def _noise(case: dict[str, Any]) -> str:
    return (
        f"The noise of the model that is not deterministic has a variance of {case['truth']['noise']:.2f}; the "
        f"report estimates {case['report']['noise']:.3f} and adds all of it to the total. A value contains "
        "only a part of it, so this total is too large. The true errors of the network and the game contain "
        "noise, too, because every exact value comes from noisy calls."
    )


def _outside(cases: dict[str, Any]) -> str:
    unusual, outside, rare = (cases[name] for name in ("unusual", "outside", "rare"))
    rows, tolerance = outside["truth"]["rows"], outside["tolerance"]
    claimed, corrected, network = (outside[name] for name in CLAIMS)
    times = unusual["truth"]["network"][0] / unusual["report"]["network"][0]
    few = rare["rare rows"]["total"] / rare["truth"]["total"]
    return _flowing(f"""
About the last lines:

- **A rare category.** {rare["rare training rows"]} of the 2000 rows have it, so hardly any of the report's rows
  do. The
  true error of rows of this category is {few:.1f} times that of all rows.
- **Rows at an unusual place.** Each of their numbers is inside of the training range, and
  {unusual["rows without error bars"]} of the {unusual["truth"]["rows"]} rows have no error bars. The network's
  error is
  {times:.0f} times the reported one. No report can know that such rows will come. `explainer.check(rows).drifted`:
  {_yes(unusual["drifted"])}.
- **Rows outside of the training range.** `explainer(X, errors=True)` withholds the error bars (NaN) of
  {outside["rows without error bars"]} of these {rows} rows, and of {outside["ordinary rows without error bars"]} of
  {outside["ordinary rows"]} ordinary ones. The largest error of a row, relative to the range of its exact values,
  is
  {network["median"]:.2f} (median; largest {network["largest"]:.2f}) without a tolerance. With `tol={tolerance:g}`
  it is
  {corrected["median"]:.4f} (largest {corrected["largest"]:.4f}). The largest standard error of a row is within the
  tolerance in {outside["rows claimed within the tolerance"]} of {rows} rows (largest {claimed["largest"]:.4f}). The
  largest true error is within it in {outside["rows within the tolerance"]} rows: a tolerance limits the standard
  error,
  and true errors can be larger.
""")


def _flowing(text: str) -> str:
    """Join the lines of each paragraph and of each item of a list."""
    return "\n\n".join(re.sub(r"\n\s*(?!\s|- )", " ", block) for block in text.strip().split("\n\n"))
