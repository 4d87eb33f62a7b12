"""Inline SVG. Colours, dashes and type are the style sheet's; here are only shapes and where they stand.

An arm is told by colour, dashes, marker and letter, each enough by itself, so that a plot survives greyscale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from minirl.report.curves import Band
from minirl.report.markup import Markup, element, pixels
from minirl.report.panels import Panel, Series
from minirl.report.scales import Scale, far_below, fitted, tick_label
from minirl.report.wording import counted

NUM_COLOURS, NUM_DASHES, NUM_MARKERS = 8, 6, 7  # of the style sheet, and of MARKERS


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot's size and the room for labels, in SVG units (about pixels). named: lines end in the arm's name, not
    only in its letter."""

    width: float
    height: float
    left: float
    right: float
    named: bool

    @property
    def top(self) -> float:
        return 8.0

    @property
    def bottom(self) -> float:
        return self.height - 34


SMALL = Frame(400, 250, 46, 32, False)
NARROW = Frame(400, 300, 46, 32, False)
WIDE = Frame(860, 400, 52, 32, True)
LONGEST_NAME = 26  # letters beside a line; the legend has the whole name
LETTER_WIDTH = 7.3
NOTE_WIDTH = 130.0  # of "C is below: 10⁻¹²"

# shapes of about the same area around (0, 0)
MARKERS = (
    "M-3.4 0A3.4 3.4 0 1 0 3.4 0A3.4 3.4 0 1 0 -3.4 0Z",  # circle
    "M-3 -3H3V3H-3Z",  # square
    "M0 -4.2L4 3H-4Z",  # triangle
    "M0 -4.4L4.4 0L0 4.4L-4.4 0Z",  # diamond
    "M0 4.2L4 -3H-4Z",  # triangle, point down
    "M-1.3 -4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3Z",  # plus
    "M-4 -2.2L0 -4.4L4 -2.2V2.2L0 4.4L-4 2.2Z",  # hexagon
)


def letter(index: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")


def arm_class(index: int) -> str:
    """The classes that give an arm its colour and dashes; the marker follows the index."""
    return f"arm c{index % NUM_COLOURS} d{index % NUM_DASHES}"


def marker(index: int, x: float, y: float) -> Markup:
    return element(
        "path", class_="mark", d=MARKERS[index % NUM_MARKERS], transform=f"translate({pixels(x)} {pixels(y)})"
    )


def line_plot(panel: Panel, series: Sequence[Series], frame: Frame, horizon: int) -> Markup:
    """All arms of one panel over versions: seeds thin, mean and band, markers, and the arm's letter at its end.

    Where the frame lies stands in data attributes, for the page's script, which draws all inside `.drawn` anew when the
    reader changes axis, scale or smoothing.
    """
    frame = _with_room(frame, series)
    across = Scale(0.0, float(max(horizon, 1)), frame.left, frame.width - frame.right, False)
    shown, below = apart_by_magnitude(panel, series)
    up = fitted(_shown_values(panel, shown), frame.bottom, frame.top, logarithmic=panel.logarithmic)
    return element(
        "svg",
        element("title", f"{panel.title} over updates"),
        element("desc", _in_words(series)),
        element(
            "g",
            _axes(across, up, frame),
            [_arm(one, across, up) for one in shown],
            [_below(one, place, frame) for place, one in enumerate(below)],
            _end_labels(shown, up, frame),
            class_="drawn",
        ),
        element("line", class_="cursor", x1=0.0, x2=0.0, y1=frame.top, y2=frame.bottom),
        viewBox=f"0 0 {pixels(frame.width)} {pixels(frame.height)}",
        role="img",
        data_start=across.start,
        data_stop=across.stop,
        data_bottom=up.start,
        data_ceiling=up.stop,
        data_named=frame.named,
    )


def apart_by_magnitude(panel: Panel, series: Sequence[Series]) -> tuple[list[Series], list[Series]]:
    """The arms that the axis is fitted to, and those of another order of magnitude below them."""
    far = far_below({one.index: _sizes(one) for one in series}) if panel.logarithmic else set()
    return [one for one in series if one.index not in far], [one for one in series if one.index in far]


def _sizes(one: Series) -> list[float]:
    """The magnitudes of an arm's mean; of its runs, where it has no mean (rounding has either sign)."""
    lines = [line.curve.values for line in one.lines] if one.mean is None else [one.mean.mean]
    return [float(size) for size in np.abs(np.concatenate(lines)) if size > 0]


def _below(one: Series, place: int, frame: Frame) -> Markup:
    """An arm that is not drawn because it lies far below the axis: its letter under the axis, and where it is."""
    level = float(f"{np.median(_sizes(one)):.1g}")
    x, y = frame.left + NOTE_WIDTH * place, frame.bottom + 31
    return element(
        "g",
        marker(one.index, x + 4, y - 4),
        element("text", f"{letter(one.index)} is below: {tick_label(level)}", x=x + 13, y=y),
        class_=f"{arm_class(one.index)} below",
        data_arm=one.index,
    )


def _with_room(frame: Frame, series: Sequence[Series]) -> Frame:
    """The frame with as much room on the right as the names take."""
    longest = max((len(label(one, frame)) for one in series), default=0)
    return replace(frame, right=frame.right + LETTER_WIDTH * (longest - 1))


def label(one: Series, frame: Frame) -> str:
    """What stands at the end of an arm's line."""
    text = f"{letter(one.index)} {one.name}" if frame.named else letter(one.index)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def _shown_values(panel: Panel, series: Sequence[Series]) -> list[float]:
    lines = [line.curve.values for one in series for line in one.lines]
    edges = [edge for one in series if one.mean is not None for edge in (one.mean.low, one.mean.high)]
    values = np.concatenate([*lines, *edges])
    return [float(value) for value in values if isfinite(value) and (value > 0 or not panel.logarithmic)]


def _in_words(series: Sequence[Series]) -> str:
    parts = [
        f"{one.name}: from {one.mean.mean[0]:.3g} to {one.mean.mean[-1]:.3g} over {counted(one.mean.num_seeds, 'seed')}"
        for one in series
        if one.mean is not None
    ]
    return "; ".join(parts)


def _axes(across: Scale, up: Scale, frame: Frame) -> Markup:
    grid = [element("line", x1=frame.left, x2=across.stop, y1=up(tick), y2=up(tick)) for tick in up.ticks(5)]
    left = [element("text", tick_label(tick), x=frame.left - 7, y=up(tick) + 4) for tick in up.ticks(5)]
    below = [element("text", tick_label(tick), x=across(tick), y=frame.bottom + 16) for tick in across.ticks(5)]
    axis = element("line", class_="axis", x1=frame.left, x2=across.stop, y1=frame.bottom, y2=frame.bottom)
    title = element("text", "updates", class_="unit", x=across.stop, y=frame.bottom + 31)
    return element(
        "g",
        element("g", grid, class_="grid"),
        axis,
        element("g", left, class_="ticks y"),
        element("g", below, class_="ticks x"),
        title,
    )


def _arm(one: Series, across: Scale, up: Scale) -> Markup:
    seeds = [
        element("path", class_="seed", d=path(line.curve.versions, line.curve.values, across, up)) for line in one.lines
    ]
    stops = [
        _cross(across(line.stopped), up(float(line.curve.values[-1])))
        for line in one.lines
        if line.stopped is not None and len(line.curve)
    ]
    flags = [_flag(across(line.onset), across.stop, up.start) for line in one.lines if line.onset is not None]
    parts: list[Markup | list[Markup] | None] = [element("g", seeds, class_="seeds"), stops, flags]
    if one.mean is not None:
        if one.mean.num_seeds >= 3:
            parts.insert(0, element("path", class_="band", d=_outline(one, across, up)))
        parts.append(element("path", class_="mean", d=_stretches(one.mean, across, up)))
        parts += [_unshown(one, across, up), _markers(one, across, up)]
    return element("g", parts, class_=arm_class(one.index), data_arm=one.index)


def path(versions: np.ndarray, values: np.ndarray, across: Scale, up: Scale) -> str:
    """A polyline, every point relative to the one before it (that is half as long); what the axis cannot show is a
    gap."""
    words: list[str] = []
    last: tuple[float, float] | None = None
    for version, value in zip(versions.tolist(), values.tolist(), strict=True):
        if not up.shows(value):
            last = None
            continue
        x, y = round(across(version), 1), round(up(value), 1)
        words.append(f"M{pixels(x)} {pixels(y)}" if last is None else f"l{_pair(x - last[0], y - last[1])}")
        last = x, y
    return "".join(words)


def _pair(x: float, y: float) -> str:
    """Two numbers of a path; a minus separates as well as a space."""
    first, second = pixels(x), pixels(y)
    return f"{first}{'' if second.startswith('-') else ' '}{second}"


def _stretches(mean: Band, across: Scale, up: Scale) -> str:
    return "".join(path(mean.versions[part], mean.mean[part], across, up) for part in mean.stretches())


def _outline(one: Series, across: Scale, up: Scale) -> str:
    assert one.mean is not None
    high, low = (np.maximum(edge, up.low) if up.logarithmic else edge for edge in (one.mean.high, one.mean.low))
    outlines = []
    for part in one.mean.stretches():
        upper = path(one.mean.versions[part], high[part], across, up)
        lower = path(one.mean.versions[part[::-1]], low[part[::-1]], across, up)
        outlines.append(f"{upper}L{lower[1:]}Z")
    return "".join(outlines)


def _unshown(one: Series, across: Scale, up: Scale) -> Markup | None:
    """Ticks on the axis where the mean is positive and too small for it."""
    assert one.mean is not None
    pairs = zip(one.mean.versions.tolist(), one.mean.mean.tolist(), strict=True)
    d = "".join(f"M{pixels(across(version))} {pixels(up.start)}v-6" for version, value in pairs if 0 < value < up.low)
    return element("path", element("title", "below the axis"), class_="floor", d=d) if d and up.logarithmic else None


def _markers(one: Series, across: Scale, up: Scale) -> Markup:
    """About five along the mean, at other places for every arm, so that lines on top of each other still show."""
    assert one.mean is not None
    count = one.mean.versions.size
    step = max(count // 5, 1)
    places = range(min(one.index * 2 % step if step > 1 else 0, count - 1), count, step)
    shown = [i for i in places if up.shows(float(one.mean.mean[i]))]
    points = [(across(float(one.mean.versions[i])), up(float(one.mean.mean[i]))) for i in shown]
    return element("g", [marker(one.index, x, y) for x, y in points], class_="marks")


def _cross(x: float, y: float) -> Markup:
    d = f"M{pixels(x - 4)} {pixels(y - 4)}l8 8m0 -8l-8 8"
    return element("path", element("title", "stopped here"), class_="stop", d=d)


def _flag(x: float, stop: float, bottom: float) -> Markup:
    """A flag on the axis, from the onset of collapse towards the side where there is room."""
    toward = -8 if x > stop - 9 else 8
    d = f"M{pixels(x)} {pixels(bottom)}v-17l{toward} 4l{-toward} 4"
    return element("path", element("title", "a seed has collapsed from here on"), class_="flag", d=d)


def _end_labels(series: Sequence[Series], up: Scale, frame: Frame) -> Markup:
    """The arm's letter (or name) beside the end of its mean, moved apart where they would overlap."""
    ends = [(up(float(one.mean.mean[-1])), one) for one in series if one.mean is not None]
    ends.sort(key=lambda end: end[0])
    heights = apart([height for height, _ in ends], 14.0, frame.top + 5, frame.bottom - 2)
    x = frame.width - frame.right + 10
    labels = [
        element(
            "g",
            marker(one.index, x, height),
            element("text", label(one, frame), x=x + 9, y=height + 4),
            class_=arm_class(one.index),
            data_arm=one.index,
        )
        for (_, one), height in zip(ends, heights, strict=True)
    ]
    return element("g", labels, class_="ends")


def apart(heights: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """The ascending heights at least `distance` apart: each pushed down by the one above it, then all pushed up again
    as far as the last one overshoots `high`."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + distance if placed else low))
    limit = high
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - distance
    return placed
