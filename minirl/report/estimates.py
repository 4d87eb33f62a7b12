"""Inline SVG of estimates: where each arm ends, seed by seed, and the interval of a claim against its margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from minirl.report.figures import BySeed
from minirl.report.findings import Finding
from minirl.report.grammar import Relation
from minirl.report.markup import Markup, element
from minirl.report.plots import arm_class, letter, marker
from minirl.report.scales import Scale, fitted, tick_label
from minirl.report.statistics import LEVEL, SEEDS_FOR_INTERVAL, location
from minirl.report.wording import counted

WIDTH = 400.0
HEIGHT = 352.0  # beside the evaluation's curve, if rows need no more and no less than is legible
ROWS = (40.0, 84.0)


def seed_plot(values: Mapping[str, BySeed], indices: Mapping[str, int], title: str, unit: str) -> Markup:
    """One row per arm: a marker for every seed, the mean, and its 95 % t interval from three seeds on."""
    rows = [(name, seeds) for name, seeds in values.items() if seeds]
    intervals = {name: _mean_interval(list(seeds.values())) for name, seeds in rows}
    shown = [value for name, seeds in rows for value in (*seeds.values(), *intervals[name])]
    across = fitted(shown, 8.0, WIDTH - 12, logarithmic=False)
    row = min(max(HEIGHT / max(len(rows), 1), ROWS[0]), ROWS[1])
    bottom = 4 + row * len(rows)
    ticks = across.ticks(5)
    return element(
        "svg",
        element("title", title),
        element(
            "desc",
            "; ".join(
                f"{name}: mean {intervals[name][0]:.3g} of {counted(len(seeds), 'seed')}" for name, seeds in rows
            ),
        ),
        element("g", [element("line", x1=across(t), x2=across(t), y1=4.0, y2=bottom) for t in ticks], class_="grid"),
        [
            _row(name, seeds, indices[name], intervals[name], across, 4 + row * i)
            for i, (name, seeds) in enumerate(rows)
        ],
        element("g", [element("text", tick_label(t), x=across(t), y=bottom + 16) for t in ticks], class_="ticks x"),
        element("text", unit, class_="unit", x=WIDTH - 12, y=bottom + 31),
        viewBox=f"0 0 {WIDTH:.0f} {bottom + 38:.0f}",
        role="img",
        class_="strip",
    )


def _mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high); the interval is empty below three seeds."""
    if len(values) < SEEDS_FOR_INTERVAL:
        mean = sum(values) / len(values)
        return mean, mean, mean
    found = location(values)
    return (found.estimate, *found.interval(LEVEL))


def _row(
    name: str, seeds: BySeed, index: int, interval: tuple[float, float, float], across: Scale, top: float
) -> Markup:
    mean, low, high = interval
    y = top + 28
    text = f"{letter(index)} {name}"
    label = element("text", text if len(text) <= 44 else text[:43] + "…", class_="name", x=across.start, y=top + 15)
    marks = [marker(index, across(value), y) for value in seeds.values()]
    line = element("path", class_="interval", d=f"M{across(low):.1f} {y}H{across(high):.1f}") if high > low else None
    center = element("path", class_="center", d=f"M{across(mean):.1f} {y - 8}v16")
    return element(
        "g", label, line, element("g", marks, class_="marks"), center, class_=arm_class(index), data_arm=index
    )


def interval_plot(finding: Finding) -> Markup | None:
    """The effect and its 95 % interval over the region that the claim names; None where there is no effect."""
    if finding.effect is None:
        return None
    low, high = finding.interval or (finding.effect, finding.effect)
    bounds = [bound for bound in finding.region if isfinite(bound)]
    ratio = finding.claim.relation == Relation.ratio
    neutral = [1.0] if ratio else [0.0]
    marks = [value for value in (low, high, finding.effect, *bounds, *neutral) if value > 0 or not ratio]
    across = fitted(marks, 6.0, 214.0, logarithmic=ratio)
    begin, end = (across(min(max(bound, across.low), across.high)) for bound in finding.region)
    return element(
        "svg",
        element("title", f"{finding.quantity}: {finding.effect:.3g}{_in_words(finding.interval)}"),
        element("rect", class_="region", x=min(begin, end), y=3.0, width=abs(end - begin), height=22.0),
        [
            element("line", class_="bound", x1=across(b), x2=across(b), y1=3.0, y2=25.0)
            for b in bounds
            if across.low < b < across.high
        ],
        element("path", class_="interval", d=f"M{across(low):.1f} 14H{across(high):.1f}") if high > low else None,
        element("circle", class_="effect", cx=across(finding.effect), cy=14.0, r=4.2),
        element("g", [element("text", tick_label(t), x=across(t), y=38.0) for t in _few(across)], class_="ticks x"),
        viewBox="0 0 220 42",
        role="img",
        class_="forest",
    )


def _in_words(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f", 95 % interval {interval[0]:.3g} to {interval[1]:.3g}"


def _few(across: Scale) -> list[float]:
    """Two to five: one alone would be no scale."""
    ticks = across.ticks(3)
    ticks = ticks if len(ticks) > 1 else across.ticks(6)
    return ticks if len(ticks) <= 5 else [ticks[0], ticks[len(ticks) // 2], ticks[-1]]
