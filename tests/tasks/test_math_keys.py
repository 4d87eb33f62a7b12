"""Every key of a task of problems in files, and of traces, changes what it says that it changes."""

import json
from pathlib import Path

import pytest
from math_tasks import MANY, configured, questions, task_of
from tiny_chat import SPECIAL, problem, save_rows, tokenizer, trace

from minirl.identity import coldstart_key, identity
from minirl.tasks.mathematics import MathTask

ROWS = [{**row, "other": f"Other than {row['problem']}", "plain": str(9000 + n)} for n, row in enumerate(MANY)]

ROWS[3]["problem"] = "Now, what is $3 + 1$?"


def tokens(task: MathTask) -> list[tuple[int, ...]]:
    return [prompt.tokens for prompt in task.prompts(0, 5, 0)]


def golds(task: MathTask) -> list[str]:
    return [prompt.problem.answer for prompt in task.prompts(0, 5, 0)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "own.jinja").write_text("{% for m in messages %}Q: {{ m.content }}<|im_end|>{% endfor %}")
    save_rows(tmp_path / "other.jsonl", [problem(number) for number in range(100, 120)])
    other = tokenizer("{{ messages[-1].content }}<|im_end|>", SPECIAL)
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("key", "value", "seen"),
    [
        ("task.train.path", "other.jsonl", tokens),
        ("task.train.question", "other", tokens),
        ("task.train.answer", "plain", lambda task: [golds(task)]),
        ("task.train.gold", "whole", golds),
        ("task.train.where.level", "Level 2", tokens),
        ("task.eval_sets", "{x: {path: other.jsonl, question: problem, answer: solution, gold: boxed}}", None),
        ("task.chat.tokenizer", "other", tokens),
        ("task.chat.system", "Be brief.", tokens),
        ("task.chat.instruction", "Box it.", tokens),
        ("task.chat.template", "own.jinja", tokens),
        ("task.chat.max_prompt_tokens", "36", lambda task: task.notes),
    ],
)
def test_problems_and_prompts_change(place: Path, key, value, seen) -> None:
    seen = seen or (lambda task: {name: questions(part) for name, part in task.eval_sets(None).items()})
    also = ["task.train.gold=whole"] if key == "task.train.answer" else []
    assert seen(task_of(place, ROWS, *also)) != seen(task_of(place, ROWS, *also, f"++{key}={value}"))


def test_grading_changes(place: Path) -> None:
    def scores(*overrides: str) -> list[float]:
        task = task_of(place, ROWS, *overrides)
        prompt = task.prompts(0, 1, 0)[0]
        gold = prompt.problem.answer
        texts = (f"\\boxed{{{gold}}} 7777", f"{gold}", f'{{"a": "{gold}", "b": 7777}}')
        return [task.grade(prompt, [*task.encode(text), task.eos]) for text in texts]

    (place / "grader.py").write_text("def grade(question, answer, response):\n    return len(response) / 100\n")
    assert scores() == [1, 0, 0]
    assert scores("task.grading.format=last_number") == [0, 1, 0]
    assert scores("task.grading.format=json", "task.grading.field=a") == [0, 0, 1]
    assert scores("task.grading.format=json", "task.grading.field=b") == [0, 0, 0]
    assert scores(f"task.grading.grader={place}/grader.py")[1] == pytest.approx(
        len(golds(task_of(place, ROWS))[0]) / 100
    )


TRACES = [
    {**trace(n), "q": f"Is {n} even?", "r": f"Ye{'s' * (n % 5)}, \\boxed{{{n}}}", "teacher": "ab"[n % 2]}
    for n in range(20, 30)
]


def test_demonstrations_change(place: Path) -> None:
    save_rows(place / "traces.jsonl", TRACES)
    save_rows(place / "fewer.jsonl", TRACES[:4])
    base = ["coldstart=traces", "coldstart.traces.path=traces.jsonl"]

    def shown(*overrides: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        return task_of(place, ROWS, *base, *overrides).demonstrations(0, 10, 0)

    pair = ["coldstart.traces.messages=null", "coldstart.traces.question=q", "coldstart.traces.response=r"]
    changes = [
        ["coldstart.traces.path=fewer.jsonl"],
        pair,
        [*pair[:1], "coldstart.traces.question=teacher", pair[2]],
        [*pair[:2], "coldstart.traces.response=teacher"],
        ["+coldstart.traces.where.teacher=a"],
    ]
    seen = [shown(*change) for change in ([], *changes)]
    assert len({json.dumps(each) for each in seen}) == len(seen)
    short = task_of(place, ROWS, *base, *pair, "coldstart.traces.max_response_tokens=17")
    assert "coldstart.traces: 6 traces; dropped: 4 too long" in short.notes


@pytest.mark.parametrize("what", ["problems.jsonl", "model/tokenizer.json", "own.jinja", "grader.py", "traces.jsonl"])
def test_the_content_of_its_files_is_what_a_run_is(place: Path, what: str) -> None:
    (place / "grader.py").write_text("def grade(question, answer, response):\n    return 0.0\n")
    save_rows(place / "traces.jsonl", TRACES)
    task_of(place, ROWS)
    words = ["task=math", f"model.path={place}/model", f"task.train.path={place}/problems.jsonl", "coldstart=traces"]
    words += [f"task.chat.template={place}/own.jinja", f"task.grading.grader={place}/grader.py"]
    words += [f"coldstart.traces.path={place}/traces.jsonl", "model.path=null", f"task.chat.tokenizer={place}/model"]

    def names() -> tuple[str, str]:
        config = configured(*words)
        return identity(config, "start"), coldstart_key(config)

    before = names()
    assert names() == before
    path = place / what
    path.write_text(path.read_text() + "\n")
    after = names()
    assert after[1] != before[1]
    assert (after[0] != before[0]) == (what != "traces.jsonl"), "what is started from is the checkpoint's own content"
    (place / "moved.jsonl").write_bytes((place / "problems.jsonl").read_bytes())
    words.append(f"task.train.path={place}/moved.jsonl")
    assert names() == after, "a path is no content"
