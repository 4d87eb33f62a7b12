"""The main curves as PNG files, for slides and notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from minirl.report.panels import EVALUATION, MAIN, Panel, Series, is_flat, series_of
from minirl.report.plots import letter
from minirl.report.read import Sweep
from minirl.report.wording import counted

COLOURS = ("#0064a8", "#c24a00", "#007a58", "#a5407d", "#8a6100", "#5a4ba8", "#37728f", "#4a4a4a")
DASHES = ("-", (0, (5, 3)), (0, (1, 2)), (0, (6, 2, 1, 2)), (0, (9, 3)), (0, (4, 2, 1, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "h")


def write_pngs(sweep: Sweep, folder: Path) -> list[Path]:
    """One file per main panel that has something to see, named after its metric; the paths."""
    paths = []
    for panel in (EVALUATION, *MAIN):
        series = [one for one in series_of(sweep, panel) if one.mean is not None]
        if series and not is_flat(series):
            paths.append(folder / f"{panel.metric.replace('/', '_')}.png")
            _write(panel, series, paths[-1])
    return paths


def _write(panel: Panel, series: list[Series], path: Path) -> None:
    from matplotlib.figure import Figure  # half a second, and only here

    figure = Figure(figsize=(7.2, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    for one in series:
        assert one.mean is not None
        colour = COLOURS[one.index % len(COLOURS)]
        for line in one.lines:
            axes.plot(line.curve.versions, line.curve.values, color=colour, linewidth=0.6, alpha=0.3)
        breaks = [part[0] for part in one.mean.stretches()[1:]]
        parts = (one.mean.versions, one.mean.low, one.mean.high, one.mean.mean)
        versions, low, high, mean = (np.insert(part.astype(np.float64), breaks, np.nan) for part in parts)
        axes.fill_between(versions, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(
            versions,
            mean,
            color=colour,
            linestyle=DASHES[one.index % len(DASHES)],
            marker=MARKERS[one.index % len(MARKERS)],
            markevery=max(one.mean.versions.size // 5, 1),
            linewidth=1.8,
            label=f"{letter(one.index)} {one.name}, {counted(one.mean.num_seeds, 'seed')}",
        )
    axes.set_yscale("log" if panel.logarithmic else "linear")
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel("updates")
    axes.set_ylabel(panel.metric)
    axes.grid(color="#e2e2dc", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(path)
