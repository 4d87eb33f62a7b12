"""Runs side by side, ours and those of other stacks: which keys and surroundings differ, and where curves part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minirl.metrics.alarms import WATCHED, Alarm, alarms, early_steps
from minirl.report.curves import Curve, batch_means
from minirl.report.differences import shown
from minirl.report.imports import read_import
from minirl.report.logs import log_file
from minirl.report.panels import PER_UPDATE
from minirl.report.partings import Parting, aligned, common, partings
from minirl.report.read import Run, read_run
from minirl.report.stacks import BATCHES, STACKS, UPDATES

Texts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """axis: what a version counts here · keys: differing keys of the configuration, surroundings: of code, packages and
    machine, with every run's value (keys is None where the runs are of different stacks) · unequal: the first version
    at which any number differs, and in which metrics (None: all equal as far as both go) · partings, alarms: by run,
    the earliest first."""

    runs: tuple[Run, ...]
    axis: str
    keys: Texts | None
    surroundings: Texts
    unequal: tuple[int, tuple[str, ...]] | None
    partings: tuple[tuple[Parting, ...], ...]
    alarms: tuple[tuple[Alarm, ...], ...]


def open_run(name: str, find: Callable[[str], Path]) -> Run:
    """A log of another stack by its path; else one of our runs, by what `find` makes of the name."""
    path = log_file(name)
    return read_run(find(name)) if path is None else read_import(path)


def siblings(run: Run) -> list[Run]:
    """The run, then those of the same identity beside it; an imported run is alone."""
    identity = run.folder.name.rpartition("-s")[0]
    if not identity or "stack" in run.record:
        return [run]
    folders = sorted(path.parent for path in run.folder.parent.glob(f"{identity}-s*/run.json"))
    return [run, *(read_run(folder) for folder in folders if folder.resolve() != run.folder.resolve())]


def comparison(runs: Sequence[Run]) -> Comparison:
    """All that differs between the runs; the first one is what the others are compared with."""
    counted = {STACKS[stack].counts for run in runs if (stack := run.record.get("stack")) is not None}
    in_batches = BATCHES in counted
    arms = [[on_batches(one) if in_batches else one for one in siblings(run)] for run in runs]
    compared = [arm[0] for arm in arms]
    return Comparison(
        runs=tuple(runs),
        axis=BATCHES if in_batches else UPDATES,
        keys=_keys(runs),
        surroundings=_surroundings(runs),
        unequal=_unequal(compared),
        partings=tuple(
            tuple(partings(compared[0], other, (arms[0], arm)))
            for other, arm in zip(compared[1:], arms[1:], strict=True)
        ),
        alarms=tuple(tuple(alarms(_rows(run), early_steps(_num_steps(run)))) for run in runs),
    )


def on_batches(run: Run) -> Run:
    """One of our runs with rollout batches as versions, as other stacks count; an imported run as it is."""
    num_mini_batches = int(run.config.get("num_mini_batches", 1)) if "stack" not in run.record else 1
    if num_mini_batches == 1:
        return run
    curves = {}
    for name, curve in run.curves.items():
        means = batch_means(curve, num_mini_batches) if name.startswith(PER_UPDATE) else curve
        curves[name] = Curve(means.versions // num_mini_batches, means.values)
    return replace(run, curves=curves)


def _keys(runs: Sequence[Run]) -> Texts | None:
    if len({run.record.get("stack") for run in runs}) > 1:
        return None
    names = dict.fromkeys(key for run in runs for key in run.config if not key.startswith("run."))
    return _differing({key: [run.config.get(key, "absent") for run in runs] for key in names})


def _surroundings(runs: Sequence[Run]) -> Texts:
    """Code, cold start, machine and packages, where they are recorded and differ."""
    packages = [run.record.get("packages") or {} for run in runs]
    names = dict.fromkeys(name for known in packages for name in known if all(packages))
    found: dict[str, list[object]] = {
        "stack": [run.record.get("stack", "minirl") for run in runs],
        "code": [" then ".join(run.codes) or "–" for run in runs],
        "cold start": [str((run.record.get("coldstart") or {}).get("content", "–"))[:16] for run in runs],
        "host": [run.record.get("host") or "–" for run in runs],
        "python": [run.record.get("python") or "–" for run in runs],
        **{name: [known.get(name, "absent") for known in packages] for name in names},
    }
    return _differing(found)


def _differing(values: Mapping[str, Sequence[object]]) -> Texts:
    texts = {key: tuple(map(shown, each)) for key, each in values.items()}
    return {key: each for key, each in texts.items() if len(set(each)) > 1}


def _unequal(runs: Sequence[Run]) -> tuple[int, tuple[str, ...]] | None:
    """Bit for bit: for two runs that should be one and the same."""
    found: dict[int, list[str]] = {}
    for metric in common(runs):
        versions, tables = aligned([run.curves[metric] for run in runs])
        apart = np.flatnonzero((tables != tables[0]).any(axis=0))
        if apart.size:
            found.setdefault(int(versions[apart[0]]), []).append(metric)
    first = min(found, default=None)
    return None if first is None else (first, tuple(sorted(found[first])))


def _num_steps(run: Run) -> int:
    """Rollout batches of the whole run, planned ones included."""
    return run.horizon // int(run.config.get("num_mini_batches", 1))


def _rows(run: Run) -> list[dict[str, float]]:
    """The metrics that alarms watch, as rows again."""
    rows: dict[int, dict[str, float]] = {}
    for metric in set(WATCHED) & run.curves.keys():
        curve = run.curves[metric]
        for version, value in zip(curve.versions.tolist(), curve.values.tolist(), strict=True):
            rows.setdefault(version, {"version": version})[metric] = value
    return [rows[version] for version in sorted(rows)]
