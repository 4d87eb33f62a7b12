"""A step that was measured: how long the phases of a recorded run took, and how long its responses were."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from minirl.accounting.architecture import Architecture, architecture, settings_of
from minirl.accounting.hours import Seconds, seconds
from minirl.accounting.machine import Machine
from minirl.accounting.work import work
from minirl.compose import read
from minirl.config import Config, ConfigError
from minirl.record import RunRecord

MOST_READ = 20  # recorded runs, the latest ones, in which one like this is looked for


@dataclass(frozen=True)
class Measured:
    """run: whose figures these are · factor: measured seconds per update by those of the model, in the mean of all
    phases · length: mean response tokens."""

    run: str
    factor: float
    length: float


def measured(config: Config, shape: Architecture, machine: Machine) -> Measured | None:
    """The latest recorded run of a model of these sizes by the same engine on the same kind of machine, if any."""
    for folder in _latest(Path(config.run.outputs)):
        found = _of(folder, config, shape, machine)
        if found is not None:
            return found
    return None


def _latest(outputs: Path) -> Iterable[Path]:
    files = [*outputs.glob("runs/*/metrics.jsonl"), *outputs.glob("sweeps/*/*/metrics.jsonl")]
    newest = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)
    return (path.parent for path in newest[:MOST_READ])


def _of(folder: Path, config: Config, shape: Architecture, machine: Machine) -> Measured | None:
    try:
        other = read(folder / "config.yaml")
    except (ConfigError, FileNotFoundError):  # of another version of minirl, or just being written
        return None
    start = RunRecord(folder).read().get("coldstart")
    settings = settings_of(other, Path(start["folder"]) if start else None)
    placed = (other.engine.name, other.run.device, other.run.num_threads, other.machine)
    if placed != (config.engine.name, config.run.device, config.run.num_threads, config.machine):
        return None
    own = architecture(settings)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    lengths = [row["length/mean"] for row in rows if row.get("length/mean") is not None]
    if _sizes(own) != _sizes(shape) or len(rows) < 2 or not lengths:
        return None
    length = sum(lengths) / len(lengths)
    model = seconds(other, own, work(other, own, expected=length), machine)
    return Measured(folder.name, _per_update(rows).total / model.total, length)


def _sizes(shape: Architecture) -> tuple[int, ...]:
    """What is known of a model before its vocabulary is."""
    return (shape.attention, shape.mlp, shape.experts)


def _per_update(rows: list[dict[str, float | None]]) -> Seconds:
    """Wall seconds, the whole run's by its number of rows. A torn last line has been refused by the reader."""

    def spent(phase: str) -> float:
        return sum(row.get(f"time/{phase}") or 0.0 for row in rows) / len(rows)

    return Seconds(*(spent(phase) for phase in ("rollout", "old", "update", "eval")))
