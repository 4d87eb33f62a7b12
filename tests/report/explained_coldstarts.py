"""What both pages must say of the cold starts."""

from __future__ import annotations

import numpy as np
from document import Document
from explained_plots import Line, line_plot, lines_of
from explained_verdicts import cards, plural
from html_tree import Node
from ledger import Number, Part, count, exact
from recomputed import Truth, letter
from recomputed_claims import judged
from recomputed_coldstarts import Starts, compared, estimate
from recomputed_curves import over_seeds


def words(by_seed: dict[int, float], *, signed: bool = False) -> list[Part]:
    """0.123 [0.100, 0.146]."""
    if not by_seed:
        return ["–"]
    found = estimate(by_seed)
    spread = (max(found) - min(found)) / 2
    middle, *edges = (Number(value, spread=spread, signed=signed) for value in found)
    return [middle, " [", edges[0], ", ", edges[1], "]"] if edges else [middle]


def answer(truth: Truth, starts: Starts) -> list[Part]:
    found = starts.measures()
    tested = [f"“{one.claim['text']}”: {one.verdict}" for one in judged(truth) if one.claim["relation"] == "converges"]
    begin = f"{', '.join(tested) or 'The sweep makes no claim of it'}; the spread of eval/avg went from "
    return [begin, *words(found["first"]), " to ", *words(found["end"]), "."]


def section(page: Document, truth: Truth, node: Node) -> None:
    starts = compared(truth)
    assert starts is not None
    first, _ = (child for child in node.children if child.tag == "p")
    page.words(first, *answer(truth, starts))


def explain(html: str, truth: Truth) -> Document:
    """The page of the cold starts."""
    page, starts = Document(html), compared(truth)
    assert starts is not None
    body = page.root.one("body")
    page.words(page.root.one("head").child("title"), f"Cold starts · {truth.plan['title']} · minirl")
    page.words(body.one("p", class_="over"), f"minirl report · {truth.plan['name']}")
    page.words(body.one("p", class_="lead"), *answer(truth, starts))
    seeds = len(starts.shared)
    parts = [count(len(starts.runs)), " cold starts, ", count(seeds), f" {plural(seeds, 'seed')} shared by all."]
    page.words(next(body.one("header").all("p", class_="muted")), *parts)
    claims = [one for one in judged(truth) if one.claim["relation"] == "converges"]
    if claims:
        cards(page, truth, body.one("section", id="verdicts"), claims, len(judged(truth)))
    legend = body.one("section", id="curves").child("p").children
    for index, (span, arm) in enumerate(zip(legend, truth.arms, strict=True)):
        page.words(span, f" {letter(index)} {arm} ")
    spreads(page, starts, body.one("section", id="spread"))
    table(page, truth, starts, body.one("section", id="starts"))
    plots(page, truth, starts, body.one("section", id="curves"))
    return page


def spreads(page: Document, starts: Starts, node: Node) -> None:
    head, *rows = node.one("table").all("tr")
    page.words(head, "SpreadMean [", count(95), " % interval]", *(f"seed {seed}" for seed in starts.shared))
    for row, (name, by_seed) in zip(rows, starts.measures().items(), strict=True):
        page.attribute(row, "data-measure", name)
        found = estimate(by_seed) if by_seed else ()
        for attribute, place in (("mean", 0), ("low", 1), ("high", 2)):
            page.attribute(row, f"data-{attribute}", *([exact(found[place])] if place < len(found) else []))
        title, note, mean, *cells = row.children
        page.words(title, name)
        page.words(note, note.words())
        page.words(mean, *words(by_seed, signed=name == "trend"))
        for cell, seed in zip(cells, starts.shared, strict=True):
            page.words(cell, Number(by_seed[seed], digits=4) if seed in by_seed else "–")
            page.attribute(cell, "data-label", f"seed {seed}")


def reached(by_seed: dict[int, int | None]) -> list[Part]:
    known = [version for version in by_seed.values() if version is not None]
    if known and len(known) == len(by_seed):
        return [Number(float(np.mean(known)), digits=4)]
    return [count(len(known)), " of ", count(len(by_seed)), f" {plural(len(by_seed), 'seed')}"]


def table(page: Document, truth: Truth, starts: Starts, node: Node) -> None:
    near: list[Part] = ["within ", exact(0.02), " of the best"]
    intro: list[Part] = [
        "eval/avg and eval/length, mean [",
        count(95),
        " % interval] over seeds. Updates: to the first ",
    ]
    best = " end that any start has with the same seed."
    page.words(node.one("p", class_="intro"), *intro, "evaluation that is ", *near, best)
    head, *rows = node.one("table").all("tr")
    page.words(head, "Cold startCheckpointFirstPeakEndUpdates to ", *near, "Length, firstLength, end")
    for row, arm in zip(rows, starts.runs, strict=True):
        name, checkpoint, *cells = row.children
        page.words(name, f"{letter(list(truth.arms).index(arm))} {arm}")
        page.words(checkpoint, starts.content(arm)[:10])
        first, top, end = (starts.figures(arm, "eval/avg", at) for at in ("first", "peak", "end"))
        lengths = [starts.figures(arm, "eval/length", at) for at in ("first", "end")]
        got = starts.reached(arm)
        for cell, parts in zip(
            cells, [*map(words, (first, top, end)), reached(got), *map(words, lengths)], strict=True
        ):
            page.words(cell, *parts)
        updates = [version for version in got.values() if version is not None]
        everywhere = float(np.mean(updates)) if updates and len(updates) == len(got) else None
        figures = {"first": first, "peak": top, "end": end, "length": lengths[1]}
        for attribute, by_seed in figures.items():
            page.attribute(row, f"data-{attribute}", *([exact(estimate(by_seed)[0])] if by_seed else []))
        page.attribute(row, "data-updates", *([] if everywhere is None else [exact(everywhere)]))
        page.attribute(row, "data-arm-name", arm)


def plots(page: Document, truth: Truth, starts: Starts, node: Node) -> None:
    """The spread by seed, then every run's evaluation and length."""
    first, *others = node.all("figure")
    spread = [starts.spread(seed) for seed in starts.shared]
    line = Line("max − min", spread, over_seeds(spread, log=False), [], [])
    line_plot(page, first, first.one("svg"), {len(truth.arms): line}, truth.horizon, log=False)
    for figure, metric in zip(others, ("eval/avg", "eval/length"), strict=False):
        line_plot(page, figure, figure.one("svg"), lines_of(truth, metric, log=False), truth.horizon, log=False)
