"""The site that each launcher stands for, made from its settings in conf/hydra/launcher/."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from omegaconf import OmegaConf

from minirl.config import ConfigError
from minirl.sweep.devices import environments, gpus, num_slots, threads
from minirl.sweep.job import preload_for
from minirl.sweep.jobs import Jobs
from minirl.sweep.launch import Site
from minirl.sweep.local import LocalSite
from minirl.sweep.processes import Nursery
from minirl.validate import own_gpus


def local(jobs: Jobs, at_once: int | None, *, processes: int) -> Site:
    run, engine_gpus = jobs.run_config(), own_gpus(jobs.engine_config())
    slots = min(num_slots(run, at_once, processes=processes, engine_gpus=engine_gpus), len(jobs))
    places = environments(run, slots, processes + engine_gpus)
    os.environ |= {name: value for name, value in places[0].items() if name not in os.environ}
    return LocalSite(
        task=jobs.task,
        context=jobs.context,
        nursery=Nursery(cuda=bool(gpus(run)), preload=preload_for(jobs.task)),
        environments=places,
        processes=processes,
    )


def scheduled(
    jobs: Jobs,
    at_once: int | None,
    *,
    cluster: str,
    processes: int,
    max_num_timeout: int,
    parameters: Mapping[str, Any],
) -> Site:
    _require("submitit", "slurm")
    from minirl.sweep.scheduled import ScheduledSite

    chosen = OmegaConf.to_container(OmegaConf.create(dict(parameters)), resolve=True)
    assert isinstance(chosen, dict)
    return ScheduledSite(
        task=jobs.task,
        cluster=cluster,
        slots=at_once or len(jobs),
        processes=processes,
        environment=threads(jobs.run_config()),
        max_num_timeout=max_num_timeout,
        parameters={str(name): value for name, value in chosen.items() if value is not None},
    )


def cluster(
    jobs: Jobs, at_once: int | None, *, address: str | None, processes: int, num_cpus: float, num_gpus: float
) -> Site:
    _require("ray", "ray")
    from minirl.sweep.cluster import RaySite

    return RaySite(
        task=jobs.task,
        address=address,
        slots=at_once or len(jobs),
        processes=processes,
        environment=threads(jobs.run_config()),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"this launcher needs {package}, which is not installed: pip install 'minirl[{extra}]'")
