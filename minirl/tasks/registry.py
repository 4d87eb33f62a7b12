"""Tasks by name: from the configuration to something that has prompts, a grader and demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from minirl.config import ColdstartConfig, ConfigError, TaskConfig
from minirl.interfaces import Task
from minirl.suggest import did_you_mean
from minirl.tasks import addition, chain, mathematics, reasoning_gym
from minirl.tasks.procedural import ProceduralTask, Source

Value = TypeVar("Value")


def build(cfg: TaskConfig, coldstart: ColdstartConfig) -> Task:
    """The task of `task.name`, its demonstrations in `coldstart.style`."""
    return chosen(TASKS, "task.name", cfg.name)(cfg, coldstart)


def chosen(table: Mapping[str, Value], key: str, name: str) -> Value:
    """table[name], or an error that names the nearest entries."""
    if name not in table:
        raise ConfigError(f"{key}={name} is unknown{did_you_mean(name, table)}")
    return table[name]


def needed(key: str, value: Value | None) -> Value:
    """The value of a key that the chosen task cannot do without."""
    if value is None:
        raise ConfigError(f"{key} is null: this task needs it")
    return value


def _addition(cfg: TaskConfig, coldstart: ColdstartConfig) -> Source:
    digits = needed("task.digits", cfg.digits)
    if not 1 <= digits <= 18:
        raise ConfigError(f"task.digits={digits}: addition takes 1 to 18 digits")
    work = chosen(addition.STYLES, "coldstart.style", coldstart.style)
    return addition.Addition(digits, work, coldstart.wrong_step_rate)


def _chain(cfg: TaskConfig, coldstart: ColdstartConfig) -> Source:
    digits = needed("task.digits", cfg.digits)
    low, high = needed("task.min_steps", cfg.min_steps), needed("task.max_steps", cfg.max_steps)
    if not 1 <= low <= high <= chain.MAX_STEPS:
        raise ConfigError(
            f"task.min_steps={low} task.max_steps={high}: expected 1 <= min_steps <= max_steps <= {chain.MAX_STEPS}"
        )
    if digits < 2:
        raise ConfigError(f"task.digits={digits}: a chain needs at least 2 given values")
    work = chosen(chain.STYLES, "coldstart.style", coldstart.style)
    return chain.Chain(digits, low, high, work, coldstart.wrong_step_rate)


def _reasoning_gym(cfg: TaskConfig, coldstart: ColdstartConfig) -> Source:
    chosen({"answer": None}, "coldstart.style", coldstart.style)
    if coldstart.wrong_step_rate:
        raise ConfigError(f"coldstart.wrong_step_rate={coldstart.wrong_step_rate}: gold answers have no steps, use 0")
    return reasoning_gym.source(needed("task.dataset", cfg.dataset), cfg.options)


def _drawn(source: Callable[[TaskConfig, ColdstartConfig], Source]) -> Callable[[TaskConfig, ColdstartConfig], Task]:
    return lambda cfg, coldstart: ProceduralTask(source(cfg, coldstart))


TASKS: dict[str, Callable[[TaskConfig, ColdstartConfig], Task]] = {
    "addition": _drawn(_addition),
    "chain": _drawn(_chain),
    "reasoning_gym": _drawn(_reasoning_gym),
    "math": mathematics.build,
}
