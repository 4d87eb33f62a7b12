"""What a comparison of runs says on a terminal, and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from minirl.report.compare import Comparison
from minirl.report.dictionary import ENTRIES
from minirl.report.figures import collapsed
from minirl.report.imports import caveats
from minirl.report.partings import Parting
from minirl.report.read import Run
from minirl.report.stacks import STACKS, UPDATES

MOST_PARTINGS, MOST_HEALTHY = 8, 3
WIDEST = 46  # letters of a column in a pipe
HEALTHY = {entry.ours: entry.healthy for entry in ENTRIES}


def show(compared: Comparison, console: Console) -> None:
    """A table of what differs, then where the curves part."""
    names = [_name(run) for run in compared.runs]
    rows: list[tuple[str, ...]] = [(key, *texts) for key, texts in (compared.keys or {}).items()]
    rows += [(key, *texts) for key, texts in compared.surroundings.items()]
    rows.append(("ending", *(_ending(run) for run in compared.runs)))
    rows.append(("updates", *(f"{run.version} of {run.horizon}" for run in compared.runs)))
    rows.append(("last eval/avg", *(_last(run, "eval/avg") for run in compared.runs)))
    print_table(("", *names), rows, console)
    console.print()
    for line in _lines(compared, names):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _lines(compared: Comparison, names: Sequence[str]) -> list[str]:
    lines = [] if compared.keys is not None else ["Configurations of different stacks are not compared key by key."]
    lines.append(_unequal_text(compared))
    for name, found in zip(names[1:], compared.partings, strict=True):
        lines += _parting_text(names[0], name, found, compared.axis)
    seen = list(dict.fromkeys(one.metric for found in compared.partings for one in found[:MOST_PARTINGS]))
    lines += [f"healthy {metric}: {HEALTHY[metric]}" for metric in seen if metric in HEALTHY][:MOST_HEALTHY]
    for name, raised in zip(names, compared.alarms, strict=True):
        lines += [f"{name}: {one}" for one in raised]
    for name, run in zip(names, compared.runs, strict=True):
        known = caveats(run)
        lines += [f"{name}: {metric} is not quite ours: {known[metric]}" for metric in seen if metric in known]
        lines += [f"{name}: {remark}" for remark in run.remarks]
        if "stack" in run.record and STACKS[run.record["stack"]].counts != compared.axis:
            lines.append(f"{name}: its steps are {STACKS[run.record['stack']].counts}, the axis is {compared.axis}")
    return lines


def _name(run: Run) -> str:
    if "stack" in run.record:
        return f"{run.record['stack']} {run.record.get('name') or run.folder.stem}"
    return f"{run.record.get('arm') or run.folder.name}, seed {run.seed}"


def _ending(run: Run) -> str:
    detail = f" ({run.record['reason']})" if run.record.get("reason") else ""
    return f"{run.state}{', collapsed' if run.state != 'collapsed' and collapsed(run) else ''}{detail}"


def _last(run: Run, metric: str) -> str:
    curve = run.curves.get(metric)
    return f"{curve.values[-1]:.3f}" if curve is not None and len(curve) else "–"


def _unequal_text(compared: Comparison) -> str:
    if compared.unequal is None:
        return "Equal in every number of every version that all have."
    version, metrics = compared.unequal
    several = f" and {len(metrics) - 3} more" if len(metrics) > 3 else ""
    return f"First unequal number: version {version}, {', '.join(metrics[:3])}{several}."


def _parting_text(first: str, other: str, found: Sequence[Parting], axis: str) -> list[str]:
    if not found:
        return [f"{other} against {first}: no metric parts for good."]
    num_seeds = max(one.num_seeds for one in found)
    noise = f"the noise of {num_seeds} seeds" if num_seeds else "its early spread"
    lines = [f"{other} against {first}: what parts for good beyond {noise}, the first one first ({axis}):"]
    listed = found[:MOST_PARTINGS]
    width, digits = max(len(one.metric) for one in listed), len(str(listed[-1].version))
    word = "update" if axis == UPDATES else "batch"
    lines += [
        f"  {word} {one.version:>{digits}}: {one.metric:<{width}}  {one.first:.3g} and {one.other:.3g}"
        for one in listed
    ]
    return lines + ([f"  and {len(found) - MOST_PARTINGS} more"] if len(found) > MOST_PARTINGS else [])


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """Columns: rich on a terminal, padded with blanks in a pipe."""
    if not console.is_terminal:
        cut = [[text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…" for text in row] for row in (head, *rows)]
        widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
        for row in cut:
            line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
            console.print(line.rstrip(), soft_wrap=True, highlight=False, markup=False)
        return
    table = Table(*map(escape, head), box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for texts in rows:
        table.add_row(*map(Text, texts))
    console.print(table)
