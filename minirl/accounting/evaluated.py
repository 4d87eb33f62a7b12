"""How many problems an evaluation has, without the task."""

from __future__ import annotations

from minirl.config import Config, ProblemsConfig
from minirl.tables import HUB, rows

HELD_OUT_SHARE = 0.1  # of the training problems of a task that names no evaluation set (minirl.tasks.mathematics)


def num_evaluated(config: Config) -> int | None:
    """Over all sets of one evaluation, at most eval.num_problems of each: the rows of their files. None where that
    is null and the files lie on the hub, from which nothing is fetched to count it."""
    asked, task = config.eval.num_problems, config.task
    if asked is not None:
        return asked * max(len(task.eval_sets), 1)
    if not task.eval_sets:
        whole = _num_rows(task.train, "task.train") if task.train is not None else None
        return None if whole is None else round(HELD_OUT_SHARE * whole)
    numbers = [_num_rows(part, f"task.eval_sets.{name}") for name, part in task.eval_sets.items()]
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _num_rows(source: ProblemsConfig, key: str) -> int | None:
    if source.path.startswith(HUB):
        return None
    return sum(1 for _ in rows(source.path, f"{key}.path", columns=[source.question], where=source.where))
