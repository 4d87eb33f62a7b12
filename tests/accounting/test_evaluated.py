"""How many problems an evaluation has, told without the task that has them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from minirl.accounting.estimate import Estimate, estimate
from minirl.accounting.evaluated import num_evaluated
from minirl.accounting.machine import machine
from minirl.compose import load
from minirl.config import Config
from minirl.sweep.accounts import time_line


def written(path: Path, number: int) -> str:
    path.write_text("".join(json.dumps({"q": f"question {n}", "a": n, "part": n % 2}) + "\n" for n in range(number)))
    return str(path)


def told(folder: Path, number: int | None, where: Mapping[str, int] | None = None, **sets: str) -> Config:
    """task=math with a training file of 70 rows, these evaluation sets, and so many problems asked of each."""
    config = load(["task=math", f"eval.num_problems={'null' if number is None else number}"])
    part = replace(config.task.train, path=written(folder / "train.jsonl", 70), question="q", answer="a")
    config.task.train = part
    config.task.eval_sets = {name: replace(part, path=path, where=dict(where or {})) for name, path in sets.items()}
    return config


def size(config: Config) -> Estimate:
    return estimate(config, None, machine(config.machine, config.run, []))


def test_as_many_as_are_asked_of_each_set(tmp_path: Path) -> None:
    assert num_evaluated(load(["eval.num_problems=30"])) == 30
    first, second = written(tmp_path / "a.jsonl", 40), written(tmp_path / "b.jsonl", 40)
    assert num_evaluated(told(tmp_path, 30, a=first, b=second)) == 60


def test_null_is_all_rows_of_the_files(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.jsonl", 40), written(tmp_path / "b.jsonl", 5)
    assert num_evaluated(told(tmp_path, None, a=first, b=second)) == 45
    assert num_evaluated(told(tmp_path, None, {"part": 1}, a=first)) == 20
    assert num_evaluated(told(tmp_path, None)) == 7  # a tenth is held out


def test_they_take_their_time(tmp_path: Path) -> None:
    few, many = (size(told(tmp_path, None, a=written(tmp_path / f"{n}.jsonl", n))) for n in (10, 2000))
    assert many.seconds.eval > 10 * few.seconds.eval > 0


def test_what_lies_on_the_hub_is_not_fetched_to_be_counted(tmp_path: Path) -> None:
    config = told(tmp_path, None, a="hf://datasets/no/such@0/x.jsonl")
    assert size(config).evaluated is None and size(config).seconds.eval == 0.0
    assert "no evaluation counted" in time_line(size(config))
    assert "no evaluation counted" not in time_line(size(told(tmp_path, None)))
