"""Hydra's side of a launch: its jobs composed, run at a site, and given back as it wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from minirl.config import EngineConfig, RunConfig
from minirl.record import Busy, State
from minirl.sweep.display import Display
from minirl.sweep.job import reference
from minirl.sweep.launch import Job, Launch, Site
from minirl.sweep.outcome import BUSY

Part = TypeVar("Part", RunConfig, EngineConfig)


class JobFailed(Exception):
    """What Hydra raises for a job whose process failed."""


@dataclass(frozen=True)
class Jobs:
    """What Hydra asks a launcher to run. config, context, task_function: of its `setup`."""

    config: DictConfig
    context: HydraContext
    task_function: TaskFunction
    overrides: Sequence[Sequence[str]]
    first: int

    def __len__(self) -> int:
        return len(self.overrides)

    @property
    def task(self) -> str:
        """The name under which another process finds the task."""
        return reference(self.task_function)

    def job(self, index: int) -> Job:
        config = self.context.config_loader.load_sweep_config(self.config, list(self.overrides[index]))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = self.first + index
        return Job(index, config)

    def run_config(self) -> RunConfig:
        """`run` of the first job: device and threads are those of all."""
        return _typed(self.job(0).config.run, RunConfig)

    def engine_config(self) -> EngineConfig:
        """`engine` of the first job: its placement is that of all."""
        return _typed(self.job(0).config.engine, EngineConfig)

    def launch(self, site: Site, *, fail_fast: bool) -> list[JobReturn]:
        """A `JobReturn` for every job, in order; UNKNOWN for those that fail_fast kept from starting."""
        display = Display(self.job(0).folder.parent, site.slots, Console())
        goes_on: Callable[[str], bool] = (lambda state: state != State.failed) if fail_fast else (lambda state: True)
        try:
            states = Launch(site, display).run(range(len(self)), self.job, goes_on)
        finally:
            display.close()
        return [_returned(list(each), states.get(index)) for index, each in enumerate(self.overrides)]


def _typed(part: DictConfig, schema: type[Part]) -> Part:
    found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), part))
    assert isinstance(found, schema)
    return found


def _returned(overrides: list[str], state: str | None) -> JobReturn:
    if state is None:
        return JobReturn(overrides=overrides, status=JobStatus.UNKNOWN)
    answer = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
    answer.return_value = state
    if state in (State.failed, State.interrupted, BUSY):
        answer.status = JobStatus.FAILED
        answer.return_value = Busy(state) if state == BUSY else JobFailed(f"{' '.join(overrides)}: {state}")
    return answer
