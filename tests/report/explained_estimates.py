"""What the plots without time must show: where each arm ends, and which experts differ at which place."""

from __future__ import annotations

import numpy as np
from document import Document, along, place, polyline, ticks
from explained_verdicts import plural
from html_tree import Node
from ledger import Number, count, listed
from recomputed import Truth, letter
from recomputed_claims import mean
from recomputed_curves import differing


def strip(page: Document, truth: Truth, figure: Node) -> None:
    """Where each arm ends: a marker per seed, the mean, its interval."""
    svg, names = figure.one("svg"), list(truth.arms)
    caption = "a marker per seed; bar: mean; line: "
    page.words(figure.one("p"), caption, count(95), " % interval of the mean, from three seeds on")
    ends = {arm: list(truth.by_seed(arm, "eval/avg", "end").values()) for arm in names}
    known = {arm: values for arm, values in ends.items() if values}
    parts = (
        [f"{a}: mean ", Number(float(np.mean(v))), " of ", count(len(v)), f" {plural(len(v), 'seed')}"]
        for a, v in known.items()
    )
    page.words(svg.child("desc"), *listed(parts, "; "))
    pixel = along(ticks(page, svg, "x"), log=False)
    rows = [group for group in svg.children if "data-arm" in group.attributes]
    assert len(rows) == len(known)
    for row, (arm, values) in zip(rows, known.items(), strict=True):
        page.constant(row, "data-arm")
        assert names[int(row["data-arm"])] == arm
        full = f"{letter(names.index(arm))} {arm}"
        page.words(row.one("text"), full if len(full) <= 44 else f"{full[:43]}…")
        marks = list(row.one("g", class_="marks").all("path"))
        for mark, value in zip(marks, values, strict=True):
            page.shape(mark, place(mark)[:1], [pixel(value)])
        center = row.one("path", class_="center")
        page.shape(center, [float(center["d"][1:].split()[0])], [pixel(float(np.mean(values)))])
        lines = list(row.all("path", class_="interval"))
        assert len(lines) == (len(values) > 2 and len(set(values)) > 1)
        for line in lines:
            start, stop = line["d"][1:].split("H")
            page.shape(line, [float(start.split()[0]), float(stop)], [pixel(edge) for edge in mean(values).interval()])


def profile(page: Document, truth: Truth, figure: Node, family: str) -> None:
    """Experts that differ, place by place."""
    svg, names = figure.one("svg"), list(truth.arms)
    page.words(figure.one("code"), f"{1} - {family}*")
    seeds = {arm: found for arm in names if (found := differing(truth, arm, family))}
    places = sorted({place for runs in seeds.values() for run in runs for place in run}, key=_order)
    means = {
        arm: {p: float(np.mean([run[p] for run in runs if p in run])) for p in places if any(p in run for run in runs)}
        for arm, runs in seeds.items()
    }
    in_words = (
        [f"{arm}: ", *listed(([f"{p}: ", Number(value)] for p, value in by_place.items()), ", ")]
        for arm, by_place in means.items()
    )
    page.words(svg.child("desc"), *listed(in_words, "; "))
    up = along(ticks(page, svg, "y"), log=False)
    labels = next(g for g in svg.all("g", class_="ticks") if "x" in g["class"].split())
    spots = {text.words(): float(text["x"]) for text in labels.all("text")}
    step = -(-len(places) // 12)
    for text, name in zip(labels.all("text"), places[::step], strict=True):
        page.words(text, name)
    across = along([(places.index(p), x) for p, x in spots.items()], log=False) if len(spots) > 1 else None
    for group in (group for group in svg.children if "data-arm" in group.attributes):
        arm = names[int(group["data-arm"])]
        page.constant(group, "data-arm")
        lines = [*group.one("g", class_="seeds").all("path"), next(group.all("path", class_="mean"))]
        for line, values in zip(lines, [*seeds[arm], means[arm]], strict=True):
            expected = [(across(places.index(p)) if across else spots[p], up(values[p])) for p in places if p in values]
            page.shape(line, polyline(line["d"]), expected)
        for mark, p in zip(group.one("g", class_="marks").all("path"), means[arm], strict=True):
            page.shape(mark, place(mark), [across(places.index(p)) if across else spots[p], up(means[arm][p])])
    for end in svg.one("g", class_="ends").children:
        page.constant(end, "data-arm")
        page.words(end, letter(int(end["data-arm"])))


def _order(name: str) -> int:
    return int(name) if name.isdigit() else -1
