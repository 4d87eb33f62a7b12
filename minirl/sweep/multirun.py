"""A Hydra multirun over our conf/ from within a program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.types import RunMode, TaskFunction

from minirl.compose import CONFIG_NAME, explained, hydra_session, search_path


def multirun(task: TaskFunction, overrides: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """As `python -m minirl.run -m OVERRIDES` with this task. Ends by SystemExit where a run failed.

    Raises ConfigError where the command does not compose; what is raised within the sweep passes as it is.
    """
    with hydra_session() as hydra:
        words = [*search_path(config_dirs), *overrides]
        with explained(config_dirs):
            hydra.compose_config(CONFIG_NAME, words, RunMode.MULTIRUN)
        hydra.multirun(CONFIG_NAME, task, words)
