"""Steps that were measured: how long the phases of recorded runs took, and how long their responses were."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from minirl.accounting.architecture import Architecture, architecture, settings_of
from minirl.accounting.evaluated import num_evaluated
from minirl.accounting.hours import seconds
from minirl.accounting.machine import Machine
from minirl.accounting.work import work
from minirl.compose import read
from minirl.config import Config, ConfigError
from minirl.record import RunRecord

MOST_READ = 20  # recorded runs, the latest ones, in which some like this are looked for
MOST_USED = 5  # of these: one that ran on a loaded machine does not move their median
PHASES = ("rollout", "old", "update", "eval")
WALL, CPU = "", "_cpu"  # what minirl.clock ends the names of its seconds in

Row = dict[str, float | None]


@dataclass(frozen=True)
class Measured:
    """runs: whose figures these are, the latest first · factor: seconds per update by those of the model, in the mean
    of all phases · length: mean response tokens; both the median over the runs."""

    runs: tuple[str, ...]
    factor: float
    length: float


def measured(config: Config, shape: Architecture, machine: Machine) -> Measured | None:
    """The latest recorded runs of a model of these sizes by the same engine on the same kind of machine, if any."""
    found = (_of(folder, config, shape, machine) for folder in _latest(Path(config.run.outputs)))
    alike = list(islice(filter(None, found), MOST_USED))
    if not alike:
        return None
    names, factors, lengths = zip(*alike, strict=True)
    return Measured(names, median(factors), median(lengths))


def _latest(outputs: Path) -> Iterable[Path]:
    files = [*outputs.glob("runs/*/metrics.jsonl"), *outputs.glob("sweeps/*/*/metrics.jsonl")]
    newest = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)
    return (path.parent for path in newest[:MOST_READ])


def _of(folder: Path, config: Config, shape: Architecture, machine: Machine) -> tuple[str, float, float] | None:
    """(name, factor, length) of a run, if it is one of the same sizes on the same kind of machine."""
    recorded = _recorded(folder, (folder / "metrics.jsonl").stat().st_mtime_ns)
    if recorded is None:
        return None
    other, own, rows = recorded
    placed = (other.engine.name, other.run.device, other.run.num_threads, other.machine)
    if placed != (config.engine.name, config.run.device, config.run.num_threads, config.machine):
        return None
    lengths = [length for row in rows if (length := row.get("length/mean")) is not None]
    if _sizes(own) != _sizes(shape) or len(rows) < 2 or not lengths:
        return None
    try:
        evaluated = num_evaluated(other) or 0
    except ConfigError:  # its files are not there any more
        return None
    length = sum(lengths) / len(lengths)
    model = seconds(other, own, work(other, own, expected=length), machine, evaluated)
    return folder.name, _per_update(rows, _clocks(config, machine)) / model.total, length


@cache
def _recorded(folder: Path, changed: int) -> tuple[Config, Architecture, list[Row]] | None:
    """Of a run's folder; one whose rows are the same is not read again."""
    try:
        config = read(folder / "config.yaml")
    except (ConfigError, FileNotFoundError):  # of another version of minirl, or just being written
        return None
    start: dict[str, Any] | None = RunRecord(folder).read().get("coldstart")
    shape = architecture(settings_of(config, Path(start["folder"]) if start else None))
    complete = (folder / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]
    return config, shape, [json.loads(line) for line in complete]


def _clocks(config: Config, machine: Machine) -> Sequence[str]:
    """What the names of the seconds that count end in; the first that was recorded. Of a process that does all its work
    itself, on one thread, they are the CPU's: so long it takes on an idle machine, however loaded the one was."""
    alone = not machine.on_gpu and config.run.num_threads == 1 and config.engine.name == "torch"
    return (CPU, WALL) if alone else (WALL,)


def _per_update(rows: list[Row], clocks: Sequence[str]) -> float:
    """Seconds of the phases, the whole run's by its number of rows."""

    def spent(row: Row, phase: str) -> float:
        return next((value for clock in clocks if (value := row.get(f"time/{phase}{clock}")) is not None), 0.0)

    return sum(spent(row, phase) for row in rows for phase in PHASES) / len(rows)


def _sizes(shape: Architecture) -> tuple[int, ...]:
    """What is known of a model before its vocabulary is."""
    return (shape.attention, shape.mlp, shape.experts)
