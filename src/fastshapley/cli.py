"""The command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import fastshapley


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``fastshapley`` with the given arguments, by default those of the process."""
    parser = argparse.ArgumentParser(prog="fastshapley", description=fastshapley.__doc__)
    parser.add_argument("--version", action="version", version=f"fastshapley {fastshapley.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="explain a model of scikit-learn's breast cancer table, or digits")
    demo.add_argument("--images", action="store_true", help="a network that reads scikit-learn's digits")
    demo.add_argument("--output", type=Path, default=Path("demo"), help="folder for the pictures (default: demo)")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")
    demo.set_defaults(run=_demo)

    export = commands.add_parser("export", help="write a saved explainer as an ONNX graph")
    export.add_argument("file", type=Path, help="what FastSHAP.save wrote")
    export.add_argument("--output", type=Path, help="the graph (default: the file's name, with .onnx)")
    export.set_defaults(run=_export)

    paper = commands.add_parser("paper", help="reproduce the FastSHAP paper's experiments")
    experiments = paper.add_subparsers(required=True, metavar="experiment")
    tabular = experiments.add_parser(
        "tabular",
        help="accuracy on the four tables: figures 2 and 3, the appendix and the ablation",
        description="Everything that the paper shows for tables, with both recipes side by side. An interrupted "
        "run goes on where it was; a second one only reads. A full run takes some hours on two processors.",
    )
    tabular.add_argument("--only", nargs="+", metavar="TABLE", help="census, marketing, bankruptcy or news")
    tabular.add_argument("--quick", action="store_true", help="less of everything: ten minutes on two processors")
    tabular.set_defaults(run=_paper_tabular)

    images = experiments.add_parser(
        "images",
        help="inclusion and exclusion on images: tables 1, 2 and 4, the curves, limited data and pictures",
        description="Everything that the paper shows for images, at a scale for a processor. An interrupted run "
        "goes on where it was; a second one only reads. A full run takes some hours on two processors.",
    )
    images.add_argument("--dataset", choices=["cifar10", "imagenette"], required=True, help="which images")
    images.add_argument("--quick", action="store_true", help="less of everything: minutes")
    for command in (tabular, images):
        command.add_argument(
            "--output", type=Path, default=Path("results"), help="folder for results (default: results)"
        )
        command.add_argument(
            "--store", type=Path, help="folder for what is computed once (default: in the user's cache)"
        )
        command.add_argument("--workers", type=int, help="processes (default: one a processor)")
        command.add_argument("--quiet", action="store_true", help="no progress bar")
    images.set_defaults(run=_paper_images)

    options = parser.parse_args(arguments)
    result: int = options.run(options)
    return result


def _demo(options: argparse.Namespace) -> int:
    from fastshapley import demo, image_demo

    run = image_demo.run if options.images else demo.run
    found = run(options.output, progress=not options.quiet)
    print(found.report)
    print(
        f"trained in {found.seconds_to_train:.0f} s; {found.microseconds_a_row:.0f} microseconds a row from then on"
    )
    print(f"pictures: {found.page.resolve()}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from fastshapley import FastSHAP

    output = options.output or options.file.with_suffix(".onnx")
    try:
        FastSHAP.load(options.file).export_onnx(output)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"fastshapley export: {error}", file=sys.stderr)
        return 1
    print(f"graph: {output.resolve()}")
    return 0


def _paper_tabular(options: argparse.Namespace) -> int:
    from fastshapley.downloads import cache
    from fastshapley.paper import tabular
    from fastshapley.paper.tables import TABLES

    tables = options.only or list(TABLES)
    if unknown := set(tables) - set(TABLES):
        print(f"--only: no table {sorted(unknown)}; there are {list(TABLES)}", file=sys.stderr)
        return 2
    found = tabular.run(
        options.output,
        tables=[table for table in TABLES if table in tables],
        quick=options.quick,
        store=options.store or cache() / "paper",
        workers=options.workers,
        progress=not options.quiet,
    )
    for game in found["games"]:
        paper, default = (game["explainers"][arm]["l2"] for arm in ("paper", "default"))
        print(f"{game['table']:10} {game['game']:9}  l2 {default:.4f}  (paper's recipe {paper:.4f}, ", end="")
        print(f"printed {game['printed'][0]:.4f})")
    print(f"results: {(options.output / 'tabular.md').resolve()}")
    return 0


def _paper_images(options: argparse.Namespace) -> int:
    from fastshapley.downloads import cache
    from fastshapley.paper import images

    found = images.run(
        options.output,
        options.dataset,
        quick=options.quick,
        store=options.store or cache() / "paper",
        workers=options.workers,
        progress=not options.quiet,
    )
    for method, result in found["evaluators"]["paper"]["methods"].items():
        exclusion, inclusion = (result[way]["agreement"]["auc"] for way in ("exclusion", "inclusion"))
        print(f"{method:21} exclusion {exclusion:.3f}  inclusion {inclusion:.3f}  ({result['images']} images)")
    print(f"results: {(options.output / 'images.md').resolve()}")
    return 0
