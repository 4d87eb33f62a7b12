"""The picture of a rescored batch: which gradients point the same way, and how large and how sure they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minirl.rescore.table import EXACT, Rescored

INK, FIRST, OTHER, EXACT_INK = "#1a1a1a", "#0064a8", "#8aa6b8", "#c24a00"
MOST_LABELLED = 14  # above it a cosine in every field would not be legible


def write_plot(found: Rescored, path: Path) -> None:
    """A PNG: cosines of all pairs on the left, norms with their spread over resamples on the right."""
    from matplotlib.figure import Figure  # half a second, and only here

    count = len(found.names)
    size = max(4.2, 1.6 + 0.34 * count)
    figure = Figure(figsize=(2.2 * size + 1.5, size), dpi=130, layout="constrained")
    figure.suptitle(found.title, fontsize=9, x=0.01, ha="left")
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    _cosines(figure, left, found)
    _norms(right, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _cosines(figure: Any, axes: Any, found: Rescored) -> None:
    values = found.figures.cosine
    lowest = min(float(np.nanmin(values)), 0.9)
    image = axes.imshow(values, cmap="Blues", vmin=lowest, vmax=1.0)
    figure.colorbar(image, ax=axes, shrink=0.8)
    places = range(len(found.names))
    axes.set(title="cosine of gradients", xticks=places, yticks=places)
    axes.set_xticklabels(found.names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_yticklabels(found.names, fontsize=7)
    if len(found.names) > MOST_LABELLED:
        return
    for row in places:
        for column in places:
            value = values[row, column]
            dark = not np.isnan(value) and value > (1 + lowest) / 2
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color="white" if dark else INK)


def _norms(axes: Any, found: Rescored) -> None:
    """Norms span orders of magnitude: aggregation sets their scale, which Adam takes away again."""
    places = np.arange(len(found.names))
    norms, errors = found.figures.norm, found.figures.norm_error
    colours = [EXACT_INK if name == EXACT else FIRST if place == 0 else OTHER for place, name in enumerate(found.names)]
    axes.barh(places, norms, xerr=errors, color=colours, error_kw={"lw": 0.9, "ecolor": INK})
    axes.set(title="norm, with one standard deviation over prompts", yticks=places, xscale="log")
    axes.set_yticklabels(found.names, fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e2e2dc", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
