"""What the plots over updates must show, in pixels: every run, mean, band, onset and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from document import Document, Pixel, along, place, polyline, ticks
from explained_estimates import strip
from explained_script import MOST_POINTS, MOST_SEED_POINTS, kind, stopped
from explained_verdicts import plural
from html_tree import Node
from ledger import Number, Part, count, listed
from recomputed import Points, Truth, letter
from recomputed_curves import Band, band, curve, is_of_updates

TITLES = {  # of plots, with the digits in them
    "Clipped tokens, if 0.2 / 0.27 applied": "the paper's bounds, which clip/would_be is measured with",
    "share of responses with |log ratio| < 0.1": "minirl.metrics.validity.SMALL",
    "share of repeated 4-grams": "four is in the metric's definition",
}


@dataclass(frozen=True)
class Line:
    """One arm of a plot. runs: by seed · over: its mean and band · crosses: where a run stopped, and its last value ·
    flags: from where on a run has collapsed."""

    name: str
    runs: Sequence[Points]
    over: Band | None
    crosses: Sequence[tuple[int, float]]
    flags: Sequence[int]


def figures(page: Document, truth: Truth, section: Node) -> None:
    for figure in section.all("figure"):
        if "data-metric" not in figure.attributes:
            strip(page, truth, figure)
            continue
        metric = figure["data-metric"]
        several = any(run.config.get("num_mini_batches", 1) > 1 for run in truth.runs if metric in run.metrics)
        averaged = "mean over the updates of a batch" in figure.one("figcaption").words()
        assert averaged == (is_of_updates(truth, metric) and several), metric
        page.constant(figure, "data-metric", "aria-label")
        title(page, figure.one("figcaption"), metric)
        log = page.script["plots"][metric]["log"]
        for svg in figure.all("svg"):
            line_plot(page, figure, svg, lines_of(truth, metric, log=log), truth.horizon, log=log)


def title(page: Document, caption: Node, metric: str) -> None:
    """A plot's title and note: names of metrics, and the constants listed above."""
    text = caption.words().replace(metric, "")
    for known in (*TITLES, "k3", "k1"):
        text = text.replace(known, "")
    if any(character.isdigit() for character in text):
        page.wrong.append(f"a number in the title of {metric}: {caption.words()!r}")
    page.words(caption, caption.words())


def lines_of(truth: Truth, metric: str, *, log: bool) -> dict[int, Line]:
    """By the arm's place in the sweep."""
    found = {}
    for index, (arm, members) in enumerate(truth.arms.items()):
        runs = [run for run in members if metric in run.metrics]
        curves = [curve(truth, run, metric) for run in runs]
        ended = [(run.last, float(c[1][-1])) for run, c in zip(runs, curves, strict=True) if stopped(run)]
        onsets = [run.onset for run in runs if run.onset is not None]
        found[index] = Line(arm, curves, band(truth, arm, metric, log=log), ended, onsets)
    return found


def line_plot(page: Document, figure: Node, svg: Node, lines: Mapping[int, Line], horizon: int, *, log: bool) -> None:
    page.constant(svg, "data-start", "data-stop", "data-bottom", "data-ceiling")
    page.words(svg.child("title"), f"{figure.one('h3').words()} over updates")
    across = along([(0.0, float(svg["data-start"])), (float(horizon), float(svg["data-stop"]))], log=False)
    for value, pixel in ticks(page, svg, "x"):
        assert abs(across(value) - pixel) < 0.06
    marks = ticks(page, svg, "y", log=log)
    lowest = value_at(float(svg["data-bottom"]), marks) if log else -np.inf
    said = (in_words(line.name, line.over) for line in lines.values() if line.over is not None)
    page.words(svg.child("desc"), *listed(said, "; "))
    groups = [group for group in svg.one("g", class_="drawn").children if "data-arm" in group.attributes]
    for group in groups:
        line = lines[int(group["data-arm"])]
        page.constant(group, "data-arm")
        assert group["class"].startswith(kind(int(group["data-arm"])))
        if "below" in group["class"].split():
            below(page, group, line, lowest)
        else:
            Drawn(page, group, across, along(marks, log=log), lowest).check(line)
    assert {int(group["data-arm"]) for group in groups} == {index for index, line in lines.items() if line.runs}
    for end in svg.one("g", class_="ends").children:
        index = int(end["data-arm"])
        page.constant(end, "data-arm")
        full = f"{letter(index)} {lines[index].name}" if "data-named" in svg.attributes else letter(index)
        page.words(end, full if len(full) <= 26 else f"{full[:25]}…")


def value_at(pixel: float, known: list[tuple[float, float]]) -> float:
    """On a logarithmic axis with these ticks."""
    (low, start), (high, stop) = min(known), max(known)
    return float(low * (high / low) ** ((pixel - start) / (stop - start)))


def in_words(arm: str, over: Band) -> list[Part]:
    ends: list[Part] = [f"{arm}: from ", Number(float(over.mean[0])), " to ", Number(float(over.mean[-1]))]
    return [*ends, " over ", count(over.num_seeds), f" {plural(over.num_seeds, 'seed')}"]


def below(page: Document, group: Node, line: Line, lowest: float) -> None:
    """An arm of another magnitude is named, with its median."""
    means = [line.over.mean] if line.over is not None else [values for _, values in line.runs]
    sizes = np.abs(np.concatenate(means))
    middle = float(np.median(sizes[sizes > 0]))
    page.words(group.one("text"), f"{letter(int(group['data-arm']))} is below: ", Number(middle, digits=1))
    assert middle < lowest


@dataclass(frozen=True)
class Drawn:
    """The shapes of one arm. lowest: below it nothing has a place."""

    page: Document
    group: Node
    across: Pixel
    up: Pixel
    lowest: float

    def points(self, versions: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
        pairs = zip(versions.tolist(), values.tolist(), strict=True)
        return [(self.across(version), self.up(value)) for version, value in pairs if value >= self.lowest]

    def check(self, line: Line) -> None:
        seeds = list(self.group.one("g", class_="seeds").all("path"))
        for path, points in zip(seeds, line.runs, strict=True):
            self.curve(path, self.points(*points), len(points[0]) <= MOST_SEED_POINTS)
        for cross, (version, value) in zip(self.group.all("path", class_="stop"), line.crosses, strict=True):
            (x, y), *_ = polyline(cross["d"].replace("m", "M"))
            self.page.shape(cross, [x + 4, y + 4], [self.across(version), self.up(max(value, self.lowest))])
        for flag, version in zip(self.group.all("path", class_="flag"), line.flags, strict=True):
            self.page.shape(flag, [float(flag["d"][1:].split()[0])], [self.across(version)])
        if line.over is not None:
            self.mean(line.over)

    def mean(self, over: Band) -> None:
        spots, whole = self.points(over.versions, over.mean), len(over.versions) <= MOST_POINTS
        line = self.group.one("path", class_="mean")
        self.curve(line, spots, whole)
        if whole and len(spots) == len(over.mean):
            assert line["d"].count("M") == len(set(over.stretch)), "a line across versions that have no mean"
        if over.num_seeds >= 3:
            edges: list[tuple[float, float]] = []
            for number in sorted(set(over.stretch)):
                part = np.array(over.stretch) == number
                high, low = (np.maximum(edge[part], self.lowest) for edge in (over.high, over.low))
                edges += self.points(over.versions[part], high) + self.points(over.versions[part], low)[::-1]
            self.curve(self.group.one("path", class_="band"), edges, whole)
        for path in self.group.all("path", class_="floor"):
            hidden = over.versions[(over.mean > 0) & (over.mean < self.lowest)]
            found = [float(word.split()[0]) for word in path["d"].split("M")[1:]]
            self.page.shape(path, found, [self.across(version) for version in hidden])
        for mark in self.group.one("g", class_="marks").all("path"):
            x, y = place(mark)
            self.page.shape(mark, [x, y], min(spots, key=lambda spot: abs(spot[0] - x)))

    def curve(self, path: Node, expected: list[tuple[float, float]], whole: bool) -> None:
        """All points, or (of a long curve) points that all lie on it."""
        found = polyline(path["d"])
        if not whole:
            near = np.array(expected)
            expected = [tuple(near[np.abs(near - point).max(axis=1).argmin()].tolist()) for point in found]
        self.page.shape(path, found, expected)
