"""A run of another stack as one of ours: its log under our metric names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from minirl.config import ConfigError
from minirl.report.curves import Curve
from minirl.report.dictionary import Entry, Name, columns
from minirl.report.logs import Log, Row, read_log
from minirl.report.read import Run
from minirl.report.stacks import BATCHES, STACKS, Stack

IMPORTED = "imported"  # the state of a run that others made
SURE = 2  # metrics more than any other stack would find

Points = dict[int, float]


def read_import(path: Path) -> Run:
    """The log at `path`. Raises ConfigError where no stack is recognised in it."""
    log = read_log(path)
    stack = recognised(path, log)
    curves = translated(STACKS[stack], stack, log.rows)
    if not curves:
        steps = " or ".join(dict.fromkeys(name for names in STACKS[stack].steps.values() for name in names))
        raise ConfigError(f"{path}: metrics of {stack}, but no column counts its steps: {steps} is needed")
    end = max(int(curve.versions[-1]) for curve in curves.values()) + 1
    record = {key: value for key, value in log.origin.items() if value} | {"stack": stack, "num_updates": end}
    return Run(0, path, IMPORTED, record, log.config, curves, log.remarks)


def recognised(path: Path, log: Log) -> str:
    """The stack whose names the log has most of."""
    names = {name for row in log.rows for name in row}
    counts = {stack: sum(any(name.matches(one) for one in names) for _, name in columns(stack)) for stack in STACKS}
    order = sorted(counts, key=lambda stack: counts[stack], reverse=True)
    best, second = order[0], order[1]
    if counts[best] == 0:
        raise ConfigError(
            f"{path}: no metric of {', '.join(STACKS)} among its {len(names)} columns ({', '.join(sorted(names)[:4])}, "
            "...): docs/metric_dictionary.md has the names"
        )
    if counts[best] - counts[second] < SURE and counts[second]:
        found = f"{counts[best]} and {counts[second]}"
        raise ConfigError(f"{path}: {best} or {second}? It has {found} of their metrics: export more columns")
    return best


def translated(stack: Stack, key: str, rows: Sequence[Row]) -> dict[str, Curve]:
    """Curves under our names. A version is the place of the step, from 0; of an evaluation, the steps that its weights
    have had."""
    curves = {}
    for entry, name in columns(key):
        points = _points(stack, entry, name, rows)
        if points:
            versions = np.array(sorted(points), dtype=np.int64)
            curves[entry.ours] = Curve(versions, np.array([points[version] for version in versions.tolist()]))
    return curves


def _points(stack: Stack, entry: Entry, name: Name, rows: Sequence[Row]) -> Points:
    """version -> value; several columns of a row are averaged, and of rows of one step the later counts."""
    evaluated = entry.ours.startswith("eval/")
    per_step = _updates_per_batch(stack, rows) if name.name.startswith("train/") else 1
    found: dict[int, Points] = {}
    for row in rows:
        values = [value for column, value in row.items() if name.matches(column)]
        step = _step(stack, name, row)
        if values and step is not None:
            number = int(step) - (0 if evaluated else stack.first_step)
            found.setdefault(number // per_step, {})[number] = name.factor * float(np.mean(values))
    return {version: float(np.mean(list(updates.values()))) for version, updates in found.items() if version >= 0}


def _step(stack: Stack, name: Name, row: Row) -> float | None:
    prefixes = [prefix for prefix in stack.steps if name.name.startswith(prefix)]
    candidates = stack.steps[max(prefixes, key=len)] if prefixes else ()
    return next((row[column] for column in candidates if column in row), None)


def _updates_per_batch(stack: Stack, rows: Sequence[Row]) -> int:
    """Of a stack that numbers its updates and its rollout batches apart: how many of those make one of these."""
    if stack.counts != BATCHES or len(stack.steps) < 2:
        return 1
    updates, batches = (_number_of(rows, stack.steps[family]) for family in ("train/", "rollout/"))
    return max(round(updates / batches), 1) if updates and batches else 1


def _number_of(rows: Sequence[Row], names: Sequence[str]) -> int:
    steps = [row[name] for row in rows for name in names if name in row]
    return int(max(steps) - min(steps)) + 1 if steps else 0


def caveats(run: Run) -> Mapping[str, str]:
    """By our name, where an imported metric is not quite ours."""
    stack = run.record.get("stack")
    if stack is None:
        return {}
    return {entry.ours: name.caveat for entry, name in columns(stack) if name.caveat and entry.ours in run.curves}
