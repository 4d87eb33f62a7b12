"""What is refused of a task of problems in files before anything is read, one line per rule."""

from pathlib import Path

import pytest

from minirl.compose import load
from minirl.config import ConfigError
from minirl.validate import validate


@pytest.fixture
def words(own_folder: Path) -> list[str]:
    (own_folder / "config.json").write_text("{}")
    for name in ("problems.parquet", "traces.parquet", "set.csv"):
        (own_folder / name).touch()
    return ["task=math", f"model.path={own_folder}", "eval.num_problems=null"]


SET = "question: q, answer: a, gold: whole"
TRACES = ["coldstart=traces"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["task.train.path=nowhere.parquet"], "task.train.path=nowhere.parquet: no such file"),
        ([f"+task.eval_sets={{x: {{path: nowhere.csv, {SET}}}}}"], "task.eval_sets.x.path=nowhere.csv: no such file"),
        ([f"+task.eval_sets={{X-1: {{path: set.csv, {SET}}}}}"], "task.eval_sets.X-1: a set is named with a-z"),
        (["task.chat.tokenizer=null"], "task.chat.tokenizer=null: set model.path"),
        (["task.chat.template=none.jinja"], "task.chat.template=none.jinja: no such file"),
        (["task.chat.max_prompt_tokens=0"], "task.chat.max_prompt_tokens=0: expected at least 1"),
        (
            ["task.chat.max_prompt_tokens=6000"],
            "train.max_tokens_per_micro_batch=8192 cannot hold task.chat.max_prompt_tokens=6000 and "
            "sampling.max_response_tokens=4096: use 10096 or more",
        ),
        (["engine=vllm", "engine.max_sequence_tokens=4500"], "engine.max_sequence_tokens=4500 cannot hold"),
        (["task.grading.num_workers=0"], "task.grading.num_workers=0: expected at least 1"),
        (["task.grading.max_gradings=0"], "task.grading.max_gradings=0: expected at least 1"),
        (["task.grading.max_seconds=0"], "task.grading.max_seconds=0.0: expected a positive number"),
        (["task.grading.grader=none.py"], "task.grading.grader=none.py: no such file"),
        (["task.grading.format=json"], "task.grading.format=json needs the name of a field"),
        (["task.grading.field=answer"], "format=boxed has none (null)"),
        (["coldstart.checkpoint=null"], "task=math has no demonstrations of its own"),
        ([*TRACES, "coldstart.traces.path=nowhere.jsonl"], "coldstart.traces.path=nowhere.jsonl: no such file"),
        ([*TRACES, "coldstart.traces.question=q"], "expected the column of a chat, or else a question's and"),
        ([*TRACES, "coldstart.traces.messages=null"], "expected the column of a chat, or else a question's and"),
        ([*TRACES, "coldstart.traces.max_response_tokens=5000"], "learns to be cut off; expected 1 to sampling"),
        ([*TRACES, "coldstart.checkpoint=${model.path}"], "leaves coldstart.traces unread"),
        (["task.digits=3"], "task.digits=3: task=math has no such key, set it to null"),
        (["task.train=null"], "task.train=null: task=math needs it"),
        (["task=addition", *TRACES], "coldstart.traces: task=addition writes its own demonstrations"),
        (["task=addition"], "eval.num_problems=null: the problems of task=addition are drawn"),
        (["coldstart.target_accuracy=0"], "coldstart.target_accuracy=0.0: expected a share above 0"),
        (["task.train.pth=x"], "task.train.pth: no such key"),
        (["task.train.gold=boxd"], "did you mean boxed?"),
    ],
)
def test_refused(words: list[str], overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as told:
        validate(load([*words, *overrides]))
    assert expected in str(told.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        TRACES,
        [*TRACES, "coldstart.traces.messages=null", "coldstart.traces.question=q", "coldstart.traces.response=r"],
        ["task.grading.format=json", "task.grading.field=answer"],
        [f"+task.eval_sets={{aime_24: {{path: set.csv, {SET}}}}}"],
    ],
)
def test_allowed(words: list[str], overrides: list[str]) -> None:
    validate(load([*words, *overrides]))


def test_data_that_may_change_under_its_name_is_noted(words: list[str]) -> None:
    notes = "\n".join(validate(load([*words, "task.train.path=hf://datasets/a/b/c.csv"])))
    assert "task.train.path=hf://datasets/a/b/c.csv names no revision" in notes
    assert "revision" not in "\n".join(validate(load([*words, "task.train.path=hf://datasets/a/b@1f/c.csv"])))
