"""The plan on disk is of all commands of a sweep: one that asks for fewer seeds, or works beside another one, adds its
runs to the record and takes none away."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from minirl.record import RunRecord, State
from minirl.sweep import plan
from minirl.sweep.expand import Design
from minirl.sweep.plan import PLAN, Cell, PlannedArm
from minirl.sweep.status import QUEUE

COMMANDS = ".commands.lock"  # in the sweep's folder: shared by the commands that work on it
WRITING = f".{PLAN}.lock"  # one command at a time looks at the plan and rewrites it

Key = tuple[str, int, str | None]  # arm, seed, identity


@dataclass(frozen=True)
class JointPlan:
    """cells: as written, a seed after the other. lost: begun runs of the plan before that are not of this one."""

    folder: Path
    cells: Sequence[Cell]
    lost: int


@contextmanager
def joined(
    design: Design,
    arms: Sequence[PlannedArm],
    starts: Mapping[str, str],
    own: Sequence[Cell],
) -> Iterator[JointPlan]:
    """Writes the plan of the command's `own` cells and of those that stay; within, other commands keep these too.

    What stays, of the same arms and of other seeds than the command's: every run that was begun towards as many
    updates as are planned now, however it ended; the file's own seeds, where an earlier command has planned them; and,
    while another command works on the sweep, all that is planned.
    """
    folder = plan.sweep_folder(arms[0].config)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / COMMANDS).open("a+") as commands:
        with (folder / WRITING).open("a+") as writing:
            fcntl.flock(writing, fcntl.LOCK_EX)
            beside = _is_held(commands)
            fcntl.flock(commands, fcntl.LOCK_SH)
            found = _written(design, arms, starts, own, folder, beside)
        yield found


def _is_held(commands: IO[str]) -> bool:
    """Whether another command works on the sweep; the kernel drops its lock however it dies."""
    try:
        fcntl.flock(commands, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _written(
    design: Design,
    arms: Sequence[PlannedArm],
    starts: Mapping[str, str],
    own: Sequence[Cell],
    folder: Path,
    beside: bool,
) -> JointPlan:
    before = recorded(folder)
    seeds = {seed for _, seed, _ in before} | plan.seeds_on_disk(folder)
    others = plan.cells(replace(design, seeds=tuple(sorted(seeds - set(design.seeds)))), arms, starts)
    horizons = {each.arm.name: each.config.num_updates for each in arms}

    def stays(cell: Cell) -> bool:
        planned = _key(cell) in before and (beside or cell.seed in design.file_seeds)
        return cell.excluded is None and (planned or is_begun(cell, horizons[cell.arm]))

    cells = sorted([*own, *filter(stays, others)], key=lambda cell: cell.seed)
    plan.write(design, arms, cells)
    gone = {Path(place).name for place in before.values() if place is not None}
    gone -= {Path(cell.folder).name for cell in cells if cell.folder is not None}
    return JointPlan(folder, cells, sum(RunRecord(folder / name).path.exists() for name in gone))


def recorded(folder: Path) -> dict[Key, str | None]:
    """The cells of the plan on disk -> the folders of their runs; none where there is no plan that can be read."""
    try:
        cells = json.loads((folder / PLAN).read_text(encoding="utf-8"))["cells"]
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return {(cell["arm"], cell["seed"], cell["identity"]): cell["folder"] for cell in cells}


def _key(cell: Cell) -> Key:
    return cell.arm, cell.seed, cell.identity


def is_begun(cell: Cell, num_updates: int) -> bool:
    """Whether the run waits with a scheduler, was begun towards so many updates, or has a result that more of them
    would not change."""
    folder = Path(str(cell.folder))
    if (folder / QUEUE).exists():
        return True
    record = RunRecord(folder).read()
    state = record.get("state")
    if state is None:
        return False
    return record["num_updates"] >= num_updates or stopped_early(State(state))


def stopped_early(state: State) -> bool:
    """Whether a run that ended so would end so again, however many updates are planned."""
    return state.is_result and state not in (State.finished, State.collapsed)
