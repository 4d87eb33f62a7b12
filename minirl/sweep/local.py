"""The local launcher: Hydra's jobs as processes on this machine, with slots, a display and an end for each."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from minirl.config import RunConfig
from minirl.record import Busy, State
from minirl.sweep.devices import environments, gpus, num_slots
from minirl.sweep.display import Display
from minirl.sweep.job import preload_for, reference
from minirl.sweep.launch import Job, Launch
from minirl.sweep.outcome import BUSY
from minirl.sweep.processes import Nursery


class JobFailed(Exception):
    """What Hydra raises for a job whose process failed."""


def launch(
    *,
    config: DictConfig,
    context: HydraContext,
    task_function: TaskFunction,
    jobs: int | None,
    fail_fast: bool,
    job_overrides: Sequence[Sequence[str]],
    initial_job_idx: int,
) -> list[JobReturn]:
    """A `JobReturn` for every job, in order; UNKNOWN for those that fail_fast kept from starting."""

    def job(index: int) -> Job:
        sweep_config = context.config_loader.load_sweep_config(config, list(job_overrides[index]))
        with open_dict(sweep_config):
            sweep_config.hydra.job.id = sweep_config.hydra.job.num = initial_job_idx + index
        return Job(index, sweep_config)

    first = job(0)
    run = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), first.config.run))
    assert isinstance(run, RunConfig)
    slots = min(num_slots(run, jobs), len(job_overrides))
    places = environments(run, slots)
    os.environ |= {name: value for name, value in places[0].items() if name not in os.environ}
    name = reference(task_function)
    display = Display(first.folder.parent, slots, Console())
    launching = Launch(
        task=name,
        context=context,
        nursery=Nursery(cuda=bool(gpus(run)), preload=preload_for(name)),
        environments=places,
        watcher=display,
    )
    try:
        states = launching.run(
            range(len(job_overrides)), job, lambda state: not fail_fast or state not in (State.failed,)
        )
    finally:
        display.close()
    return [_returned(list(each), states.get(index)) for index, each in enumerate(job_overrides)]


def _returned(overrides: list[str], state: str | None) -> JobReturn:
    if state is None:
        return JobReturn(overrides=overrides, status=JobStatus.UNKNOWN)
    answer = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
    answer.return_value = state
    if state in (State.failed, State.interrupted, BUSY):
        answer.status = JobStatus.FAILED
        answer.return_value = Busy(state) if state == BUSY else JobFailed(f"{' '.join(overrides)}: {state}")
    return answer
