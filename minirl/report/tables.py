"""The parts of the page that say what was compared, how it ended and what it cost."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from minirl.report.accounting import Account, account, phases
from minirl.report.markup import Child, Markup, element
from minirl.report.plots import MARKERS, NUM_MARKERS, arm_class
from minirl.report.read import Arm, Run, Sweep
from minirl.report.wording import counted


def section(name: str, title: str, intro: str | None, *children: Child) -> Markup:
    return element(
        "section", element("h2", title), element("p", intro, class_="intro") if intro else None, children, id=name
    )


def table(head: Sequence[str], rows: Sequence[Markup], name: str) -> Markup:
    """A table that becomes a list of cards on a narrow screen, and scrolls by itself where it is too wide for one."""
    content = element(
        "table",
        element("thead", element("tr", [element("th", text) for text in head])),
        element("tbody", rows),
        class_="stack",
        data_table=name,
    )
    return element("div", content, class_="scroll", role="region", aria_label=f"table: {name}", tabindex=0)


def number_cell(label: str, *children: Child) -> Markup:
    """A cell of digits; `label` is shown where the table has become cards."""
    return element("td", children, class_="number", data_label=label)


def exact(value: float | None) -> str | None:
    """All digits, for whoever recomputes it."""
    return None if value is None else repr(float(value))


def number(value: float | None) -> str:
    """12,345 or 0.123; a dash for what is not known."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}".replace("-", "−")


def swatch(index: int) -> Markup:
    """An arm's line and marker."""
    line = element("path", class_="mean", d="M2 7H38")
    mark = element("path", class_="mark", d=MARKERS[index % NUM_MARKERS], transform="translate(20 7)")
    return element(
        "svg",
        element("g", line, mark, class_=arm_class(index)),
        class_="swatch",
        viewBox="0 0 40 14",
        aria_hidden="true",
    )


def endings(runs: Iterable[Run]) -> str:
    """4 finished, 1 missing."""
    return ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in runs).items())


def accounts(sweep: Sweep) -> Markup | None:
    """Seconds by phase of the loop and tokens, per run."""
    found = [one for arm in sweep.distinct_arms if (one := account(arm)) is not None]
    if not found:
        return None
    names = phases(found)
    head = ("Arm", *names, "per update", "prompt tokens", "response tokens", "response tokens per CPU s")
    return section(
        "time",
        "Where time and tokens went",
        "Wall seconds of one run in each phase of the loop (time/*), means over seeds; the bar is the share. CPU "
        "seconds are those of the same phases (time/*_cpu).",
        table(head, [_account_row(one, names) for one in found], "accounts"),
    )


def _account_row(one: Account, names: Sequence[str]) -> Markup:
    whole = sum(one.seconds.values())
    phase_cells = []
    for name in names:
        spent = one.seconds.get(name, 0.0)
        bar = element("span", class_="share", style=f"--share:{spent / whole if whole else 0:.3f}")
        phase_cells.append(number_cell(name, number(spent), bar))
    return element(
        "tr",
        element("th", one.arm),
        phase_cells,
        number_cell("per update", number(whole / one.num_updates if one.num_updates else None)),
        number_cell("prompt tokens", number(one.tokens.get("prompt"))),
        number_cell("response tokens", number(one.tokens.get("response"))),
        number_cell("response tokens per CPU second", number(one.tokens_per_cpu_second)),
    )


def runs_table(sweep: Sweep) -> Markup:
    """Every cell: how it ended, where it is, how to run it alone."""
    rows = [_run_row(arm, run) for arm in sweep.distinct_arms for run in arm.runs]
    summary = element("summary", f"{counted(len(rows), 'run')}: {endings(sweep.runs)}")
    content = table(("Arm", "Seed", "State", "Updates", "Folder", "Alone"), rows, "runs")
    return section("runs", "Every run", None, element("details", summary, content))


def _run_row(arm: Arm, run: Run) -> Markup:
    notes = [text for text in (run.record.get("reason"), *run.remarks) if text]
    command = f"minirl run {shlex.join(map(str, run.record.get('overrides') or arm.overrides))}"
    return element(
        "tr",
        element("th", arm.name),
        number_cell("Seed", run.seed),
        element("td", run.state, [element("span", note, class_="note") for note in notes], data_label="State"),
        number_cell("Updates", f"{run.version} of {run.horizon}"),
        element("td", element("code", run.folder.name), data_label="Folder"),
        element("td", element("code", command), data_label="Alone"),
    )
