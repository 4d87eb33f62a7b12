"""`minirl status`: a sweep (also one whose cold start is being made), all single runs, or one of them."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from minirl.config import ConfigError
from minirl.record import State, write_atomically
from minirl.suggest import did_you_mean
from minirl.sweep.display import LOUD, code_line, table
from minirl.sweep.plan import PLAN, PlannedArm, made_start, sweep_folder
from minirl.sweep.status import Standing, Status, pending, read, read_single, run_status, seconds_left

SINGLE = "runs"  # the folder of single runs, and what to call them
STARTING = "starting.json"  # in the sweep's folder: its cells, while they wait for their cold starts
WATCH_SECONDS = 2.0


@dataclass(frozen=True)
class Overview:
    """statuses: of the runs. making: a line for each cold start that is being made in these outputs."""

    title: str
    folder: Path
    statuses: Sequence[Status]
    making: Sequence[str]

    @property
    def goes_on(self) -> bool:
        return any(each.state in (State.running, Standing.pending, Standing.queued) for each in self.statuses)

    def tree(self) -> dict[str, Any]:
        """For programs."""
        runs = [asdict(each) | {"seconds_left": each.seconds_left} for each in self.statuses]
        return {"sweep": self.title, "folder": str(self.folder), "runs": runs, "coldstarts": list(self.making)}


def announce(arms: Sequence[PlannedArm], seeds: Sequence[int]) -> Path:
    """Notes the cells of a sweep that has no identities yet; returns the note, to be removed when it has."""
    path = sweep_folder(arms[0].config) / STARTING
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [[arm.arm.name, seed] for seed in seeds for arm in arms if arm.excluded is None]
    write_atomically(path, json.dumps(cells))
    return path


def must_start(arms: Sequence[PlannedArm]) -> bool:
    """Whether a cold start is missing."""
    return any(arm.excluded is None and made_start(arm.config) is None for arm in arms)


def look(name: str | None, outputs: Path) -> Overview:
    """What is called so; the latest if nothing is named. Raises ConfigError with the nearest name."""
    places = _places(outputs)
    if name is None:
        if not places:
            raise ConfigError(f"no run in {outputs.resolve()}: `minirl run` and `minirl sweep NAME` make some")
        return _overview(places[-1], outputs)
    known = {place.name: place for place in places}
    if name in known:
        return _overview(known[name], outputs)
    if (Path(name) / PLAN).is_file():
        return _overview(Path(name), Path(name).parents[1])
    runs = {path.parent.name: path.parent for path in _records(outputs)}
    if (Path(name) / "run.json").is_file() or name in runs:
        folder = runs.get(name, Path(name))
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        status = run_status(folder, record.get("arm") or folder.name, record.get("seed", 0))
        return Overview(folder.name, folder, [status], [])
    raise ConfigError(f"{name}: no sweep or run of this name in {outputs}{did_you_mean(name, [*known, *runs])}")


def _records(outputs: Path) -> list[Path]:
    return [*outputs.glob(f"{SINGLE}/*/run.json"), *outputs.glob("sweeps/*/*/run.json")]


def _places(outputs: Path) -> list[Path]:
    """The sweeps and, as one more, the single runs; what was touched last is last."""
    touched: dict[Path, float] = {}
    notes = [path for name in (PLAN, STARTING) for path in outputs.glob(f"sweeps/*/{name}")]
    for path, folder in [(note, note.parent) for note in notes] + [(run, run.parents[1]) for run in _records(outputs)]:
        if folder.name == SINGLE or any((folder / name).exists() for name in (PLAN, STARTING)):
            touched[folder] = max(touched.get(folder, 0.0), path.stat().st_mtime)
    return sorted(touched, key=lambda folder: touched[folder])


def _overview(folder: Path, outputs: Path) -> Overview:
    making = starts_in_work(outputs)
    if folder == outputs / SINGLE:
        return Overview(SINGLE, folder, read_single(folder), making)
    statuses = read(folder) if (folder / PLAN).exists() else []
    shown = {(each.arm, each.seed) for each in statuses}
    if (folder / STARTING).exists():
        cells = json.loads((folder / STARTING).read_text(encoding="utf-8"))
        why = "waits for its cold start" if making else "its cold start was not finished: repeat the command"
        statuses += [pending(arm, seed, why) for arm, seed in cells if (arm, seed) not in shown]
    return Overview(folder.name, folder, statuses, making)


def starts_in_work(outputs: Path) -> list[str]:
    """A line for each cold start that a process holds, with the last line of its log."""
    lines = []
    for lock in sorted((outputs / "coldstarts").glob("*.lock")):
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                continue
            except BlockingIOError:
                pass
        log = lock.with_suffix(".log")
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        lines.append(f"cold start {lock.stem} is being made" + (f": {said[-1]}" if said else ""))
    return lines


def show(name: str | None, outputs: Path, console: Console, *, watch: bool) -> bool:
    """Prints it, until all is done if it is watched. Whether nothing has failed."""
    with Live(console=console, auto_refresh=False, transient=watch and console.is_terminal) as live:
        while True:
            found = look(name, outputs)
            shown = _rendered(found)
            live.update(shown, refresh=True)
            if not (watch and found.goes_on):
                break
            time.sleep(WATCH_SECONDS)
    if watch and console.is_terminal:
        console.print(shown)
    return not any(each.state in LOUD for each in found.statuses)


def _rendered(found: Overview) -> Group:
    running = sum(each.state == State.running for each in found.statuses)
    below = [*found.making, *filter(None, [code_line(found.statuses)])]
    left = seconds_left(found.statuses, running)
    return Group(table(found.statuses, found.title, left), *(Text(line) for line in below))
