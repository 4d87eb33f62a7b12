"""Runs side by side: which keys differ, how each ended, and where their curves part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minirl.metrics.collapse import BANDS, Alarm, alarms, trailing_mean
from minirl.report.curves import Curve
from minirl.report.differences import shown
from minirl.report.figures import collapsed
from minirl.report.read import Run, read_run

UNCOMPARED = ("time/", "tokens/")  # these differ between any two runs
SMOOTHED = 3  # a difference is looked at as the mean of this many points,
EARLY_SHARE, MOST_EARLY, LEAST_EARLY = 0.25, 10, 4  # against its spread over the first quarter of them,
BAND = 5.0  # and is outside beyond this many standard deviations,
FLOOR = 0.01  # each at least this share of the metric's early level


@dataclass(frozen=True, slots=True)
class Parting:
    """From `version` on, until the end, the difference in `metric` to the first run stays out of its early band."""

    metric: str
    version: int
    first: float
    other: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """keys: differing keys with every run's value · unequal: the first version at which any number differs, and in
    which metrics (None: all equal as far as both go) · partings, alarms: by run, the earliest first."""

    runs: tuple[Run, ...]
    keys: Mapping[str, tuple[str, ...]]
    unequal: tuple[int, tuple[str, ...]] | None
    partings: tuple[tuple[Parting, ...], ...]
    alarms: tuple[tuple[Alarm, ...], ...]


def compare_runs(paths: Sequence[Path], console: Console | None = None) -> Comparison:
    """Compares the runs in these folders with the first one, and prints what was found."""
    compared = comparison([read_run(path) for path in paths])
    show(compared, console or Console())
    return compared


def comparison(runs: Sequence[Run]) -> Comparison:
    """All that differs between the runs; the first one is what the others are compared with."""
    names = dict.fromkeys(key for run in runs for key in run.config)
    values = {key: tuple(shown(run.config[key]) if key in run.config else "absent" for run in runs) for key in names}
    return Comparison(
        runs=tuple(runs),
        keys={key: texts for key, texts in values.items() if len(set(texts)) > 1 and not key.startswith("run.")},
        unequal=_unequal(runs),
        partings=tuple(tuple(_partings(runs[0], other)) for other in runs[1:]),
        alarms=tuple(tuple(alarms(_rows(run))) for run in runs),
    )


def _unequal(runs: Sequence[Run]) -> tuple[int, tuple[str, ...]] | None:
    """Bit for bit: for two runs that should be one and the same."""
    found: dict[int, list[str]] = {}
    for metric in _common(runs):
        versions, tables = _aligned([run.curves[metric] for run in runs])
        apart = np.flatnonzero((tables != tables[0]).any(axis=0))
        if apart.size:
            found.setdefault(int(versions[apart[0]]), []).append(metric)
    first = min(found, default=None)
    return None if first is None else (first, tuple(sorted(found[first])))


def _partings(first: Run, other: Run) -> list[Parting]:
    partings = []
    for metric in _common((first, other)):
        versions, (left, right) = _aligned((first.curves[metric], other.curves[metric]))
        place = parts_at(right - left, level=float(np.abs(left[:MOST_EARLY]).mean()) if left.size else 0.0)
        if place is not None:
            partings.append(Parting(metric, int(versions[place]), float(left[place]), float(right[place])))
    return sorted(partings, key=lambda parting: (parting.version, parting.metric))


def parts_at(difference: np.ndarray, *, level: float) -> int | None:
    """The first index from which |smoothed difference - its early mean| > BAND max(early deviation, FLOOR level) to
    the very end; None where it comes back, or where there are too few points to tell."""
    early = max(LEAST_EARLY, min(MOST_EARLY, int(EARLY_SHARE * difference.size)))
    if difference.size < 2 * early:
        return None
    begin = difference[:early]
    width = BAND * max(float(begin.std(ddof=1)), FLOOR * level)
    outside = np.abs(trailing_mean(difference.tolist(), SMOOTHED) - begin.mean()) > width
    if not outside[-1]:
        return None
    return int(difference.size - np.argmin(outside[::-1])) if not outside.all() else 0


def _common(runs: Iterable[Run]) -> list[str]:
    names = set.intersection(*(set(run.curves) for run in runs))
    return sorted(name for name in names if not name.startswith(UNCOMPARED))


def _aligned(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """(versions [m] that all have, values [curves, m])."""
    versions = curves[0].versions
    for curve in curves[1:]:
        versions = np.intersect1d(versions, curve.versions)
    return versions, np.array([curve.values[np.isin(curve.versions, versions)] for curve in curves])


def _rows(run: Run) -> list[dict[str, float]]:
    """The metrics that alarms watch, as rows again."""
    rows: dict[int, dict[str, float]] = {}
    for metric in BANDS.keys() & run.curves.keys():
        curve = run.curves[metric]
        for version, value in zip(curve.versions.tolist(), curve.values.tolist(), strict=True):
            rows.setdefault(version, {"version": version})[metric] = value
    return [rows[version] for version in sorted(rows)]


def show(compared: Comparison, console: Console) -> None:
    """A table of keys and endings, then where the curves part."""
    names = [f"{run.record.get('arm') or run.folder.name}, seed {run.seed}" for run in compared.runs]
    rows: list[tuple[str, ...]] = [(key, *texts) for key, texts in compared.keys.items()]
    rows.append(("ending", *(_ending(run) for run in compared.runs)))
    rows.append(("updates", *(f"{run.version} of {run.horizon}" for run in compared.runs)))
    rows.append(("last eval/avg", *(_last(run, "eval/avg") for run in compared.runs)))
    _print_table(("", *names), rows, console)
    lines = [_unequal_text(compared.unequal)]
    for name, partings in zip(names[1:], compared.partings, strict=True):
        lines += _parting_text(names[0], name, partings)
    for name, raised in zip(names, compared.alarms, strict=True):
        lines += [
            f"{name}: {one.metric} is {one.direction} its usual range at update {one.version}: {one.value:.3g}, "
            f"the bound is {one.high if one.direction == 'above' else one.low:.3g}"
            for one in raised
        ]
    for run, name in zip(compared.runs, names, strict=True):
        lines += [f"{name}: {remark}" for remark in run.remarks]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _ending(run: Run) -> str:
    detail = f" ({run.record['reason']})" if run.record.get("reason") else ""
    return f"{run.state}{', collapsed' if run.state != 'collapsed' and collapsed(run) else ''}{detail}"


def _last(run: Run, metric: str) -> str:
    curve = run.curves.get(metric)
    return f"{curve.values[-1]:.3f}" if curve is not None and len(curve) else "–"


def _unequal_text(unequal: tuple[int, tuple[str, ...]] | None) -> str:
    if unequal is None:
        return "Equal in every number of every version that all have."
    version, metrics = unequal
    several = f" and {len(metrics) - 3} more" if len(metrics) > 3 else ""
    return f"First unequal number: version {version}, {', '.join(metrics[:3])}{several}."


def _parting_text(first: str, other: str, partings: Sequence[Parting]) -> list[str]:
    if not partings:
        return [f"{other} against {first}: no metric leaves its early band for good."]
    lines = [f"{other} against {first}: what leaves its early band for good, the first one first:"]
    return lines + [f"  update {one.version}: {one.metric} {one.first:.3g} and {one.other:.3g}" for one in partings[:8]]


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    if not console.is_terminal:
        for row in (head, *rows):
            console.print(" | ".join(row), soft_wrap=True, highlight=False, markup=False)
        return
    table = Table(*head, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
