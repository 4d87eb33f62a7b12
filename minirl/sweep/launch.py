"""Runs jobs side by side, one process each: a crash of one leaves the others alone and becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from minirl.record import State
from minirl.sweep.job import Answer, work
from minirl.sweep.outcome import conclude
from minirl.sweep.processes import Child, Nursery, stop

TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """One run to be: Hydra's configuration of it, and the folder that is its own."""

    index: int
    config: DictConfig

    @property
    def folder(self) -> Path:
        return Path(str(self.config.hydra.sweep.dir)) / str(self.config.hydra.sweep.subdir)

    @property
    def identification(self) -> dict[str, Any]:
        """What the record says of a run that could not write it."""
        return {
            "seed": self.config.seed,
            "arm": self.config.run.name,
            "sweep": self.config.run.group,
            "num_updates": self.config.num_updates,
            "overrides": OmegaConf.to_container(self.config.hydra.overrides.task),
        }


class Watcher(Protocol):
    """Is told what happens."""

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job, state: str) -> None: ...

    def tick(self) -> None: ...


@dataclass
class Running:
    job: Job
    slot: int
    child: Child


class Launch:
    """The jobs of one sweep on `slots` slots. environments: what the processes of each slot have in theirs."""

    def __init__(
        self,
        *,
        task: str,
        context: HydraContext,
        nursery: Nursery,
        environments: Sequence[dict[str, str]],
        watcher: Watcher,
    ) -> None:
        self.task, self.context, self.nursery, self.watcher = task, context, nursery, watcher
        self.environments = environments
        self.running: list[Running] = []
        self.states: dict[int, str] = {}

    def run(self, indices: Sequence[int], job: Callable[[int], Job], goes_on: Callable[[str], bool]) -> dict[int, str]:
        """index -> state of every job that was started. goes_on(state): whether to start more after such an ending.

        Ctrl-C stops what runs, has it recorded, and is passed on.
        """
        waiting = list(indices)
        try:
            while waiting or self.running:
                while waiting and len(self.running) < len(self.environments):
                    self._start(job(waiting.pop(0)))
                connection.wait([each.child.process.sentinel for each in self.running], TICK_SECONDS)
                ended = [each for each in self.running if not each.child.process.is_alive()]
                for each in ended:
                    self._conclude(each, each.child.answer())
                if not all(goes_on(self.states[each.job.index]) for each in ended):
                    waiting.clear()
                    self._stop()
                self.watcher.tick()
        except KeyboardInterrupt:
            self._stop()
            raise
        return self.states

    def _start(self, job: Job) -> None:
        slot = min(set(range(len(self.environments))) - {each.slot for each in self.running})
        job.folder.mkdir(parents=True, exist_ok=True)
        child = self.nursery.start(work, self.task, job.config, self.context, job.folder, self.environments[slot])
        self.running.append(Running(job, slot, child))
        self.watcher.started(job)

    def _conclude(self, each: Running, answer: Answer | None) -> None:
        child = each.child
        state = conclude(each.job.folder, each.job.identification, child.pid, child.exit_code, answer)
        self.states[each.job.index] = state
        self.running.remove(each)
        self.watcher.ended(each.job, state)

    def _stop(self) -> None:
        stop([each.child for each in self.running])
        for each in list(self.running):
            self._conclude(each, each.child.answer() or Answer(State.interrupted))
