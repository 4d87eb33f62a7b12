"""Tasks of problems in files, small enough for a test, from a configuration as a person writes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_chat import problem, save_rows, tokenizer

from minirl.compose import load
from minirl.tasks.mathematics import MathTask, build


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
    config = load(words)
    return build(config.task, config.coldstart)


MANY = [problem(number) for number in range(40)]


def questions(prompts: Sequence[Any]) -> list[str]:
    return [prompt.problem.question for prompt in prompts]
