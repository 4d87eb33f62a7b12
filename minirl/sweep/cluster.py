"""A Ray cluster as the site: one task for each run. Without an address Ray starts on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from minirl.config import ConfigError
from minirl.sweep import cell
from minirl.sweep.batch import Batch, Place
from minirl.sweep.launch import Job, Started
from minirl.sweep.outcome import Ending, manner_of_death
from minirl.sweep.processes import GRACE_SECONDS


def turn(batch: Batch, name: str) -> int:
    """What a worker of Ray calls: the run in processes of its own. Cancelling it lets them save."""
    try:
        return batch.run(name, Place())
    except KeyboardInterrupt:
        batch.leave()
        raise


@dataclass(frozen=True)
class Task:
    """ray: the module, which is imported where this launcher is chosen. reference: an ObjectRef."""

    ray: ModuleType
    name: str
    folder: Path
    reference: Any

    def has_ended(self) -> bool:
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def ending(self) -> Ending:
        try:
            manner = manner_of_death(self.ray.get(self.reference))
        except self.ray.exceptions.RayError as error:
            manner = f"Ray lost it: {str(error).splitlines()[0]}"
        return Ending(cell.answer(self.folder, self.name), manner)


class RaySite:
    """address: of a running cluster, None to start Ray here. slots: tasks at a time; Ray itself keeps as many waiting
    as its CPUs and GPUs do not hold. processes: ranks of a run, all on one node."""

    def __init__(
        self,
        *,
        task: str,
        address: str | None,
        slots: int,
        processes: int,
        environment: Mapping[str, str],
        num_cpus: float,
        num_gpus: float,
    ) -> None:
        self.ray = import_module("ray")
        self.task, self.slots, self.processes, self.environment = task, slots, processes, environment
        try:
            self.ray.init(address=address, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
        except ConnectionError as error:
            raise ConfigError(f"hydra.launcher.address={address}: {error}") from error
        self.turn = self.ray.remote(num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0)(turn)

    def start(self, job: Job) -> Task:
        folder, name = job.folder.resolve(), f"ray {os.getpid()}-{time.time_ns()}"
        cell.write(folder, self.task, job.config)
        batch = Batch(folder, self.processes, self.environment)
        return Task(self.ray, name, folder, self.turn.remote(batch, name))

    def wait(self, started: Sequence[Started], seconds: float) -> None:
        self.ray.wait([each.reference for each in started if isinstance(each, Task)], timeout=seconds)

    def stop(self, started: Sequence[Started]) -> None:
        references = [each.reference for each in started if isinstance(each, Task)]
        for reference in references:
            self.ray.cancel(reference, force=False)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=GRACE_SECONDS)

    def parting(self, started: Sequence[Started]) -> str:
        return "stopping: every run finishes its step and saves it"

    def part(self, started: Sequence[Started]) -> bool:
        self.stop(started)
        return True
