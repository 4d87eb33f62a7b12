"""A Hydra multirun over our conf/ from within a program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.types import TaskFunction

from minirl.compose import CONFIG_NAME, explained, hydra_session, search_path


def multirun(task: TaskFunction, overrides: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """As `python -m minirl.run -m OVERRIDES` with this task. Ends by SystemExit where a run failed."""
    with hydra_session() as hydra, explained(config_dirs):
        hydra.multirun(CONFIG_NAME, task, [*search_path(config_dirs), *overrides])
