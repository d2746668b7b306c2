"""``fastshapley paper tabular`` and ``paper images``: reproduce the paper's experiments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fastshapley.cli.command import RESUMES, Result, add_command, add_common, add_quiet, whole
from fastshapley.cli.early_checks import check_output_folder

TABLES = ("census", "marketing", "bankruptcy", "news")


def add(commands: Any) -> None:
    """Add the command ``paper`` with its two experiments."""
    paper = commands.add_parser(
        "paper",
        help="reproduce the FastSHAP paper's experiments",
        description="Reproduce the experiments of the paper, on tables or on images.",
    )
    add_common(paper)
    experiments = paper.add_subparsers(required=True, metavar="EXPERIMENT", dest="experiment", title="experiments")
    _add_shared_options(_add_tabular(experiments))
    _add_shared_options(_add_images(experiments))


def _add_tabular(experiments: Any) -> argparse.ArgumentParser:
    tabular = add_command(
        experiments,
        "tabular",
        _tabular,
        help="accuracy on the four tables: figures 2 and 3, the appendix and the ablation",
        description="Reproduce what the paper shows for tables, with both recipes side by side. An interrupted "
        "run can be resumed, and results that are in the store are not computed again. A full run takes some hours "
        "on two processors.",
        examples="""
            fastshapley paper tabular
            fastshapley paper tabular --quick --only census
        """,
        keys="page (its path), results (the path of the JSON file with all numbers), games (a list of objects with "
        "table, game, l2, l2_paper_recipe and l2_printed)",
        interrupted=RESUMES,
    )
    tabular.add_argument(
        "--only",
        nargs="+",
        choices=TABLES,
        metavar="TABLE",
        default=TABLES,
        help=f"one or more of {', '.join(TABLES)}",
    )
    tabular.add_argument("--quick", action="store_true", help="a smaller run: ten minutes on two processors")
    return tabular


def _add_images(experiments: Any) -> argparse.ArgumentParser:
    images = add_command(
        experiments,
        "images",
        _images,
        help="inclusion and exclusion on images: tables 1, 2 and 4, the curves, limited data and figures",
        description="Reproduce what the paper shows for images, at a scale that needs no GPU. An interrupted run "
        "can be resumed, and results that are in the store are not computed again. A full run takes some hours on "
        "two processors.",
        examples="""
            fastshapley paper images --dataset cifar10
        """,
        keys="page (its path), results (the path of the JSON file with all numbers), methods (objects with the "
        "areas exclusion and inclusion, and the number of images)",
        interrupted=RESUMES,
    )
    images.add_argument("--dataset", choices=["cifar10", "imagenette"], required=True, help="images to explain")
    images.add_argument("--quick", action="store_true", help="a smaller run: minutes")
    return images


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("results"),
        help="folder for results (default: results)",
    )
    parser.add_argument(
        "--store",
        metavar="FOLDER",
        type=Path,
        help="folder for intermediate results (default: in the user's cache)",
    )
    parser.add_argument("--workers", type=whole, help="processes (default: one per processor)")
    add_quiet(parser)


def _tabular(options: argparse.Namespace) -> Result:
    _check_folders(options)
    from fastshapley.paper import table_run as tabular

    tables = [table for table in TABLES if table in options.only]
    found = tabular.run(options.output, tables=tables, **_settings(options))
    games = [
        {
            "table": game["table"],
            "game": game["game"],
            "l2": game["explainers"]["default"]["l2"],
            "l2_paper_recipe": game["explainers"]["paper"]["l2"],
            "l2_printed": game["printed"][0],
        }
        for game in found["games"]
    ]
    lines = [
        f"{game['table']:10} {game['game']:9}  l2 {game['l2']:.4f}  (paper's recipe {game['l2_paper_recipe']:.4f}, "
        f"printed {game['l2_printed']:.4f})"
        for game in games
    ]
    return _result(options.output / "tabular.md", options.output / "tabular.json", lines, {"games": games})


def _images(options: argparse.Namespace) -> Result:
    _check_folders(options)
    from fastshapley.paper import image_run as images

    found = images.run(options.output, options.dataset, **_settings(options))
    methods = {
        method: {
            **{way: result[way]["agreement"]["auc"] for way in ("exclusion", "inclusion")},
            "images": result["images"],
        }
        for method, result in found["evaluators"]["paper"]["methods"].items()
    }
    lines = [
        f"{name:21} exclusion {each['exclusion']:.3f}  inclusion {each['inclusion']:.3f}  ({each['images']} images)"
        for name, each in methods.items()
    ]
    results = options.output / f"images-{options.dataset}.json"
    return _result(options.output / "images.md", results, lines, {"methods": methods})


def _check_folders(options: argparse.Namespace) -> None:
    check_output_folder(options.output)
    if options.store is not None:
        check_output_folder(options.store, "--store")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of both experiments."""
    from fastshapley.datasets.download import cache

    return {
        "quick": options.quick,
        "store": options.store or cache() / "paper",
        "workers": options.workers,
        "progress": not options.quiet,
    }


def _result(page: Path, results: Path, lines: list[str], data: dict[str, Any]) -> Result:
    place = str(page.resolve())
    text = "\n".join([*lines, f"results: {place}"])
    return Result(text, {"page": place, "results": str(results.resolve()), **data})
