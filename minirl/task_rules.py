"""What a task of problems in files asks of the keys that describe it: paths, columns, graders, traces. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path

from minirl.config import AnswerFormat, ChatConfig, Config, GradingConfig, ProblemsConfig, TracesConfig
from minirl.tables import HUB

SET_NAME = re.compile(r"[a-z][a-z0-9_]*")


def task_problems(config: Config) -> Iterator[str]:
    """One line per broken rule."""
    task, start = config.task, config.coldstart
    if task.name != "math":
        if start.traces is not None:
            yield f"coldstart.traces: task={task.name} writes its own demonstrations; set coldstart.traces=null"
        return
    if task.train is not None:
        yield from _source(task.train, "task.train")
    for name, part in task.eval_sets.items():
        if not SET_NAME.fullmatch(name):
            yield f"task.eval_sets.{name}: a set is named with a-z, 0-9 and _, as it is in eval_{name}/avg"
        yield from _source(part, f"task.eval_sets.{name}")
    if task.chat is not None:
        yield from _chat(config, task.chat)
    if task.grading is not None:
        yield from _grading(task.grading)
    if start.traces is not None and start.checkpoint is None:
        yield from _traces(config, start.traces)
    elif start.traces is not None:
        yield f"coldstart.checkpoint={start.checkpoint} leaves coldstart.traces unread: set one of them to null"
    elif start.checkpoint is None:
        yield (
            "coldstart.checkpoint=null coldstart.traces=null: task=math has no demonstrations of its own; set "
            "model.path (a run starts from it), or coldstart=traces"
        )


def task_notes(config: Config) -> Iterator[str]:
    """Data on the hub that may change under its name."""
    sources = {f"task.eval_sets.{name}.path": part.path for name, part in config.task.eval_sets.items()}
    if config.task.train is not None:
        sources["task.train.path"] = config.task.train.path
    for key, path in sources.items():
        if path.startswith(HUB) and "@" not in path:
            yield f"{key}={path} names no revision: its content may change; OWNER/NAME@COMMIT is fixed"


def _source(source: ProblemsConfig, key: str) -> Iterator[str]:
    yield from _present(f"{key}.path", source.path)


def _present(key: str, path: str) -> Iterator[str]:
    if not path.startswith(HUB) and not glob(path, recursive=True):
        yield f"{key}={path}: no such file; expected a file, a pattern, or {HUB}OWNER/NAME@REVISION/PATTERN"


def _chat(config: Config, chat: ChatConfig) -> Iterator[str]:
    if chat.tokenizer is None:
        yield "task.chat.tokenizer=null: set model.path, or a folder or hub id with a tokenizer"
    if chat.template is not None and not Path(chat.template).is_file():
        yield f"task.chat.template={chat.template}: no such file; null takes the tokenizer's own template"
    if chat.max_prompt_tokens < 1:
        yield f"task.chat.max_prompt_tokens={chat.max_prompt_tokens}: expected at least 1"
    needed = chat.max_prompt_tokens + config.sampling.max_response_tokens
    limits = {
        "train.max_tokens_per_micro_batch": config.train.max_tokens_per_micro_batch,
        "engine.max_sequence_tokens": config.engine.max_sequence_tokens,
    }
    for key, limit in limits.items():
        if limit is not None and limit < needed:
            yield (
                f"{key}={limit} cannot hold task.chat.max_prompt_tokens={chat.max_prompt_tokens} and "
                f"sampling.max_response_tokens={config.sampling.max_response_tokens}: use {needed} or more"
            )


def _grading(grading: GradingConfig) -> Iterator[str]:
    for name in ("num_workers", "max_gradings"):
        if getattr(grading, name) < 1:
            yield f"task.grading.{name}={getattr(grading, name)}: expected at least 1"
    if grading.max_seconds <= 0:
        yield f"task.grading.max_seconds={grading.max_seconds}: expected a positive number"
    if grading.grader is not None and not Path(grading.grader).is_file():
        yield f"task.grading.grader={grading.grader}: no such file; expected one with grade(question, answer, response)"
    if (grading.format is AnswerFormat.json) != (grading.field is not None):
        yield (
            f"task.grading.field={grading.field}: format=json needs the name of a field, format={grading.format} has "
            "none (null)"
            if grading.format is not AnswerFormat.json
            else "task.grading.field=null: task.grading.format=json needs the name of a field"
        )


def _traces(config: Config, traces: TracesConfig) -> Iterator[str]:
    yield from _present("coldstart.traces.path", traces.path)
    chat, pair = traces.messages is not None, (traces.question is not None, traces.response is not None)
    if chat == any(pair) or any(pair) != all(pair):
        yield (
            f"coldstart.traces.messages={traces.messages} question={traces.question} response={traces.response}: "
            "expected the column of a chat, or else a question's and a response's; the rest null"
        )
    limit = config.sampling.max_response_tokens
    if not 1 <= traces.max_response_tokens <= limit:
        yield (
            f"coldstart.traces.max_response_tokens={traces.max_response_tokens}: a model that is shown longer answers "
            f"than it may sample learns to be cut off; expected 1 to sampling.max_response_tokens={limit}"
        )
