"""How the runs of a sweep stand, read from disk: works from any shell, while they run and after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from minirl.config import ConfigError
from minirl.record import RunRecord, State
from minirl.suggest import did_you_mean
from minirl.sweep.outcome import Life, life
from minirl.sweep.plan import PLAN
from minirl.watch import note

QUEUE = "queue.json"  # in the run's folder: the job that it has with a scheduler
TAIL_BYTES = 1 << 16  # of metrics.jsonl: some fifty rows, enough to know the pace


class Standing(StrEnum):
    """What a cell may be besides a `record.State`."""

    pending = "pending"
    queued = "queued"  # with a scheduler
    lost = "lost"  # it was running, and its process is gone
    unknown = "unknown"  # it is running on another host, as its record says, and has been silent for long
    same = "same"
    excluded = "excluded"


@dataclass(frozen=True)
class Status:
    """One cell. updates: done so far. pace: seconds per update, of late. throughput: response tokens per second, of
    late. reward, score: the last ones recorded. remark: the reason of its ending, or which arm it is the same as.
    codes: the versions of the code that worked on it."""

    arm: str
    seed: int
    state: str
    updates: int
    num_updates: int | None
    pace: float | None
    throughput: float | None
    reward: float | None
    score: float | None
    cpu_seconds: float
    remark: str | None
    folder: str | None
    codes: tuple[str, ...] = ()

    @property
    def seconds_left(self) -> float | None:
        """Of a run that goes on at its pace."""
        if self.pace is None or self.num_updates is None:
            return None
        return self.pace * max(self.num_updates - self.updates, 0)


def read(folder: Path) -> list[Status]:
    """The cells of the sweep at `folder`, in the order of its plan."""
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    return [cell_status(folder, cell) for cell in plan["cells"]]


def read_single(runs: Path) -> list[Status]:
    """The runs of `minirl run`, in the order in which they began."""
    records = {path.parent: json.loads(path.read_text(encoding="utf-8")) for path in runs.glob("*/run.json")}
    begun = sorted(records.items(), key=lambda entry: entry[1].get("started", 0.0))
    return [run_status(folder, record.get("arm") or folder.name, record.get("seed", 0)) for folder, record in begun]


def cell_status(sweep: Path, cell: Mapping[str, Any]) -> Status:
    """What sweep.json and the run's own folder say of a cell."""
    if cell["excluded"] is not None:
        return _idle(cell, Standing.excluded, cell["excluded"])
    if cell["same_as"] is not None:
        return _idle(cell, Standing.same, f"same as {cell['same_as']}")
    return run_status(sweep / Path(cell["folder"]).name, cell["arm"], cell["seed"])


def _idle(cell: Mapping[str, Any], state: Standing, remark: str) -> Status:
    return Status(cell["arm"], cell["seed"], state, 0, None, None, None, None, None, 0.0, remark, None)


def pending(arm: str, seed: int, why: str) -> Status:
    """A run that is not known by more than its name yet."""
    return _idle({"arm": arm, "seed": seed}, Standing.pending, why)


def run_status(folder: Path, arm: str, seed: int) -> Status:
    """A run by its folder."""
    run, rows = RunRecord(folder), last_rows(folder / "metrics.jsonl")
    record = run.read()
    state, remark = standing(run)
    num_updates = record.get("num_updates")
    done = rows[-1]["version"] + 1 if rows else 0
    return Status(
        arm=arm,
        seed=seed,
        state=str(state),
        updates=done if num_updates is None else min(done, num_updates),
        num_updates=num_updates,
        pace=_pace(rows),
        throughput=_throughput(rows),
        reward=_last(rows, "reward/mean"),
        score=_last(rows, "eval/avg"),
        cpu_seconds=run.cpu_seconds(),
        remark=remark,
        folder=str(folder),
        codes=tuple(record.get("codes", ())),
    )


def standing(run: RunRecord) -> tuple[State | Standing, str | None]:
    """How the run stands, and why."""
    record = run.read()
    state: State | Standing = State(record["state"]) if record else Standing.pending
    remark = record.get("reason")
    if state == State.running:
        found = life(run)
        if found is Life.unknown:
            silent = f"no sign of life from {record['host']} for {run.silence() / 60:.0f} minutes"
            return Standing.unknown, f"{silent}: repeat the command to take it up"
        if found is Life.gone:
            state, remark = Standing.lost, f"{died(record)}: repeat the command to go on"
    if state in (Standing.pending, Standing.lost, State.interrupted) and (run.folder / QUEUE).exists():
        queued = json.loads((run.folder / QUEUE).read_text(encoding="utf-8"))
        return Standing.queued, f"{queued['cluster']} job {queued['job']}"
    return state, remark


def died(record: Mapping[str, Any]) -> str:
    """What can be said of a run whose process is gone and has recorded no ending."""
    return f"process {record['pid']} on {record['host']} died without a word: killed from outside, or out of memory"


def set_right(folder: Path, say: Callable[[str], None]) -> None:
    """Before the runs of the sweep at `folder` are judged by their records: writes the ending of each whose process
    has died without one. A line for it, and for each that may have died on another host."""
    for path in sorted(folder.glob("*/run.json")):
        run = RunRecord(path.parent)
        try:
            record = run.read()
        except json.JSONDecodeError:
            continue  # the report says so
        if record.get("state") != State.running or "pid" not in record:
            continue
        state, remark = standing(run)
        if state == Standing.lost:
            note(run, record["pid"], died(record))
        if state in (Standing.lost, Standing.unknown):
            say(f"note: {record.get('arm')} s{record.get('seed')} is {run.read()['state']} by its record: {remark}")


def last_rows(path: Path) -> list[dict[str, Any]]:
    """The last complete rows of metrics.jsonl; a line that is being written is left out."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        begin = max(file.seek(0, 2) - TAIL_BYTES, 0)
        file.seek(begin)
        lines = file.read().split(b"\n")
    return [json.loads(line) for line in lines[1 if begin else 0 : -1]]


def _pace(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Wall seconds per row: what the loop's clock measured, phase by phase."""
    spent = [
        sum(value or 0.0 for name, value in row.items() if name.startswith("time/") and not name.endswith("_cpu"))
        for row in rows
    ]
    return sum(spent) / len(spent) if any(spent) else None


def _throughput(rows: Sequence[Mapping[str, Any]]) -> float | None:
    seconds, tokens = _pace(rows), sum(row.get("tokens/response") or 0.0 for row in rows)
    return tokens / (seconds * len(rows)) if seconds and tokens else None


def _last(rows: Sequence[Mapping[str, Any]], metric: str) -> float | None:
    """The last recorded figure; what was not finite is null there and passed over."""
    return next((row[metric] for row in reversed(rows) if row.get(metric) is not None), None)


def seconds_left(statuses: Iterable[Status], slots: int) -> float | None:
    """Until all are done, on `slots` slots: runs that have not begun take as long as the others. None: unknown."""
    cells = [each for each in statuses if each.state not in (Standing.same, Standing.excluded)]
    whole = [each.pace * each.num_updates for each in cells if each.pace is not None and each.num_updates]
    running = [each.seconds_left for each in cells if each.state == State.running]
    waiting = sum(each.state == Standing.pending for each in cells)
    known = [left for left in running if left is not None]
    if not whole or (running and not known):
        return None
    usual = sum(whole) / len(whole)
    work = sum(known) + usual * (waiting + len(running) - len(known))
    return max(work / max(slots, 1), max(known, default=0.0))


def sweeps(outputs: Path) -> dict[str, Path]:
    """The sweeps below a folder of outputs, the latest last."""
    plans = sorted((outputs / "sweeps").glob(f"*/{PLAN}"), key=lambda path: path.stat().st_mtime)
    return {path.parent.name: path.parent for path in plans}


def find_sweep(name: str | None, outputs: Path) -> Path:
    """A sweep's folder by its name, by a path, or the latest one. Raises ConfigError with the nearest name."""
    known = sweeps(outputs)
    if name is None:
        if not known:
            raise ConfigError(f"no sweep in {outputs.resolve()}: `minirl sweep NAME` makes one")
        return list(known.values())[-1]
    if name in known:
        return known[name]
    for folder in (Path(name), Path(name).parent):
        if (folder / PLAN).is_file():
            return folder
    raise ConfigError(f"{name}: no sweep of this name in {outputs / 'sweeps'}{did_you_mean(name, known)}")


def find_run(name: str, outputs: Path) -> Path:
    """A run's folder by a path, or by its name IDENTITY-sSEED wherever it lies. Raises ConfigError."""
    if (Path(name) / "run.json").is_file():
        return Path(name)
    known = {path.parent.name: path.parent for path in outputs.glob("*/*/run.json")}
    known |= {path.parent.name: path.parent for path in outputs.glob("sweeps/*/*/run.json")}
    if name not in known:
        raise ConfigError(f"{name}: no run of this name in {outputs}{did_you_mean(name, known)}")
    return known[name]


def find_checkpoint(name: str, outputs: Path) -> Path:
    """A run or one of its checkpoints by a path, or a run by its name. Raises ConfigError."""
    return Path(name) if Path(name).exists() else find_run(name, outputs)


def find_runs(name: str, outputs: Path) -> list[Path]:
    """The folders of a sweep's runs, or of one run. Raises ConfigError."""
    try:
        return [find_run(name, outputs)]
    except ConfigError:
        return sorted(path.parent for path in find_sweep(name, outputs).glob("*/run.json"))
