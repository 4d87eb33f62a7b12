"""The local site: a process of its own for each run on this machine, on slots that have GPUs where there are any."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection

from hydra.types import HydraContext

from minirl.record import JOB
from minirl.sweep import cell
from minirl.sweep.batch import Batch, Place
from minirl.sweep.job import LOG, settle, work
from minirl.sweep.launch import Job, Started
from minirl.sweep.outcome import Ending, manner_of_death
from minirl.sweep.processes import Child, Nursery, stop


@dataclass(frozen=True)
class LocalRun:
    name: str
    slot: int
    child: Child

    def has_ended(self) -> bool:
        return not self.child.process.is_alive()

    def ending(self) -> Ending:
        return Ending(self.child.answer(), manner_of_death(self.child.exit_code))


class LocalSite:
    """environments: what the processes of each slot have in theirs. processes: ranks of a run."""

    def __init__(
        self,
        *,
        task: str,
        context: HydraContext,
        nursery: Nursery,
        environments: Sequence[Mapping[str, str]],
        processes: int,
    ) -> None:
        self.task, self.context, self.nursery = task, context, nursery
        self.environments, self.processes = environments, processes
        self.taken: dict[int, LocalRun] = {}

    @property
    def slots(self) -> int:
        return len(self.environments)

    def start(self, job: Job) -> LocalRun:
        slot = next(n for n in range(self.slots) if n not in self.taken or self.taken[n].has_ended())
        name = f"{os.getpid()}-{time.time_ns()}"
        environment = {**self.environments[slot], JOB: name}
        if self.processes == 1:
            child = self.nursery.start(work, self.task, job.config, self.context, job.folder, environment)
        else:
            cell.write(job.folder, self.task, job.config)
            batch = Batch(job.folder, self.processes, environment)
            child = self.nursery.start(hold, batch, name)
        self.taken[slot] = LocalRun(name, slot, child)
        return self.taken[slot]

    def wait(self, started: Sequence[Started], seconds: float) -> None:
        connection.wait([run.child.process.sentinel for run in self.taken.values() if not run.has_ended()], seconds)

    def stop(self, started: Sequence[Started]) -> None:
        names = {each.name for each in started}
        stop([run.child for run in self.taken.values() if run.name in names])

    def parting(self, started: Sequence[Started]) -> str:
        return "stopping: every run finishes its step and saves it (Ctrl-C again: at once)"

    def part(self, started: Sequence[Started]) -> bool:
        self.stop(started)
        return True


def hold(batch: Batch, name: str, answer: connection.Connection) -> None:
    """A child that holds the ranks of one run. The ranks write the record; what they answer is passed on."""
    settle(batch.folder / LOG)
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    batch.run(name, Place(port=port))
    said = cell.answer(batch.folder, name)
    if said is not None:
        answer.send(said)
