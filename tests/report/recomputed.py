"""The numbers of a sweep once more, straight from its files: sweep.json, run.json, config.yaml, metrics.jsonl. Written
from docs/sweeps.md, docs/collapse.md and docs/report.md with numpy alone; nothing here comes from minirl.report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import yaml

RESULTS = ("finished", "collapsed", "diverged", "degenerate")
Points = tuple[np.ndarray, np.ndarray]  # versions, values


@dataclass(frozen=True)
class Run:
    arm: str
    seed: int
    folder: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else {}

    @cached_property
    def config(self) -> dict[str, Any]:
        """Keys with dots."""
        path = self.folder / "config.yaml"
        return dotted(yaml.safe_load(path.read_text("utf-8"))) if path.exists() else {}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One per version; the later one where a version is there twice."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        rows = {row["version"]: row for row in map(json.loads, lines)}
        return [rows[version] for version in sorted(rows)]

    @property
    def state(self) -> str:
        return self.record.get("state", "missing")

    @property
    def counts(self) -> bool:
        return self.state in RESULTS

    @property
    def last(self) -> int:
        return max((row["version"] for row in self.rows), default=0)

    @property
    def horizon(self) -> int:
        return self.record.get("num_updates") or self.last

    @cached_property
    def metrics(self) -> dict[str, Points]:
        """Every number by metric; null and what is not finite are no points."""
        found: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            for name, value in row.items():
                if name != "version" and type(value) in (int, float) and isfinite(value):
                    found.setdefault(name, []).append((row["version"], value))
        return {name: (np.array([v for v, _ in p]), np.array([x for _, x in p], float)) for name, p in found.items()}

    def points(self, metric: str) -> Points | None:
        """As recorded; of a run that stopped, its last value on to its plan, in the rhythm of the metric."""
        recorded = self.metrics.get(metric)
        if recorded is None or not self.counts or self.last >= self.horizon:
            return recorded
        versions, values = recorded
        gap = int(np.median(np.diff(versions))) if len(versions) > 1 else self.horizon
        later = [*range(int(versions[-1]) + gap, self.horizon, gap), self.horizon]
        return np.append(versions, later), np.append(values, [values[-1]] * len(later))

    def figure(self, metric: str, at: str) -> float | None:
        points = self.points(metric)
        return None if points is None else figure(points, at, self.horizon)

    @cached_property
    def onset(self) -> int | None:
        """docs/collapse.md: the smoothed evaluation ends more than so many standard errors below its own peak."""
        if self.state == "diverged":
            return self.last
        margin = self.config.get("metrics.collapse_margin")
        both = [row for row in self.rows if row.get("eval/avg") is not None and row.get("eval/se") is not None]
        if margin is None or not both:
            return self.last if self.state == "collapsed" else None
        scores = np.array([row["eval/avg"] for row in both])
        smooth = np.array([scores[max(i - 2, 0) : i + 1].mean() for i in range(len(scores))])
        error = np.sqrt(np.mean([row["eval/se"] ** 2 for row in both]))
        fallen = [i > smooth.argmax() and x < smooth.max() - margin * error for i, x in enumerate(smooth)]
        if len(both) < 3 or not fallen[-1]:
            return None
        since = len(fallen)
        while fallen[since - 1]:
            since -= 1
        return both[since]["version"]

    @cached_property
    def tokens(self) -> Points | None:
        """Response tokens sampled for the updates up to each version."""
        if "tokens/response" not in self.metrics:
            return None
        versions, sampled = self.metrics["tokens/response"]
        ends = [*versions[1:], max(self.last, int(versions[-1]) + 1)]
        return np.array([versions[0], *ends]), np.array([0, *np.cumsum(sampled)], float)

    def total(self, metric: str) -> float:
        """The sum over all rows; 0 where it is in none."""
        return float(self.metrics[metric][1].sum()) if metric in self.metrics else 0.0


def figure(points: Points, at: str, horizon: int) -> float | None:
    """docs/sweeps.md: end, peak, area or update K of a curve."""
    versions, values = points
    if at == "peak":
        return float(values.max())
    if at == "area":
        span = versions[-1] - versions[0]
        heights = (values[1:] + values[:-1]) / 2
        return float((heights * np.diff(versions)).sum() / span) if span else float(values[0])
    if at == "end" and (late := values[10 * versions >= 9 * horizon]).size:
        return float(late.mean())
    until = horizon if at == "end" else int(at.removeprefix("update "))
    before = values[versions <= until]
    return float(before[-1]) if before.size and until <= horizon else None


def dotted(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return found


class Truth:
    """A sweep's plan and its runs. arms: those with runs of their own, in order; others: name -> the original or the
    reason."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.plan = folder, json.loads((folder / "sweep.json").read_text("utf-8"))
        self.arms: dict[str, list[Run]] = {}
        self.same: dict[str, str] = {}
        self.excluded: dict[str, str] = {}
        for name in self.plan["arms"]:
            cells = [cell for cell in self.plan["cells"] if cell["arm"] == name]
            same = next((cell["same_as"] for cell in cells if cell.get("same_as")), None)
            why = next((cell["excluded"] for cell in cells if cell.get("excluded")), None)
            present = [cell for cell in cells if not cell.get("excluded")]
            if same:
                self.same[name] = same
            elif why and not present:
                self.excluded[name] = why
            else:
                self.arms[name] = [Run(name, c["seed"], folder / Path(c["folder"]).name) for c in present]

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.arms.values() for run in runs]

    @property
    def horizon(self) -> int:
        return max(run.horizon for run in self.runs)

    def results(self, arm: str) -> list[Run]:
        """Also of an arm whose runs are another's."""
        return [run for run in self.arms.get(self.same.get(arm, arm), []) if run.counts]

    def config(self, arm: str) -> dict[str, Any]:
        return next((run.config for run in self.arms[self.same.get(arm, arm)] if run.config), {})

    def by_seed(self, arm: str, metric: str, at: str) -> dict[int, float]:
        found = {run.seed: run.figure(metric, at) for run in self.results(arm)}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}

    def collapsed(self, arm: str) -> dict[int, float]:
        return {run.seed: float(run.onset is not None) for run in self.results(arm)}


def endings(runs: list[Run]) -> str:
    """4 finished, 1 missing."""
    return ", ".join(f"{number} {state}" for state, number in Counter(run.state for run in runs).items())


def letter(index: int) -> str:
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")
