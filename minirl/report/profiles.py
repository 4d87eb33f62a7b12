"""Inline SVG of a quantity along something that is not time: one line per arm over named places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minirl.report.markup import Markup, element
from minirl.report.plots import SMALL, apart, arm_class, letter, marker, path
from minirl.report.scales import Scale, fitted, tick_label

FRAME = SMALL
MOST_LABELS = 12  # on the axis; places between them keep their points


@dataclass(frozen=True, slots=True)
class Profile:
    """One arm. index: its place in the sweep · seeds: of each run, place -> value; a place may be absent."""

    index: int
    name: str
    seeds: tuple[Mapping[str, float], ...]

    def mean(self, place: str) -> float | None:
        """Over the runs that have the place."""
        values = [seed[place] for seed in self.seeds if place in seed]
        return sum(values) / len(values) if values else None


def profile_plot(title: str, unit: str, places: Sequence[str], profiles: Sequence[Profile]) -> Markup:
    """Seeds thin, their mean with a marker at every place, and the arm's letter at its end. unit: what a place is."""
    shown = [value for one in profiles for seed in one.seeds for value in seed.values()]
    across = Scale(0.0, float(max(len(places) - 1, 1)), FRAME.left + 10, FRAME.width - FRAME.right - 6, False)
    up = fitted([0.0, *shown], FRAME.bottom, FRAME.top, logarithmic=False)
    return element(
        "svg",
        element("title", title),
        element("desc", "; ".join(_in_words(one, places) for one in profiles)),
        _axes(places, unit, across, up),
        [_line(one, places, across, up) for one in profiles],
        _letters(profiles, places, up),
        viewBox=f"0 0 {FRAME.width:.0f} {FRAME.height:.0f}",
        role="img",
    )


def _in_words(one: Profile, places: Sequence[str]) -> str:
    known = [f"{place}: {mean:.3g}" for place in places if (mean := one.mean(place)) is not None]
    return f"{one.name}: {', '.join(known)}"


def _axes(places: Sequence[str], unit: str, across: Scale, up: Scale) -> Markup:
    left, right = FRAME.left, FRAME.width - FRAME.right
    step = -(-len(places) // MOST_LABELS)
    grid = [element("line", x1=left, x2=right, y1=up(tick), y2=up(tick)) for tick in up.ticks(5)]
    values = [element("text", tick_label(tick), x=left - 7, y=up(tick) + 4) for tick in up.ticks(5)]
    names = [
        element("text", place, x=across(number), y=FRAME.bottom + 16)
        for number, place in enumerate(places)
        if number % step == 0
    ]
    return element(
        "g",
        element("g", grid, class_="grid"),
        element("line", class_="axis", x1=left, x2=right, y1=FRAME.bottom, y2=FRAME.bottom),
        element("g", values, class_="ticks y"),
        element("g", names, class_="ticks x"),
        element("text", unit, class_="unit", x=right, y=FRAME.bottom + 31),
    )


def _line(one: Profile, places: Sequence[str], across: Scale, up: Scale) -> Markup:
    means = {place: mean for place in places if (mean := one.mean(place)) is not None}
    marks = [marker(one.index, across(places.index(place)), up(mean)) for place, mean in means.items()]
    seeds = [_polyline("seed", seed, places, across, up) for seed in one.seeds]
    return element(
        "g",
        element("g", seeds, class_="seeds"),
        _polyline("mean", means, places, across, up),
        element("g", marks, class_="marks"),
        class_=arm_class(one.index),
        data_arm=one.index,
    )


def _polyline(kind: str, values: Mapping[str, float], places: Sequence[str], across: Scale, up: Scale) -> Markup:
    known = [(number, values[place]) for number, place in enumerate(places) if place in values]
    numbers, heights = (np.array(column, dtype=np.float64) for column in zip(*known, strict=True))
    return element("path", class_=kind, d=path(numbers, heights, across, up))


def _letters(profiles: Sequence[Profile], places: Sequence[str], up: Scale) -> Markup:
    ends = [(up(next(m for p in reversed(places) if (m := one.mean(p)) is not None)), one) for one in profiles]
    ends.sort(key=lambda end: end[0])
    heights = apart([height for height, _ in ends], 14.0, FRAME.top + 5, FRAME.bottom - 2)
    x = FRAME.width - FRAME.right + 10
    return element(
        "g",
        [
            element(
                "g",
                marker(one.index, x, height),
                element("text", letter(one.index), x=x + 9, y=height + 4),
                class_=arm_class(one.index),
                data_arm=one.index,
            )
            for (_, one), height in zip(ends, heights, strict=True)
        ],
        class_="ends",
    )
