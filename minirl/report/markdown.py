"""What a sweep showed, as Markdown tables: the text of a W&B report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from minirl.report import wording
from minirl.report.coldstart_page import MEASURES, reached, words
from minirl.report.coldstarts import NEAR, Comparison
from minirl.report.confounders import cautions
from minirl.report.differences import Difference
from minirl.report.figures import figures
from minirl.report.findings import Judgement
from minirl.report.panels import EVALUATION, Panel
from minirl.report.read import Sweep
from minirl.report.tables import endings

SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~-])")
FIGURES = ("end", "peak", "area")


def plain(text: str) -> str:
    """Text from outside, so that nothing in it is markup."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table; the cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def digits(value: float | None) -> str:
    """Enough to recompute it."""
    return "–" if value is None else f"{value:.8g}"


def summary(sweep: Sweep, judgements: Sequence[Judgement]) -> str:
    arms, seeds = wording.counted(len(sweep.distinct_arms), "arm"), ", ".join(map(str, sweep.seeds))
    return f"{wording.headline(judgements)} {arms}, seeds {seeds}. {wording.results(sweep)}"


def verdicts(judgements: Sequence[Judgement]) -> str:
    """Every claim: its verdict, the effect with its 95 % interval, the seeds and both p-values."""
    rows = []
    for one in judgements:
        finding = one.finding
        low, high = finding.interval or (None, None)
        p = finding.evidence.p if finding.evidence else None
        numbers = (finding.effect, low, high, p, one.adjusted)
        why = plain(wording.reason(one))
        rows.append((f"**{one.verdict}**", plain(one.claim.text), *map(digits, numbers), str(finding.num_seeds), why))
    head = ("verdict", "claim", "effect", "95 % low", "95 % high", "p", "p, Holm", "seeds", "why")
    return table(head, rows) if rows else "This sweep makes no claims."


def evaluations(sweep: Sweep) -> str:
    """eval/avg of every run: at the end, at its peak, and the area under its curve."""
    rows = []
    for arm in sweep.distinct_arms:
        found = {at: figures(arm, EVALUATION.metric, at) for at in FIGURES}
        for run in arm.runs:
            numbers = [digits(found[at].get(run.seed)) for at in FIGURES]
            rows.append((plain(arm.name), str(run.seed), plain(run.state), str(run.version), *numbers))
    return table(("arm", "seed", "state", "updates", *FIGURES), rows)


def ends(sweep: Sweep, panels: Sequence[Panel]) -> str:
    """The mean over seeds of each metric's end, arm by arm."""
    rows = []
    for panel in panels:
        by_arm = [list(figures(arm, panel.metric, "end").values()) for arm in sweep.distinct_arms]
        means = [sum(values) / len(values) if values else None for values in by_arm]
        rows.append((f"`{panel.metric}`", *map(digits, means)))
    return table(("metric at the end", *(plain(arm.name) for arm in sweep.distinct_arms)), rows)


def changes(sweep: Sweep, found: Sequence[Difference]) -> str:
    """The configuration keys that differ between arms, and how the runs of each arm ended."""
    arms = list(sweep.distinct_arms)
    rows = [(f"`{one.key}`", *(plain(" | ".join(one.values.get(arm.name, ("–",)))) for arm in arms)) for one in found]
    rows.append(("runs", *(plain(endings(arm.runs)) for arm in arms)))
    notes = "".join(f"\n- {plain(caution.text)}" for caution in cautions(sweep, found))
    return table(("key", *(plain(arm.name) for arm in arms)), rows) + (f"\n\n{notes}" if notes else "")


def spreads(found: Comparison) -> str:
    """The spread between cold starts by seed, its trend, and the interval of each."""
    rows = []
    for name, note in MEASURES.items():
        estimate = getattr(found, name)
        if estimate is not None:
            low, high = estimate.interval or (None, None)
            by_seed = [digits(estimate.by_seed.get(seed)) for seed in found.spreads]
            rows.append((name, plain(note), *map(digits, (estimate.mean, low, high)), *by_seed))
    seeds = (f"seed {seed}" for seed in found.spreads)
    return table(("spread", "", "mean", "95 % low", "95 % high", *seeds), rows)


def starts(found: Comparison) -> str:
    rows = []
    for start in found.starts:
        figures = (start.first, start.peak, start.end)
        cells = [words(each) for each in figures] + [reached(start)] + [words(each) for each in start.lengths]
        rows.append((plain(start.arm), f"`{start.content}`", *(plain(cell) for cell in cells)))
    to_best = f"updates to within {NEAR} of the best"
    return table(("cold start", "checkpoint", "first", "peak", "end", to_best, "length, first", "length, end"), rows)
