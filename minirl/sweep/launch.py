"""Runs jobs side by side at some site: a crash of one leaves the others alone and becomes a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig, OmegaConf

from minirl.record import State
from minirl.sweep.job import Answer
from minirl.sweep.outcome import Ending, conclude

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


class Started(Protocol):
    """A job that a site has taken. name: what the run's record calls it (`record.JOB`)."""

    @property
    def name(self) -> str: ...

    def has_ended(self) -> bool: ...

    def ending(self) -> Ending:
        """How it ended; asked once, after it has."""
        ...


class Site(Protocol):
    """Where jobs run. slots: how many at a time."""

    @property
    def slots(self) -> int: ...

    def start(self, job: Job) -> Started: ...

    def wait(self, started: Sequence[Started], seconds: float) -> None:
        """Until one of them has ended, or so long."""
        ...

    def stop(self, started: Sequence[Started]) -> None:
        """Asks all to stop, and ends those that do not."""
        ...

    def parting(self, started: Sequence[Started]) -> str:
        """What is said when the command ends before its jobs."""
        ...

    def part(self, started: Sequence[Started]) -> bool:
        """The command ends before its jobs: whether they were stopped, and not kept."""
        ...


class Watcher(Protocol):
    """Is told what happens."""

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job, state: str) -> None: ...

    def said(self, line: str) -> None: ...

    def tick(self) -> None: ...


@dataclass
class Running:
    job: Job
    started: Started


class Launch:
    """The jobs of one sweep at a site."""

    def __init__(self, site: Site, watcher: Watcher) -> None:
        self.site, self.watcher = site, watcher
        self.running: list[Running] = []
        self.states: dict[int, str] = {}

    def run(self, indices: Sequence[int], job: Callable[[int], Job], goes_on: Callable[[str], bool]) -> dict[int, str]:
        """index -> state of every job that was started. goes_on(state): whether to start more after such an ending.

        Ctrl-C stops what runs (unless the site keeps it), has it recorded, and is passed on.
        """
        waiting = list(indices)
        try:
            while waiting or self.running:
                while waiting and len(self.running) < self.site.slots:
                    self._start(job(waiting.pop(0)))
                self.site.wait([each.started for each in self.running], TICK_SECONDS)
                ended = [each for each in self.running if each.started.has_ended()]
                for each in ended:
                    self._conclude(each, each.started.ending())
                if not all(goes_on(self.states[each.job.index]) for each in ended):
                    waiting.clear()
                    self._stop()
                self.watcher.tick()
        except KeyboardInterrupt:
            self._part()
            raise
        return self.states

    def _start(self, job: Job) -> None:
        job.folder.mkdir(parents=True, exist_ok=True)
        self.running.append(Running(job, self.site.start(job)))
        self.watcher.started(job)

    def _conclude(self, each: Running, ending: Ending) -> None:
        state = conclude(each.job.folder, each.job.identification, each.started.name, ending)
        self.states[each.job.index] = state
        self.running.remove(each)
        self.watcher.ended(each.job, state)

    def _stop(self) -> None:
        self.site.stop([each.started for each in self.running])
        self._interrupted()

    def _part(self) -> None:
        started = [each.started for each in self.running]
        if started:
            self.watcher.said(self.site.parting(started))
        if self.site.part(started):
            self._interrupted()

    def _interrupted(self) -> None:
        """Those that were stopped, with what they said or, if nothing, that they were."""
        for each in list(self.running):
            ending = each.started.ending()
            self._conclude(each, Ending(ending.answer or Answer(State.interrupted), ending.manner))
