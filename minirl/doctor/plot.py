"""The doctor's picture: how large the gap is, where in a response and in which layer it arises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from minirl.doctor.gap import Gap
from minirl.doctor.verdict import Picture

COLOURS = {"live": "#0064a8", "R3": "#c24a00"}
SMALLEST = 1e-8  # what is smaller is drawn there, so that the axis can be logarithmic


def write_plot(seen: Picture, title: str, path: Path) -> None:
    """A PNG of three panels: |d| in order, by position, by layer."""
    from matplotlib.figure import Figure  # half a second, and only here

    figure = Figure(figsize=(12.0, 3.8), dpi=130, layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    panels = figure.subplots(1, 3)
    for name, gap in (("live", seen.live), ("R3", seen.replayed)):
        if gap is not None:
            _sizes(panels[0], name, gap)
            panels[1].plot(gap.positions, gap.by_position, "o-", color=COLOURS[name], markersize=3, label=name)
    panels[0].set(title="share of tokens with a larger |d|", xlabel="|d|, nats", xscale="log", yscale="log")
    panels[1].set(title="mean |d| by place in the response", xlabel="response token", yscale="log")
    if seen.routing is not None:
        layers, shares = zip(*seen.routing.by_layer.items(), strict=True)
        panels[2].bar([str(layer) for layer in layers], shares, color=COLOURS["live"])
    panels[2].set(title="tokens with other experts than the engine's", xlabel="decoder layer")
    for axes in panels:
        axes.grid(color="#e2e2dc", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _sizes(axes: Any, name: str, gap: Gap) -> None:
    count = gap.num_tokens
    larger = torch.arange(count, 0, -1) / count
    axes.step(gap.differences.cpu().clamp_min(SMALLEST), larger, color=COLOURS[name], label=name)
