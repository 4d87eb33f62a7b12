"""Hydra's doors to our launchers. Whichever is chosen, a run has the same folder, record and log.

Hydra executes this file at every start, before it is a module: imports are light, and there is no dataclass here.
What each is set to is in conf/hydra/launcher/.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from minirl.sweep.jobs import Jobs
    from minirl.sweep.launch import Site


class SiteLauncher(Launcher):
    """fail_fast: the first failure stops the others."""

    config: DictConfig
    context: HydraContext
    task_function: TaskFunction

    def __init__(self, *, jobs: int | None, fail_fast: bool, **settings: Any) -> None:
        self.jobs, self.fail_fast, self.settings = jobs, fail_fast, settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.context, self.task_function = config, hydra_context, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from minirl.sweep.jobs import Jobs

        jobs = Jobs(self.config, self.context, self.task_function, job_overrides, initial_job_idx)
        return jobs.launch(self.site(jobs), fail_fast=self.fail_fast)

    @abstractmethod
    def site(self, jobs: "Jobs") -> "Site":
        """Where the jobs run."""


class LocalLauncher(SiteLauncher):
    """A process of its own for each run on this machine, so that a crash or a kill of one leaves the others alone."""

    def site(self, jobs: "Jobs") -> "Site":
        from minirl.sweep.sites import local

        return local(jobs, self.jobs, **self.settings)


class SubmititLauncher(SiteLauncher):
    """A scheduler's job for each run."""

    def site(self, jobs: "Jobs") -> "Site":
        from minirl.sweep.sites import scheduled

        return scheduled(jobs, self.jobs, **self.settings)


class RayLauncher(SiteLauncher):
    """A task of a Ray cluster for each run."""

    def site(self, jobs: "Jobs") -> "Site":
        from minirl.sweep.sites import cluster

        return cluster(jobs, self.jobs, **self.settings)
