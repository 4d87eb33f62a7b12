"""Hydra's door to `minirl.sweep`: arms x grid x seeds, excluded cells, one run per identity, resume by repetition.

Hydra executes this file at every start, before it is a module: imports are light, and there is no dataclass here.
"""

from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="minirl",
    node={"_target_": "hydra_plugins.minirl_sweeper.MinirlSweeper", "file": None, "dry_run": False},
    provider="minirl",
)


class MinirlSweeper(Sweeper):
    """file: of the sweep, or null for a plain multirun of the overrides. dry_run: say what would be run."""

    config: DictConfig
    context: HydraContext
    launcher: Launcher

    def __init__(self, file: str | None, dry_run: bool) -> None:
        self.file, self.dry_run = file, dry_run

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra.core.plugins import Plugins

        self.config, self.context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Ends the process with the sweep's exit code, because Hydra's own door looks at no return value."""
        from rich.console import Console

        from minirl.sweep.command import SweepCommand

        path = Path(self.file) if self.file is not None else None
        command = SweepCommand(self.config, self.context.config_loader, self.launcher, path, Console())
        code = command.preview(arguments) if self.dry_run else command.run(arguments)
        if code:
            raise SystemExit(code)
