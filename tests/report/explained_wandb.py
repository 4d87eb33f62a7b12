"""What a W&B report must say: every cell of its tables, its sentences, its run sets and its panels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from explained_cautions import cautions, differing, seen
from explained_coldstarts import answer, reached, words
from explained_page import results_of
from explained_verdicts import headline, plural, reason
from ledger import Ledger, Number, Part, count, listed
from recomputed import Truth, endings
from recomputed_claims import Found, judged
from recomputed_coldstarts import Starts, compared, estimate

DIGITS = 8  # of the numbers in its tables
# of a specification: what W&B's library puts there for looks, for its own bookkeeping, and where a panel stands
LOOKS = {"id", "__id__", "version", "level", "layout", "runFeed", "flowConfig", "settings", "localPanelSettings"}
LOOKS |= {"sorted", "panels.views", "panels.tabs", "panelBankConfig", "selections", "openRunSet"}


class Specification(Ledger):
    """A report's specification: every text and number of the JSON by its path."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.blocks = spec["blocks"]
        leaves = dict(self._leaves(spec, ""))
        super().__init__({path: value if isinstance(value, str) else repr(value) for path, value in leaves.items()})
        self.allows(path for path in leaves if any(f".{name}." in f"{path}." for name in LOOKS))

    def _leaves(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict | list):
            entries = value.items() if isinstance(value, dict) else enumerate(value)
            for name, part in entries:
                yield from self._leaves(part, f"{path}.{name}")
        elif value is not None and not isinstance(value, bool):
            yield path, value

    def text(self, place: int, *parts: Part) -> None:
        """A block of words."""
        self.says([f".blocks.{place}.content"], unescaped(self.blocks[place]["content"]), *parts)

    def table(self, place: int, head: Sequence[Sequence[Part]], rows: Sequence[Sequence[Sequence[Part]]]) -> str:
        """A block with a table of these cells; what follows the table."""
        lines = self.blocks[place]["content"].split("\n")
        there = [line for line in lines if line.startswith("|")]
        if len(there) != len(rows) + 2:
            self.wrong.append(f"block {place} has {len(there) - 2} rows, expected {len(rows)}")
            return ""
        for line, cells in zip([there[0], *there[2:]], [head, *rows], strict=True):
            found = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
            if len(found) != len(cells):
                self.wrong.append(f"{line!r} has {len(found)} cells, expected {len(cells)}")
                continue
            for text, parts in zip(found, cells, strict=True):
                self.says([f".blocks.{place}.content"], unescaped(text), *parts)
        return "\n".join(lines[len(there) :])


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def digits(value: float | None) -> list[Part]:
    return ["–"] if value is None else [Number(value, digits=DIGITS)]


def explain(spec: dict[str, Any], truth: Truth, panels: Sequence[str]) -> Specification:
    """The report of a sweep. panels: the metrics that the page draws among the main ones."""
    report, found, starts = Specification(spec), judged(truth), compared(truth)
    kinds = [(place, block["type"]) for place, block in enumerate(report.blocks) if block["type"] != "paragraph"]
    places = iter(place for place, kind in kinds if kind != "heading")
    summary(report, truth, next(places), found)
    verdicts(report, truth, next(places), found, len(found))
    grid(report, truth, next(places), panels)
    ends(report, truth, next(places), panels)
    every_run(report, truth, next(places))
    changes(report, truth, next(places))
    if starts is not None:
        cold(report, truth, starts, places, found)
    assert next(places, None) is None, "a block that nobody knows"
    return report


def explain_coldstarts(spec: dict[str, Any], truth: Truth) -> Specification:
    """The report of the cold starts alone."""
    report, starts = Specification(spec), compared(truth)
    assert starts is not None
    kinds = ("paragraph", "heading", "table-of-contents")
    places = iter(place for place, block in enumerate(report.blocks) if block["type"] not in kinds)
    cold(report, truth, starts, places, judged(truth))
    assert next(places, None) is None
    return report


def summary(report: Specification, truth: Truth, place: int, found: list[Found]) -> None:
    seeds = listed(([count(seed)] for seed in truth.plan["seeds"]), ", ")
    arms = len(truth.arms)
    parts = [*headline(found), " ", count(arms), f" {plural(arms, 'arm')}, seeds ", *seeds]
    report.text(place, *parts, ". ", *results_of(truth))


def verdicts(report: Specification, truth: Truth, place: int, found: list[Found], num_claims: int) -> None:
    if not found:
        report.text(place, "This sweep makes no claims.")
        return
    head = ["verdict", "claim", "effect", "95 % low", "95 % high", "p", "p, Holm", "seeds", "why"]
    rows = []
    for one in found:
        low, high = one.interval or (None, None)
        numbers = [digits(value) for value in (one.effect, low, high, one.p, one.adjusted)]
        why = reason(truth, one, num_claims)
        rows.append([[f"**{one.verdict}**"], [" ".join(one.claim["text"].split())], *numbers, [count(one.n)], why])
    report.table(place, [[title] for title in head], rows)


def grid(report: Specification, truth: Truth, place: int, metrics: Sequence[str]) -> None:
    """One run set per arm, by group, job type and arm; one panel per metric, seeds averaged."""
    content = report.blocks[place]["metadata"]
    named = {("run", "group"): truth.plan["name"], ("run", "jobType"): "train"}
    assert [chosen["name"] for chosen in content["runSets"]] == list(truth.arms)
    for chosen, arm in zip(content["runSets"], truth.arms, strict=True):
        filters = {(one["key"]["section"], one["key"]["name"]): one["value"] for one in chosen["filters"]["filters"]}
        assert filters == named | {("config", "arm"): arm}
        assert chosen["grouping"] == [{"section": "config", "name": "arm.value"}]
    shown = content["panelBankSectionConfig"]["panels"]
    assert [panel["config"]["metrics"] for panel in shown] == [[metric] for metric in metrics]
    for panel in shown:
        config = panel["config"]
        assert (config["xAxis"], config["groupAgg"], config["groupArea"]) == ("version", "mean", "stddev")
    inside = (f".blocks.{place}.metadata.runSets", f".blocks.{place}.metadata.panelBankSectionConfig.panels")
    known = {".name", ".value", ".metrics.0", ".chartTitle", ".yAxisTitle", ".filterFormat"}
    paths = [path for path in report.open if str(path).startswith(inside)]
    report.allows(path for path in paths if any(str(path).endswith(end) for end in known))


def ends(report: Specification, truth: Truth, place: int, metrics: Sequence[str]) -> None:
    rows = []
    for metric in metrics:
        by_arm = [list(truth.by_seed(arm, metric, "end").values()) for arm in truth.arms]
        rows.append([[f"`{metric}`"], *(digits(float(np.mean(values)) if values else None) for values in by_arm)])
    report.table(place, [["metric at the end"], *([arm] for arm in truth.arms)], rows)


def every_run(report: Specification, truth: Truth, place: int) -> None:
    figures = ("end", "peak", "area")
    rows = []
    for run in truth.runs:
        numbers = [digits(run.figure("eval/avg", at) if run.counts else None) for at in figures]
        rows.append([[run.arm], [count(run.seed)], [run.state], [count(run.last)], *numbers])
    report.table(place, [[title] for title in ("arm", "seed", "state", "updates", *figures)], rows)


def changes(report: Specification, truth: Truth, place: int) -> None:
    def values(arm: str, key: str) -> list[Part]:
        return [" | ".join(seen(truth, arm, key)) or "–"]

    rows = [[[f"`{key}`"], *(values(arm, key) for arm in truth.arms)] for key in differing(truth)]
    rows.append([["runs"], *([endings(members)] for members in truth.arms.values())])
    rest = report.table(place, [["key"], *([arm] for arm in truth.arms)], rows)
    said = [unescaped(line).removeprefix("- ") for line in rest.splitlines() if line]
    expected = [parts for parts, _ in sorted(cautions(truth), key=lambda caution: not caution[1])]
    assert len(said) == len(expected), said
    for text, parts in zip(said, expected, strict=True):
        report.says([f".blocks.{place}.content"], text, *parts)


def cold(report: Specification, truth: Truth, starts: Starts, places: Iterator[int], found: list[Found]) -> None:
    report.text(next(places), *answer(truth, starts))
    claims = [one for one in found if one.claim["relation"] == "converges"]
    verdicts(report, truth, next(places), claims, len(found))
    grid(report, truth, next(places), ("eval/avg", "eval/length"))
    rows = []
    place = next(places)
    notes = [line.split(" | ")[1] for line in report.blocks[place]["content"].splitlines()[2:]]
    for (name, by_seed), note in zip(starts.measures().items(), notes, strict=True):
        mean, low, high = (*estimate(by_seed), None, None)[:3]
        each = [digits(by_seed.get(seed)) for seed in starts.shared]
        rows.append([[name], [unescaped(note)], *map(digits, (mean, low, high)), *each])
    head = ["spread", "", "mean", "95 % low", "95 % high", *(f"seed {seed}" for seed in starts.shared)]
    report.table(place, [[title] for title in head], rows)
    titles: list[list[Part]] = [["cold start"], ["checkpoint"], ["first"], ["peak"], ["end"]]
    titles += [["updates to within ", Number(0.02), " of the best"], ["length, first"], ["length, end"]]
    lines = []
    for arm in starts.runs:
        scores = [words(starts.figures(arm, "eval/avg", at)) for at in ("first", "peak", "end")]
        lengths = [words(starts.figures(arm, "eval/length", at)) for at in ("first", "end")]
        lines.append([[arm], [f"`{starts.content(arm)[:10]}`"], *scores, reached(starts.reached(arm)), *lengths])
    report.table(next(places), titles, lines)
