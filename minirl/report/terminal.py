"""The verdicts in the terminal, and where the page is."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minirl.report import wording
from minirl.report.claims import evaluate
from minirl.report.confounders import cautions
from minirl.report.differences import differences
from minirl.report.findings import Judgement, Verdict
from minirl.report.grammar import quoted
from minirl.report.inert import inert_switches
from minirl.report.page import write_page
from minirl.report.read import Sweep, read_sweep

PLAIN_WIDTH = 100
STYLES = {Verdict.reproduced: "green", Verdict.contradicted: "red", Verdict.undecided: "dim", Verdict.described: "dim"}


def report(sweep_folder: Path, console: Console) -> Path:
    """Writes the page of the sweep and says in the terminal what is on it; returns the page's path."""
    sweep = read_sweep(sweep_folder)
    judgements = evaluate(sweep)
    path = write_page(sweep, judgements)
    show(sweep, judgements, console)
    console.print(f"\n{path.resolve()}", soft_wrap=True, highlight=False, markup=False)
    return path


def show(sweep: Sweep, judgements: list[Judgement], console: Console) -> None:
    """Headline, verdicts (a table, or lines where there is no terminal), and what else to know."""
    console.print(f"{sweep.title}\n{wording.headline(judgements)}", highlight=False, markup=False, soft_wrap=True)
    if console.is_terminal:
        console.print(_table(judgements))
    else:
        for line in plain(judgements):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    notes = [
        f"no effect here: {one.switch} in {', '.join(map(quoted, one.arms))} ({one.evidence})"
        for one in inert_switches(sweep)
    ]
    doubts = cautions(sweep, differences(sweep))
    notes += [f"{'confounded' if doubt.pairs else 'note'}: {doubt.text}" for doubt in doubts]
    for note in notes:
        console.print(note, soft_wrap=True, highlight=False, markup=False, style="dim")


def plain(judgements: list[Judgement]) -> list[str]:
    """For a pipe: the claim beside its verdict, and under it the effect and the reason, no line longer than needed."""
    width = max((len(one.verdict) for one in judgements), default=0) + 2
    lines = []
    for one in judgements:
        lines.append(f"{one.verdict:<{width}}{one.claim.text}")
        for text in (wording.effect(one.finding), wording.reason(one)):
            lines += wrap(text, PLAIN_WIDTH, initial_indent=" " * width, subsequent_indent=" " * width)
    return lines


def _table(judgements: list[Judgement]) -> Table:
    table = Table("verdict", "claim", "effect [95 % interval]", "why", box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for one in judgements:
        words = (one.claim.text, wording.effect(one.finding), wording.reason(one))
        table.add_row(f"[{STYLES[one.verdict]}]{one.verdict}[/]", *map(escape, words))
    return table
