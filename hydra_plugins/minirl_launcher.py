"""Hydra's door to our local launcher: one process per run, so that a crash or a kill of one leaves the others alone.

Hydra executes this file at every start, before it is a module: imports are light, and there is no dataclass here.
"""

from collections.abc import Sequence

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

ConfigStore.instance().store(
    group="hydra/launcher",
    name="minirl",
    node={"_target_": "hydra_plugins.minirl_launcher.MinirlLauncher", "jobs": None, "fail_fast": False},
    provider="minirl",
)


class MinirlLauncher(Launcher):
    """jobs: runs side by side, null for one per GPU or core. fail_fast: the first failure stops the others."""

    config: DictConfig
    context: HydraContext
    task_function: TaskFunction

    def __init__(self, jobs: int | None, fail_fast: bool) -> None:
        self.jobs, self.fail_fast = jobs, fail_fast

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.context, self.task_function = config, hydra_context, task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from minirl.sweep.local import launch

        return launch(
            config=self.config,
            context=self.context,
            task_function=self.task_function,
            jobs=self.jobs,
            fail_fast=self.fail_fast,
            job_overrides=job_overrides,
            initial_job_idx=initial_job_idx,
        )
