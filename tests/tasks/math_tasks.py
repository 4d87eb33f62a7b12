"""Tasks of problems in files, small enough for a test, from a configuration as a person writes it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from tiny_chat import problem, save_rows, tokenizer

from minirl.compose import compose, groups, typed
from minirl.config import Config
from minirl.tasks.mathematics import MathTask, build

composed = cache(lambda *choices: compose(choices))


def configured(*words: str) -> Config:
    """As `load`, with one composition per choice of groups instead of one per case."""
    lines = [word.partition("=")[::2] for word in words]
    cfg: DictConfig = composed(*(f"{key}={value}" for key, value in lines if key in groups())).copy()
    for key, value in lines:
        if key not in groups():
            OmegaConf.update(cfg, key.lstrip("+"), yaml.safe_load(value), force_add=key.startswith("+"))
    return typed(cfg)


def folder_with_tokenizer(place: Path) -> Path:
    """As far as a task looks at a model's folder."""
    if not (place / "config.json").is_file():
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text("{}")
        tokenizer().save_pretrained(place)
    return place


def task_of(place: Path, rows: Sequence[dict[str, Any]], *overrides: str) -> MathTask:
    """task=math over these rows, with a verifier for 20 seconds of CPU and no instruction."""
    path = save_rows(place / "problems.jsonl", rows)
    words = [
        "task=math",
        f"model.path={folder_with_tokenizer(place / 'model')}",
        f"task.train.path={path}",
        "task.chat.instruction=null",
        "task.grading.num_workers=1",
        "task.grading.max_seconds=20",
        *overrides,
    ]
    config = configured(*words)
    return build(config.task, config.coldstart)


MANY = [problem(number) for number in range(40)]


def questions(prompts: Sequence[Any]) -> list[str]:
    return [prompt.problem.question for prompt in prompts]
