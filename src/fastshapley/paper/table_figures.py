"""Draw the paper's figures for tables from the numbers in ``tabular.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fastshapley.support.atomic_files import write_atomically

_COLOURS = {
    "kernel, unpaired": "#8c8c8c",
    "kernel, paired": "#4c78a8",
    "kernel, leverage": "#72b7b2",
    "permutation": "#eeca3b",
    "permutation, antithetic": "#b279a2",
}
_ARMS = {"paper": ("#e45756", 'FastSHAP, recipe="paper"'), "default": ("#2a7f3f", "FastSHAP, default recipe")}


def draw(found: dict[str, Any], output: Path) -> list[tuple[str, str]]:
    """Write each figure as PNG and SVG.

    Parameters
    ----------
    found : dict
        The numbers.
    output : Path
        The folder for the figures.

    Returns
    -------
    list of tuple
        The name of each file, without suffix, and what it shows.
    """
    games = found["games"]
    main = [game for game in games if game["table"] != "marketing"]
    marketing = [game for game in games if game["table"] == "marketing"]
    drawn = []
    if main:
        save(_against_evaluations(main, "table"), output / "tabular-evaluations")
        drawn.append(("tabular-evaluations", "Error against evaluations of the game (the paper's figure 2)"))
    if marketing:
        save(_against_evaluations(marketing, "game"), output / "tabular-marketing")
        drawn.append(("tabular-marketing", "Marketing, with three value functions (figure 3)"))
    save(_against_samples(found), output / "tabular-samples")
    drawn.append(("tabular-samples", "Error against coalitions per row in training (appendix)"))
    return drawn


def _against_evaluations(games: list[dict[str, Any]], title: str) -> Any:
    figure, panels = _panels(len(games))
    for panel, game in zip(panels, games, strict=True):
        for name, curve in game["estimators"].items():
            x, y, half = curve["evaluations"], curve["l2"], curve["l2_interval"]
            panel.plot(x, y, color=_COLOURS[name], label=name, linewidth=1.5)
            panel.fill_between(x, *_band(y, half), color=_COLOURS[name], alpha=0.2, linewidth=0)
        _lines(panel, game)
        panel.set(xscale="log", yscale="log", title=game[title], xlabel="evaluations per row")
    return _finish(figure, panels)


def _against_samples(found: dict[str, Any]) -> Any:
    figure, panels = _panels(len(found["samples"]))
    surrogates = {game["table"]: game for game in found["games"] if game["game"] == "surrogate"}
    for panel, (table, points) in zip(panels, found["samples"].items(), strict=True):
        for paired, colour, label in ((True, "#4c78a8", "paired"), (False, "#8c8c8c", "unpaired")):
            some = [point for point in points if point["paired"] == paired]
            x, y, half = ([point[key] for point in some] for key in ("samples", "l2", "l2_interval"))
            panel.errorbar(x, y, yerr=half, color=colour, marker="o", markersize=3, capsize=2, label=label)
        _lines(panel, surrogates[table], arms=("default",))
        panel.set(yscale="log", title=table, xlabel="coalitions per row in training")
    return _finish(figure, panels)


def _lines(panel: Any, game: dict[str, Any], arms: tuple[str, ...] = ("paper", "default")) -> None:
    """Draw explainers as horizontal lines, since they need one pass."""
    for arm in arms:
        colour, label = _ARMS[arm]
        mean, half = game["explainers"][arm]["l2"], game["explainers"][arm]["l2_interval"]
        panel.axhline(mean, color=colour, linewidth=1.8, label=label)
        low, high = _band([mean], [half])
        panel.axhspan(low[0], high[0], color=colour, alpha=0.15, linewidth=0)
    panel.axhline(game["printed"][0], color="black", linestyle=":", linewidth=1, label="FastSHAP, as printed")


def _band(means: list[float], half: list[float]) -> tuple[list[float], list[float]]:
    """Return the ends of intervals. The lower end stays above zero for the logarithmic axis."""
    pairs = list(zip(means, half, strict=True))
    return [max(m - h, m / 10) for m, h in pairs], [m + h for m, h in pairs]


def _panels(count: int) -> tuple[Any, list[Any]]:
    figure = Figure(figsize=(3.2 * count + 0.9, 3.8), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _finish(figure: Any, panels: list[Any]) -> Any:
    panels[0].set_ylabel("l2 distance to the Shapley values")
    for panel in panels:
        panel.grid(alpha=0.25, which="major")
        panel.tick_params(axis="x", which="minor", labelbottom=False)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = min(4, 1 + len(panels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def save(figure: Any, path: Path, suffixes: Sequence[str] = ("png", "svg"), dpi: int = 150) -> None:
    """Write a figure without a date, so that the same numbers give the same bytes.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    path : Path
        The file, without suffix.
    suffixes : sequence of str, default=("png", "svg")
        The formats.
    dpi : int, default=150
        The resolution, in dots per inch.
    """
    for suffix in suffixes:

        def write(temporary: Path, suffix: str = suffix) -> None:
            with matplotlib.rc_context({"svg.hashsalt": path.name}):
                metadata = {"Software" if suffix == "png" else "Date": None}
                figure.savefig(temporary, format=suffix, dpi=dpi, metadata=metadata)

        write_atomically(path.with_suffix(f".{suffix}"), write)
