"""Watches the rows of a run as they are made: warns of what leaves its usual range, marks the last good checkpoint, and
stops a run whose collapse is confirmed where `run.on_collapse=stop`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from minirl.config import Config, OnCollapse
from minirl.interfaces import Tracker
from minirl.metrics.alarms import BANDS, WATCHED, alarm, early_steps
from minirl.metrics.collapse import Collapse, collapse, evaluations, last_good
from minirl.policy.checkpoint import mark_good, prune
from minirl.record import RunRecord
from minirl.types import Collapsed
from minirl.world import World

Figures = dict[str, float]


class Lookout:
    """A tracker around another one, which keeps what warnings and verdicts look at. Every rank is given the same
    figures, so all of them judge alike; one of them has the run's `record`, speaks and marks checkpoints.

    early: rollout batches that tell what is usual · stops: which collapse ends the run at once · rows: of an earlier
    part of the run.
    """

    def __init__(
        self,
        inner: Tracker,
        *,
        margin: float,
        early: int,
        stops: Callable[[Collapse], bool],
        rows: Sequence[Mapping[str, float | None]],
        record: RunRecord | None,
        num_checkpoints: int,
    ) -> None:
        self.inner, self.margin, self.early, self.stops = inner, margin, early, stops
        self.rows = [_watched(row) for row in rows]
        self.record, self.num_checkpoints = record, num_checkpoints
        self.warned: set[str] = set()
        self.good: int | None = None

    def judge(self) -> None:
        """After each step: warns, once for each metric, and never stops on a warning. Raises Collapsed."""
        self._warn()
        self._mark()
        found = self.collapse
        if found is not None and self.stops(found):
            self._end(found)

    def conclude(self) -> None:
        """After the last evaluation: only checkpoints that are meant to be kept stay. Raises Collapsed."""
        self._mark()
        found = self.collapse
        if self.record is not None:
            prune(self._checkpoints(self.record), self.num_checkpoints)
            self.record.update(collapse=None)
        if found is not None:
            self._end(found)

    @property
    def collapse(self) -> Collapse | None:
        """What the rows so far say."""
        return collapse(self.rows, margin=self.margin, early=self.early)

    def _end(self, found: Collapse) -> None:
        if self.record is not None:
            self.record.update(collapse=asdict(found))
        raise Collapsed(found.onset, str(found))

    def _warn(self) -> None:
        for metric in [metric for metric in BANDS if metric not in self.warned]:
            raised = alarm(self.rows, metric, self.early)
            if raised is None:
                continue
            self.warned.add(metric)
            if self.record is not None:
                print(f"warning: {raised} (docs/collapse.md)", flush=True)

    def _mark(self) -> None:
        """Before the first evaluation nothing is known to be good."""
        versions, scores, errors = evaluations(self.rows)
        if self.record is None or not versions:
            return
        good = last_good(versions, scores, errors, before=versions[-1] + 1)
        if good != self.good:
            self.good = good
            mark_good(self._checkpoints(self.record), good)

    def _checkpoints(self, record: RunRecord) -> Path:
        return record.folder / "checkpoints"

    def log(self, version: int, values: Mapping[str, float]) -> None:
        self._keep(version, values)
        self.inner.log(version, values)

    def write(self, version: int, values: Mapping[str, float]) -> None:
        self._keep(version, values)
        self.inner.write(version, values)

    def samples(self, version: int, rows: Sequence[Mapping[str, object]]) -> None:
        self.inner.samples(version, rows)

    def histograms(self, version: int, counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> None:
        self.inner.histograms(version, counts)

    def truncate(self, version: int) -> None:
        self.rows = [row for row in self.rows if row["version"] < version]
        self.warned = {metric for metric in BANDS if alarm(self.rows, metric, self.early) is not None}
        self.inner.truncate(version)

    def close(self, ending: str) -> None:
        self.inner.close(ending)

    def _keep(self, version: int, values: Mapping[str, float]) -> None:
        if not self.rows or self.rows[-1]["version"] != version:
            self.rows.append({"version": version})
        self.rows[-1] |= _watched(values)


def lookout(config: Config, folder: Path, inner: Tracker, world: World) -> Lookout:
    """The one that `metrics.collapse_margin` and `run.on_collapse` describe, with the rows that `folder` has."""
    stops = {OnCollapse("stop"): lambda found: found.confirmed, OnCollapse("continue"): lambda found: False}
    rows = recorded_rows(folder / "metrics.jsonl") if world.rank == 0 else []
    return Lookout(
        inner,
        margin=config.metrics.collapse_margin,
        early=early_steps(config.num_updates // config.num_mini_batches),
        stops=stops[config.run.on_collapse],
        rows=world.gather(rows)[0],
        record=RunRecord(folder) if world.rank == 0 else None,
        num_checkpoints=config.train.num_checkpoints,
    )


def recorded_rows(metrics: Path) -> list[Figures]:
    """The rows of metrics.jsonl; none where there is no file. A torn last line is of a row that is made again."""
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n")[:-1]]


def _watched(row: Mapping[str, float | None]) -> Figures:
    """What is not finite is no figure: metrics.jsonl has null there."""
    figures = {name: row.get(name) for name in ("version", *WATCHED)}
    return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
